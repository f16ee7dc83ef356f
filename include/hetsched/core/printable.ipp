// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/printable.hpp>

namespace hetsched {

HETSCHED_INLINE std::string printable(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    const bool second_set = c == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009F
    if ((c >= 0x20 && c != 0x7f && !second_set) || (keep_lines && c == '\n')) {
      out += text[i];
      continue;
    }
    constexpr char digits[] = "0123456789abcdef";
    const unsigned code = second_set ? next : c;
    out += {'\\', 'x', digits[code >> 4], digits[code & 15u]};
    i += second_set;
  }
  return out;
}

}  // namespace hetsched
