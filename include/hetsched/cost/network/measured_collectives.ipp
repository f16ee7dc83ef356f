// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/network/measured_collectives.hpp>

namespace hetsched {

HETSCHED_INLINE std::optional<double> measured_collectives::nearby(collective kind, int nodes, int per_node, double bytes,
                                                                   double link_bandwidth) const {
  // The nearest groups with at most and at least as many ranks, and how far they are: by ranks per node first.
  const group* side[2] = {};
  std::pair<double, double> distance[2];
  const double size = std::log(nodes * per_node);
  for (const auto& g : groups_) {
    if (g.kind != kind || (g.nodes == 1) != (nodes == 1)) continue;
    const double gap = std::log(g.nodes * g.per_node) - size;
    const std::pair far{nodes == 1 ? 0 : std::abs(std::log(static_cast<double>(g.per_node) / per_node)), std::abs(gap)};
    for (const int s : {0, 1})
      if ((s == 0 ? gap <= 0 : gap >= 0) && (!side[s] || far < distance[s])) {
        side[s] = &g;
        distance[s] = far;
      }
  }
  const auto price = [&](const group& g) {
    const double times = link_bandwidth > 0 && g.link_bandwidth > 0 ? g.link_bandwidth / link_bandwidth : 1;
    return g.curve.transfer_s(bytes * times) * wire_share(kind, nodes * per_node) / wire_share(kind, g.nodes * g.per_node);
  };
  if (!side[0] && !side[1]) return std::nullopt;
  if (!side[0] || (side[1] && distance[1].first < distance[0].first)) return price(*side[1]);
  if (!side[1] || distance[0].first < distance[1].first) return price(*side[0]) * growth(*side[0], nodes, bytes);
  const double between = distance[0].second + distance[1].second;
  if (between == 0) return price(*side[0]);
  const double weight = distance[1].second / between;
  return std::exp(weight * std::log(price(*side[0])) + (1 - weight) * std::log(price(*side[1])));
}

HETSCHED_INLINE double measured_collectives::growth(const group& largest, int nodes, double bytes) const {
  const group* smaller = nullptr;
  for (const auto& g : groups_)
    if (g.kind == largest.kind && g.per_node == largest.per_node && g.nodes > 1 && g.nodes < largest.nodes &&
        (!smaller || g.nodes > smaller->nodes))
      smaller = &g;
  if (!smaller || nodes <= largest.nodes) return 1;
  const auto per_wire_byte = [&](const group& g) { return g.curve.transfer_s(bytes) / wire_share(g.kind, g.nodes * g.per_node); };
  const double power =
      std::log(per_wire_byte(largest) / per_wire_byte(*smaller)) / std::log(static_cast<double>(largest.nodes) / smaller->nodes);
  return std::pow(static_cast<double>(nodes) / largest.nodes, std::clamp(power, 0.0, 1.0));
}

}  // namespace hetsched
