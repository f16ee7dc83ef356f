// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>

namespace hetsched {

/// The links between the subclusters of a cluster, for many questions: between(from, to) is the cluster's, in O(log links). It
/// keeps copies, and is of the cluster as it was.
class link_index {
 public:
  /// O(links log links).
  explicit link_index(const cluster& c) {
    links_.reserve(2 * c.links.size());
    for (const auto& l : c.links) {
      links_.emplace_back(std::pair(l.a, l.b), l.link);
      links_.emplace_back(std::pair(l.b, l.a), l.back());
    }
    std::stable_sort(links_.begin(), links_.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  }

  [[nodiscard]] std::optional<link> between(int from, int to) const {
    const std::pair ends(from, to);
    const auto found =
        std::lower_bound(links_.begin(), links_.end(), ends, [](const auto& x, const auto& y) { return x.first < y; });
    if (found == links_.end() || found->first != ends) return std::nullopt;
    return found->second;
  }

 private:
  std::vector<std::pair<std::pair<int, int>, link>> links_;
};

}  // namespace hetsched
