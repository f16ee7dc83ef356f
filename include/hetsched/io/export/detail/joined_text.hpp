// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/export/hosts_test.cpp.

#include <string>

namespace hetsched::detail {

/// The texts of values with something between them, such as 0,1,2.
template <class Values, class Text>
[[nodiscard]] std::string joined_text(const Values& values, const char* between, Text text) {
  std::string all;
  bool first = true;
  for (const auto& v : values) {
    if (!first) all += between;
    first = false;
    all += text(v);
  }
  return all;
}

/// The same of whole numbers.
template <class Numbers>
[[nodiscard]] std::string joined_numbers(const Numbers& numbers, const char* between) {
  return joined_text(numbers, between, [](int n) { return std::to_string(n); });
}

}  // namespace hetsched::detail
