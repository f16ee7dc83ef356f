// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/analytic.hpp>

namespace hetsched {

HETSCHED_INLINE detail::layer_compute analytic_cost_model::compute(int index, const placement& where) const {
  const auto& l = costs_.at(index);
  const auto& d = where.degrees;
  const auto position = as_size(where.mesh.subcluster);
  const double share = static_cast<double>(costs_.samples(d)) / d.context / d.tensor;
  const auto [dense, experts] = costs_.on_device(costs_.held(l), l.expert_parameters, d);
  const double weights = (dense + experts) * costs_.parameter_bytes();
  const double traffic = static_cast<double>(l.memory_traffic_bytes) * share + weights * l.active_fraction;
  const auto roofline = [&](double flops, double bytes) {
    const double compute_s = flops / flops_[position];
    const double memory_s = bytes / costs_.hardware().subclusters[position].device.memory_bandwidth;
    return compute_s > memory_s ? compute_s : memory_s;
  };
  detail::layer_compute c;
  c.forward_s = roofline(l.forward_flops * share, traffic);
  // Backward reads and writes for the gradients of both its operands.
  c.backward_s = roofline(l.backward_flops * share, 2 * traffic);
  if (l.backward_flops > 0) c.weight_backward_s = c.backward_s * l.weight_backward_flops / l.backward_flops;
  c.selective_s = roofline(l.selective_flops * share, 2 * static_cast<double>(l.selective_saved_bytes) * share);
  c.overhead_s = layer_overhead_s_;
  return c;
}

}  // namespace hetsched
