// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/cluster/link_kind.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

/// Latency (s) and bandwidth (bytes/s) of one direction between two endpoints; links are full duplex.
struct link {
  double latency_s = 0;
  double bandwidth = 0;
  link_kind kind = link_kind::measured;  ///< what collectives get of it: cost/network/link_efficiency.hpp

  /// Seconds to move `bytes`.
  [[nodiscard]] constexpr double transfer_s(double bytes) const { return latency_s + bytes / bandwidth; }

  friend constexpr bool operator==(const link&, const link&) = default;
};

/// What a collective has that uses both links at once: the longer latency and the smaller bandwidth, of the kind that both are,
/// else measured.
[[nodiscard]] constexpr link slower_of(const link& a, const link& b) {
  return {std::max(a.latency_s, b.latency_s), std::min(a.bandwidth, b.bandwidth),
          a.kind == b.kind ? a.kind : link_kind::measured};
}

/// How the GPUs on the two sides of a link reach each other.
struct gpu_path {
  bool nccl = true;      ///< by NCCL; else by way of their hosts
  std::string nic = {};  ///< that NCCL takes, by its name there; empty: NCCL's own choice
  friend bool operator==(const gpu_path&, const gpu_path&) = default;
};

/// Equal nodes of equal devices with one interconnect.
struct subcluster {
  std::string name{};
  hetsched::device device{};
  int nodes = 1;
  int devices_per_node = 1;
  link intra_node{};  ///< between devices of a node
  link inter_node{};  ///< between nodes, of one network port; not used where there is one node
  gpu_path inter_node_path{};
  /// Money for a node, in the currency of device::price_per_hour, which then does not count: nodes are rented whole.
  std::optional<double> price_per_node_hour{};
  int nics = 1;  ///< network ports of a node to the others, each with the bandwidth of inter_node

  [[nodiscard]] int device_count() const { return nodes * devices_per_node; }
  /// The network ports that so many devices of a node use at once: a device sends by one.
  [[nodiscard]] int ports(int devices) const { return std::min(nics, devices); }
  /// What so many devices of a node have together to another node.
  [[nodiscard]] link between_nodes(int devices) const { return {inter_node.latency_s, inter_node.bandwidth * ports(devices)}; }
  /// Money per hour for so many devices that lie on so many nodes; none if there is no price.
  [[nodiscard]] std::optional<double> price_per_hour(int devices, int on_nodes) const {
    if (price_per_node_hour) return on_nodes * *price_per_node_hour;
    if (device.price_per_hour) return devices * *device.price_per_hour;
    return std::nullopt;
  }
  friend bool operator==(const subcluster&, const subcluster&) = default;
};

/// Link between two subclusters, given by their positions in cluster::subclusters.
struct cross_link {
  int a = 0;
  int b = 0;
  hetsched::link link{};  ///< from a to b
  gpu_path path{};
  double bandwidth_back = 0;  ///< from b to a; 0: as from a to b

  /// What leads from b to a.
  [[nodiscard]] hetsched::link back() const {
    auto there = link;
    if (bandwidth_back != 0) there.bandwidth = bandwidth_back;
    return there;
  }
  friend bool operator==(const cross_link&, const cross_link&) = default;
};

/// One device of a cluster: subcluster, node in it, slot on the node, all 0-based.
struct device_id {
  int subcluster = 0;
  int node = 0;
  int slot = 0;
  friend constexpr bool operator==(device_id, device_id) = default;
};

namespace detail {

/// Throws input_error: no link joins these.
[[noreturn]] void refuse_ends(device_id a, device_id b);

}  // namespace detail

/// All the hardware there is.
struct cluster {
  std::vector<subcluster> subclusters{};
  std::vector<cross_link> links{};  ///< a pair without one cannot exchange data

  [[nodiscard]] int device_count() const {
    int count = 0;
    for (const auto& s : subclusters) count += s.device_count();
    return count;
  }

  /// The position of the subcluster of that name; none if there is no such subcluster.
  [[nodiscard]] std::optional<int> find(std::string_view name) const {
    for (std::size_t i = 0; i < subclusters.size(); ++i)
      if (subclusters[i].name == name) return static_cast<int>(i);
    return std::nullopt;
  }

  /// The link from one subcluster to another; none if they cannot exchange data.
  [[nodiscard]] std::optional<link> between(int from, int to) const {
    for (const auto& l : links) {
      if (l.a == from && l.b == to) return l.link;
      if (l.a == to && l.b == from) return l.back();
    }
    return std::nullopt;
  }

  /// The link from one device to another: on one node, across nodes of a subcluster, or across subclusters.
  /// Throws: input_error for a device twice, or on a subcluster that there is not.
  /// Returns: none where no link joins their subclusters.
  [[nodiscard]] std::optional<link> between(device_id from, device_id to) const {
    const auto known = [&](int s) { return s >= 0 && as_size(s) < subclusters.size(); };
    if (from == to || !known(from.subcluster) || !known(to.subcluster)) detail::refuse_ends(from, to);
    if (from.subcluster != to.subcluster) return between(from.subcluster, to.subcluster);
    const auto& s = at(subclusters, from.subcluster);
    return from.node == to.node ? s.intra_node : s.inter_node;
  }

  friend bool operator==(const cluster&, const cluster&) = default;
};

/// Adds a link between two subclusters, given by name.
/// Throws: input_error for a name that the cluster does not have, or the same twice, and unless the latency is finite and at
/// least 0 and the bandwidth above 0.
/// Example:
///   cluster c{.subclusters = {{"a", catalogue_device("A100-SXM4-80GB"), 1, 8, {5e-6, gbit_per_s(2400)}, {}},
///                             {"v", catalogue_device("V100-SXM2-32GB"), 1, 8, {5e-6, gbit_per_s(1200)}, {}}}};
///   connect(c, "a", "v", {.latency_s = 50e-6, .bandwidth = gbit_per_s(25)});
void connect(cluster& c, std::string_view a, std::string_view b, const link& over);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/cluster.ipp>
#endif
