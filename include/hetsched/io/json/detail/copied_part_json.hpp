// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/round_trip_test.cpp.

#include <hetsched/cost/models/copied_part.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched::detail {

/// What `copy_of` says of layer `index` of so many: which other layer owns how much of its parameters.
[[nodiscard]] inline copied_part read_copied_part(const json_value& value, int index, int layers) {
  value.object({"layer", "fraction"});
  const copied_part found{.layer = value.at("layer").count(0, layers - 1), .fraction = value.at("fraction").number(0, 1)};
  if (found.layer == index) value.at("layer").expected("another layer");
  if (found.fraction == 0) value.at("fraction").expected("more than 0");
  return found;
}

}  // namespace hetsched::detail
