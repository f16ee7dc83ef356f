// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the pictures of this folder share.
#include <array>
#include <string>
#include <utility>

namespace bench {

/// Told apart without colour vision, on light and on dark pages (Okabe and Ito, lightened where the page is dark).
inline constexpr std::array<std::pair<const char*, const char*>, 8> inks = {{{"#0072b2", "#4ba3dc"},
                                                                             {"#d55e00", "#f0803c"},
                                                                             {"#009e73", "#2fc29a"},
                                                                             {"#b0509a", "#dd8cc4"},
                                                                             {"#8a6d00", "#e3c62f"},
                                                                             {"#3aa5d8", "#9ad8f7"},
                                                                             {"#57606a", "#a8b1bb"},
                                                                             {"#332288", "#9b8ff0"}}};

[[nodiscard]] inline std::string escaped(const std::string& plain) {
  std::string out;
  for (const char c : plain) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

}  // namespace bench
