// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  explicit link_index(const cluster& c);

  [[nodiscard]] std::optional<link> between(int from, int to) const;

 private:
  std::vector<std::pair<std::pair<int, int>, link>> links_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/link_index.ipp>
#endif
