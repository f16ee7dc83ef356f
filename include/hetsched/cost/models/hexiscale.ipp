// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/hexiscale.hpp>

namespace hetsched::hexiscale_cost {

namespace detail {

inline void check_size(double x, const char* what) {
  if (!(x >= 0 && std::isfinite(x))) throw input_error(std::string(what) + " must be finite and not negative");
}

inline void check_shape(const layer_shape& l) {
  check_size(l.samples, "a layer's samples");
  check_size(l.sequence, "a layer's sequence");
  check_size(l.element_bytes, "a layer's bytes of an element");
  if (!(l.hidden > 0 && std::isfinite(l.hidden))) throw input_error("a layer's hidden size must be finite and positive");
  check_size(l.activation_bytes(), "a layer's activation");
  check_size(l.parameter_bytes(), "a layer's parameters");
}

inline void check_group(const cluster& c, std::span<const device_id> group) {
  if (group.empty()) throw input_error("a group needs at least one device");
  for (const auto& d : group)
    if (d.subcluster < 0 || as_size(d.subcluster) >= c.subclusters.size() || d.node < 0 ||
        d.node >= at(c.subclusters, d.subcluster).nodes || d.slot < 0 ||
        d.slot >= at(c.subclusters, d.subcluster).devices_per_node)
      throw input_error("the cluster has no device " + std::to_string(d.slot) + " on node " + std::to_string(d.node) +
                        " of subcluster " + std::to_string(d.subcluster));
}

inline void check_devices(int devices) {
  if (devices < 1) throw input_error("a group needs at least one device");
}

}  // namespace detail

HETSCHED_INLINE double compute_layer_s(const layer_shape& l, double flops, int devices) {
  detail::check_shape(l);
  detail::check_devices(devices);
  if (!(flops > 0 && std::isfinite(flops))) throw input_error("a device's FLOP/s must be finite and positive");
  const double seconds =
      96 * l.samples * l.sequence * l.hidden * l.hidden * (1 + l.sequence / (6 * l.hidden)) / (flops * devices);
  detail::check_size(seconds, "a layer's time");
  return seconds;
}

HETSCHED_INLINE double tensor_layer_s(const layer_shape& l, const cluster& c, std::span<const device_id> group) {
  detail::check_shape(l);
  return 12 * exchange_s(c, group, l.activation_bytes());
}

HETSCHED_INLINE double gradient_layer_s(const layer_shape& l, const cluster& c, std::span<const device_id> group) {
  detail::check_shape(l);
  return 2 * exchange_s(c, group, l.parameter_bytes());
}

HETSCHED_INLINE double layer_bytes(const layer_shape& l, int devices) {
  detail::check_shape(l);
  detail::check_devices(devices);
  return 4 * l.parameter_bytes() / devices + l.activation_bytes();
}

HETSCHED_INLINE double exchange_s(const cluster& c, std::span<const device_id> group, double bytes) {
  detail::check_group(c, group);
  detail::check_size(bytes, "what devices exchange, in bytes,");
  double slowest = 0;
  for (const auto& from : group) {
    double seconds = 0;
    for (const auto& to : group)
      if (!(from == to)) {
        const auto over = c.between(from, to);
        seconds += over ? over->transfer_s(bytes / static_cast<double>(group.size())) : infinity;
      }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

HETSCHED_INLINE double boundary_s(const layer_shape& l, const cluster& c, std::span<const device_id> from,
                                  std::span<const device_id> to) {
  detail::check_shape(l);
  detail::check_group(c, from);
  detail::check_group(c, to);
  return detail::unchecked::boundary_s(l, c, from, to);
}

HETSCHED_INLINE double detail::unchecked::boundary_s(const layer_shape& l, const cluster& c, std::span<const device_id> from,
                                                     std::span<const device_id> to) {
  double best = infinity;
  for (const auto& receiver : to) {
    double spread = 0;
    for (const auto& other : to)
      if (!(other == receiver)) {
        const auto over = c.between(receiver, other);
        spread += over ? over->transfer_s(l.activation_bytes() / static_cast<double>(to.size())) : infinity;
      }
    for (const auto& sender : from)
      if (const auto over = c.between(sender, receiver)) best = std::min(best, over->transfer_s(l.activation_bytes()) + spread);
  }
  return 2 * best;
}

}  // namespace hetsched::hexiscale_cost
