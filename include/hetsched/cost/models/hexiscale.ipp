// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/models/hexiscale.hpp>

namespace hetsched::hexiscale_cost {

HETSCHED_INLINE double exchange_s(const cluster& c, std::span<const device_id> group, double bytes) {
  double slowest = 0;
  for (const auto& from : group) {
    double seconds = 0;
    for (const auto& to : group)
      if (!(from == to)) {
        const auto over = c.between(from, to);
        seconds += over ? over->transfer_s(bytes / static_cast<double>(group.size())) : std::numeric_limits<double>::infinity();
      }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

HETSCHED_INLINE double boundary_s(const layer_shape& l, const cluster& c, std::span<const device_id> from,
                                  std::span<const device_id> to) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& receiver : to) {
    double spread = 0;
    for (const auto& other : to)
      if (!(other == receiver)) {
        const auto over = c.between(receiver, other);
        spread += over ? over->transfer_s(l.activation_bytes() / static_cast<double>(to.size()))
                       : std::numeric_limits<double>::infinity();
      }
    for (const auto& sender : from)
      if (const auto over = c.between(sender, receiver)) best = std::min(best, over->transfer_s(l.activation_bytes()) + spread);
  }
  return 2 * best;
}

}  // namespace hetsched::hexiscale_cost
