// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <compare>
#include <string>
#include <utility>

namespace hetsched {

/// A tensor of a layer: its number among the layer's parameters().
struct parameter_id {
  int layer = 0;
  int number = 0;
  friend constexpr bool operator==(const parameter_id&, const parameter_id&) = default;
  friend constexpr auto operator<=>(const parameter_id&, const parameter_id&) = default;
};

[[nodiscard]] std::string to_text(const parameter_id& p);

/// Two parameters that are one, such as an embedding and the head that uses its table again.
using parameter_tie = std::pair<parameter_id, parameter_id>;

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layer/parameter_id.ipp>
#endif
