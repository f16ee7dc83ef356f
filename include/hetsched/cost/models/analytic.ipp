// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/analytic.hpp>

namespace hetsched::detail {

HETSCHED_INLINE double sustained_flops(const device& d, precision asked, std::span<const device_efficiency> efficiency) {
  auto shares = default_efficiencies(d.name);
  const auto used = d.computes_in(asked);
  // Matrix units that are no faster than the fp32 units run as they do.
  if (d.flops(used) == d.flops(precision::fp32)) at(shares, used) = at(shares, precision::fp32);
  for (const auto& e : efficiency)
    if (e.device == d.name) shares = e.of_peak;
  const double share = at(shares, used);
  if (!(share > 0 && share <= 1)) throw input_error("efficiency of " + d.name + " must be in (0, 1]");
  const double flops = d.flops(asked) * share;
  if (!(flops > 0)) throw input_error("device " + d.name + " has no peak for this precision");
  return flops;
}

HETSCHED_INLINE layer_compute analytic_compute(const parallel_costs& costs, double flops, double overhead_s, int index,
                                               const placement& where) {
  const auto& l = costs.at(index);
  const auto& d = where.degrees;
  const double share = static_cast<double>(costs.samples(d)) / d.context / d.tensor;
  const auto [dense, experts] = costs.on_device(costs.held(l), l.expert_parameters, d);
  const double weights = (dense + experts) * costs.parameter_bytes();
  const double traffic = static_cast<double>(l.memory_traffic_bytes) * share + weights * l.active_fraction;
  const auto& device = hetsched::at(costs.hardware().subclusters, where.mesh.subcluster).device;
  const auto roofline = [&](double arithmetic, double bytes) {
    const double compute_s = arithmetic / flops;
    const double memory_s = bytes / device.memory_bandwidth;
    return (compute_s > memory_s ? compute_s : memory_s) / device.speed;
  };
  layer_compute c;
  c.forward_s = roofline(l.forward_flops * share, traffic);
  // Backward reads and writes for the gradients of both its operands.
  c.backward_s = roofline(l.backward_flops * share, 2 * traffic);
  if (l.backward_flops > 0) c.weight_backward_s = c.backward_s * l.weight_backward_flops / l.backward_flops;
  c.selective_s = roofline(l.selective_flops * share, 2 * static_cast<double>(l.selective_saved_bytes) * share);
  c.overhead_s = overhead_s / device.speed;
  c.byte_s = 1 / (device.memory_bandwidth * device.speed);
  return c;
}

HETSCHED_INLINE layer_compute analytic_slices(const parallel_costs& costs, double flops, double overhead_s, int index,
                                              placement where, int own, int slices) {
  where.degrees.tensor = slices;
  auto c = analytic_compute(costs, flops, overhead_s, index, where);
  for (auto* s : {&c.forward_s, &c.backward_s, &c.weight_backward_s, &c.selective_s}) *s *= own;
  return c;
}

}  // namespace hetsched::detail
