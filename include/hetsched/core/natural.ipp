// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/natural.hpp>

namespace hetsched {

HETSCHED_INLINE std::string short_text(const natural& n) {
  const auto digits = to_string(n);
  if (digits.size() <= 7) return digits;
  int first = (digits[0] - '0') * 10 + (digits[1] - '0') + (digits[2] >= '5' ? 1 : 0);
  auto exponent = digits.size() - 1;
  if (first == 100) {
    first = 10;
    ++exponent;
  }
  return std::to_string(first / 10) + "." + std::to_string(first % 10) + "e" + std::to_string(exponent);
}

}  // namespace hetsched
