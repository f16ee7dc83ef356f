// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace validation {

/// As printf, up to 500 characters.
template <class... Arguments>
[[nodiscard]] std::string text(const char* format, Arguments... arguments) {
  char buffer[501];
  std::snprintf(buffer, sizeof buffer, format, arguments...);
  return buffer;
}

/// Three significant digits, more for whole numbers above them, without an exponent.
[[nodiscard]] inline std::string number(double value) {
  const double size = std::abs(value);
  const int before = size > 0 ? static_cast<int>(std::floor(std::log10(size))) + 1 : 1;
  auto digits = text("%.*f", before < 3 ? 3 - before : 0, value);
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  return digits;
}

}  // namespace validation
