// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/detail/timeline_look.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

HETSCHED_INLINE double luminance(unsigned color) {
  const auto part = [&](int shift) {
    const double c = ((color >> shift) & 0xffu) / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0);
}

HETSCHED_INLINE std::string look_rule(std::size_t look, std::size_t step, bool dark) {
  const auto name = look_class(look, step);
  const unsigned full = dark ? timeline_looks[look].dark : timeline_looks[look].light, color = shade(full, step);
  return print(".hs rect.%s{fill:#%06x", name.c_str(), color) +
         (step == 0 ? ""
          : dark    ? ";stroke:none"
                    : print(";stroke:#%06x;stroke-width:.8", full)) +
         print("}.hs text.%s{fill:#%06x}.hs path.%s{stroke:#%06x}", name.c_str(), ink_on(color), name.c_str(), color);
}

}  // namespace hetsched::detail
