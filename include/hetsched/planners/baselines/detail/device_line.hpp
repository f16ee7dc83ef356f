// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched::detail {

/// The devices of a cluster one behind the other, subcluster after subcluster in an order, node by node.
class device_line {
 public:
  /// `order`: positions in cluster::subclusters; the cluster outlives it.
  device_line(const cluster& hardware, std::vector<int> order) : hardware_(hardware), order_(std::move(order)) {}

  [[nodiscard]] int device_count() const {
    int count = 0;
    for (const int k : order_) count += at(hardware_.subclusters, k).device_count();
    return count;
  }

  /// `count` devices from position `first` on, if they are whole nodes or lie on one node.
  [[nodiscard]] std::optional<device_group> group(int first, int count) const {
    for (const int k : order_) {
      const auto& s = at(hardware_.subclusters, k);
      if (first >= s.device_count()) {
        first -= s.device_count();
        continue;
      }
      const int per_node = s.devices_per_node, inside = first % per_node;
      if (first + count > s.device_count()) return std::nullopt;
      if (inside + count <= per_node) return device_group{{.subcluster = k, .nodes = 1, .devices_per_node = count}, first};
      if (inside != 0 || count % per_node != 0) return std::nullopt;
      return device_group{{.subcluster = k, .nodes = count / per_node, .devices_per_node = per_node}, first};
    }
    return std::nullopt;
  }

 private:
  const cluster& hardware_;
  std::vector<int> order_;
};

/// All orders of up to four subclusters; of more, the one they are in.
[[nodiscard]] inline std::vector<std::vector<int>> subcluster_orders(const cluster& hardware) {
  std::vector<int> order(hardware.subclusters.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> all{order};
  if (order.size() <= 4)
    while (std::next_permutation(order.begin(), order.end())) all.push_back(order);
  return all;
}

/// The orders of some of up to four subclusters, of fewer behind more; of more than four as above.
[[nodiscard]] inline std::vector<std::vector<int>> orders_of_some(const cluster& hardware) {
  auto all = subcluster_orders(hardware);
  if (hardware.subclusters.size() > 4) return all;
  for (std::size_t k = 0; k < all.size(); ++k) {
    auto fewer = all[k];
    fewer.pop_back();
    if (!fewer.empty() && std::find(all.begin(), all.end(), fewer) == all.end()) all.push_back(std::move(fewer));
  }
  return all;
}

}  // namespace hetsched::detail
