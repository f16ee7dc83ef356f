// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/compiled.hpp>

namespace hetsched {

HETSCHED_INLINE link_index::link_index(const cluster& c) {
  links_.reserve(2 * c.links.size());
  for (const auto& l : c.links) {
    links_.emplace_back(std::pair(l.a, l.b), l.link);
    links_.emplace_back(std::pair(l.b, l.a), l.back());
  }
  std::stable_sort(links_.begin(), links_.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
}

HETSCHED_INLINE std::optional<link> link_index::between(int from, int to) const {
  const std::pair ends(from, to);
  const auto found =
      std::lower_bound(links_.begin(), links_.end(), ends, [](const auto& x, const auto& y) { return x.first < y; });
  if (found == links_.end() || found->first != ends) return std::nullopt;
  return found->second;
}

}  // namespace hetsched
