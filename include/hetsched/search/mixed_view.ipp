// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/search/mixed_view.hpp>

namespace hetsched {

namespace detail {

/// So many devices from one on, in groups that are whole nodes or lie on one. Requires: whole nodes, or on one node.
[[nodiscard]] inline device_group group_from(const cluster& c, int subcluster, int first, int devices) {
  const int on_node = at(c.subclusters, subcluster).devices_per_node;
  if (devices < on_node) return {{subcluster, 1, devices}, first};
  return {{subcluster, devices / on_node, on_node}, first};
}

}  // namespace detail

HETSCHED_INLINE std::vector<device_group> devices_behind(const mixed_view& view, const cluster& hardware,
                                                         const device_group& seen) {
  const auto& slices = at(view.of, seen.mesh.subcluster);
  if (slices.size() == 1) {
    auto real = seen;
    real.mesh.subcluster = slices[0].subcluster;
    real.first_device += slices[0].first_device;
    return {real};
  }
  const int node = seen.first_device / seen.mesh.devices_per_node;
  std::vector<device_group> groups;
  for (const auto& s : slices)
    groups.push_back(detail::group_from(hardware, s.subcluster, s.first_device + node * s.devices, seen.mesh.nodes * s.devices));
  return groups;
}

namespace detail {

/// What a node of a mixed subcluster takes of each subcluster, and how many such nodes there are.
struct mixture {
  std::vector<std::pair<int, int>> taken;  // subcluster, devices
  int nodes = 1;
  friend bool operator==(const mixture&, const mixture&) = default;
};

/// The slowest link from parts of a subcluster of a view to those of another; none where two parts have none.
[[nodiscard]] inline std::optional<cross_link> slowest_between(const cluster& c, const std::vector<view_slice>& from,
                                                               const std::vector<view_slice>& to) {
  std::optional<cross_link> worst;
  for (const auto& a : from)
    for (const auto& b : to) {
      std::optional<cross_link> found;
      const auto& s = at(c.subclusters, a.subcluster);
      if (a.subcluster == b.subcluster)
        found = cross_link{0, 0, s.nodes > 1 ? s.between_nodes(std::min(a.devices, b.devices)) : s.intra_node, s.inter_node_path};
      else
        for (const auto& l : c.links)
          if (l.a == a.subcluster && l.b == b.subcluster)
            found = l;
          else if (l.b == a.subcluster && l.a == b.subcluster)
            found = cross_link{l.b, l.a, l.back(), l.path, l.link.bandwidth};
      if (!found) return std::nullopt;
      const auto slower_way = [](const cross_link& l) { return std::min(l.link.bandwidth, l.back().bandwidth); };
      if (!worst || slower_way(*found) < slower_way(*worst)) worst = found;
    }
  return worst;
}

/// A mixed subcluster as one: figures of its devices are means, the memory and the links the least of any.
[[nodiscard]] inline subcluster mixed_subcluster(const cluster& c, const mixture& m, const std::vector<view_slice>& slices) {
  subcluster all;
  device& d = all.device;
  d.memory_bytes = std::numeric_limits<bytes_t>::max();
  double price = 0;
  bool priced = true;
  int devices = 0;
  for (const auto& [position, count] : m.taken) devices += count;
  for (const auto& [position, count] : m.taken) {
    const auto& s = at(c.subclusters, position);
    const double weight = static_cast<double>(count) / devices;
    all.name += (all.name.empty() ? "" : "+") + s.name;
    d.name += (d.name.empty() ? "" : "+") + s.device.name;
    d.memory_bytes = std::min(d.memory_bytes, s.device.memory_bytes);
    for (std::size_t p = 0; p < d.peak_flops.size(); ++p) d.peak_flops[p] += weight * s.device.flops(static_cast<precision>(p));
    d.memory_bandwidth += weight * s.device.memory_bandwidth;
    const auto whole = s.price_per_hour(s.devices_per_node, 1);
    priced = priced && whole;
    price += weight * whole.value_or(0) / s.devices_per_node;
  }
  if (priced) d.price_per_hour = price;
  d.multiprocessors = 1;
  while (c.find(all.name)) all.name += "'";
  all.nodes = m.nodes;
  all.devices_per_node = devices;
  const auto slowest = *slowest_between(c, {slices[0]}, {slices.begin() + 1, slices.end()});
  all.intra_node = all.inter_node = slower_of(slowest.link, slowest.back());
  return all;
}

/// The view of one mixture. Requires: it takes no more than there is, and whole nodes of subclusters of several.
[[nodiscard]] inline mixed_view view_of(const cluster& c, const mixture& m) {
  mixed_view view;
  std::vector<view_slice> mixed;
  for (const auto& [position, devices] : m.taken) mixed.push_back({position, 0, devices});
  for (std::size_t k = 0; k < c.subclusters.size(); ++k) {
    auto rest = c.subclusters[k];
    const int position = static_cast<int>(k);
    const auto found = std::find_if(m.taken.begin(), m.taken.end(), [&](const auto& t) { return t.first == position; });
    const int taken = found == m.taken.end() ? 0 : found->second * m.nodes;
    if (taken == rest.device_count()) continue;
    view.of.push_back({{position, taken, rest.devices_per_node}});
    if (rest.nodes > 1) {
      rest.nodes -= taken / rest.devices_per_node;
    } else {
      // A node in two parts: each has its share of the price.
      if (taken > 0 && rest.price_per_node_hour)
        rest.device.price_per_hour = *std::exchange(rest.price_per_node_hour, {}) / rest.devices_per_node;
      rest.devices_per_node -= taken;
    }
    view.hardware.subclusters.push_back(std::move(rest));
  }
  view.of.push_back(mixed);
  view.hardware.subclusters.push_back(mixed_subcluster(c, m, mixed));
  for (std::size_t a = 0; a < view.of.size(); ++a)
    for (std::size_t b = a + 1; b < view.of.size(); ++b)
      if (auto over = slowest_between(c, view.of[a], view.of[b])) {
        over->a = static_cast<int>(a);
        over->b = static_cast<int>(b);
        view.hardware.links.push_back(*std::move(over));
      }
  return view;
}

}  // namespace detail

HETSCHED_INLINE std::vector<mixed_view> mixed_views(const cluster& c) {
  std::vector<detail::mixture> mixtures;
  const auto add = [&](detail::mixture m) {
    if (std::find(mixtures.begin(), mixtures.end(), m) == mixtures.end()) mixtures.push_back(std::move(m));
  };
  const int count = static_cast<int>(c.subclusters.size());
  bool all_joined = count > 2;
  detail::mixture whole;
  for (int a = 0; a < count; ++a) {
    const auto& s = at(c.subclusters, a);
    whole.taken.emplace_back(a, s.device_count());
    for (int b = a + 1; b < count; ++b) {
      const auto& t = at(c.subclusters, b);
      if (!c.between(a, b)) {
        all_joined = false;
        continue;
      }
      add({{{a, s.device_count()}, {b, t.device_count()}}, 1});
      add({{{a, s.devices_per_node}, {b, t.devices_per_node}}, 1});
      add({{{a, s.devices_per_node}, {b, t.devices_per_node}}, std::min(s.nodes, t.nodes)});
      if (s.nodes == 1 && t.nodes == 1 && s.devices_per_node % 2 == 0 && t.devices_per_node % 2 == 0)
        add({{{a, s.devices_per_node / 2}, {b, t.devices_per_node / 2}}, 1});
    }
  }
  if (all_joined) add(std::move(whole));
  std::vector<mixed_view> views;
  for (const auto& m : mixtures) views.push_back(detail::view_of(c, m));
  return views;
}

}  // namespace hetsched
