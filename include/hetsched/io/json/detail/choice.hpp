// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/json/target_json_test.cpp.

#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

#include <hetsched/io/json_reader.hpp>

namespace hetsched::detail {

// The position of a name among those that there are.
template <class Names>
[[nodiscard]] int choice_of(const json_value& value, const Names& names) {
  const auto text = value.text();
  std::vector<std::string_view> known(std::begin(names), std::end(names));
  for (std::size_t i = 0; i < known.size(); ++i)
    if (known[i] == text) return static_cast<int>(i);
  value.fail("there is no \"" + excerpt(text) + "\" here; " + suggestion(text, known));
}

}  // namespace hetsched::detail
