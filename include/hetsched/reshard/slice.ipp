// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/reshard/slice.hpp>

namespace hetsched {

HETSCHED_INLINE slice intersection(std::span<const interval> a, std::span<const interval> b) {
  detail::expect_one_tensor(a.size(), b.size());
  slice common(a.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    common[d].first = std::max(a[d].first, b[d].first);
    common[d].last = std::max(common[d].first, std::min(a[d].last, b[d].last));
  }
  return common;
}

}  // namespace hetsched
