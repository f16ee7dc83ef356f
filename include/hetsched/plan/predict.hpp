// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/period.hpp>
#include <hetsched/schedule/simulate.hpp>

namespace hetsched {

/// Share of the peak that the slowest stage leaves in use: 1 - sum (t_max - t_d) peak_d / (t_max sum peak_d) over the devices in
/// use (HARP Eq. 20), with t_d the compute time per microbatch of a device's stage. 0 if nothing is computed.
[[nodiscard]] inline double load_balance(const cluster& hardware, const pipeline_plan& p,
                                         precision arithmetic = precision::fp16) {
  double slowest = 0, busy = 0, peak = 0;
  for (const auto& s : p.stages) slowest = std::max(slowest, s.forward_s + s.backward_s);
  for (const auto& s : p.stages) {
    const auto& device = subcluster_of(hardware, s.where.mesh).device;
    const double stage_peak = s.where.mesh.device_count() * device.flops(arithmetic);
    busy += (s.forward_s + s.backward_s) * stage_peak;
    peak += slowest * stage_peak;
  }
  return peak > 0 ? busy / peak : 0;
}

/// Sum of the peaks of the devices that a plan uses, FLOP/s.
[[nodiscard]] inline double peak_flops(const cluster& hardware, const plan& p, precision arithmetic = precision::fp16) {
  double peak = 0;
  for (const auto& pipe : p.pipelines)
    for (const auto& s : pipe.stages)
      peak += s.where.mesh.device_count() * subcluster_of(hardware, s.where.mesh).device.flops(arithmetic);
  return peak;
}

/// Seconds of one iteration: every stage's simulated end and then its gradient reduction and optimizer step. O(S M).
[[nodiscard]] inline double iteration_s(const pipeline_plan& p) {
  const auto ends = stage_ends(to_pipeline(p), warmups(p), p.microbatches);
  double last = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) last = std::max(last, ends[i] + p.stages[i].update_s);
  return last;
}

/// Predicts a plan of one pipeline under its warm-up counts: everything but the MFU, which needs the model. O(S M + S^2).
[[nodiscard]] inline prediction predict(const cluster& hardware, const plan& p, precision arithmetic = precision::fp16) {
  if (p.pipelines.size() != 1)
    throw input_error("a plan of " + std::to_string(p.pipelines.size()) + " pipelines cannot be predicted yet");
  const auto& pipe = p.pipelines.front();
  const auto bare = to_pipeline(pipe);
  prediction result;
  result.iteration_s = iteration_s(pipe);
  result.lower_bound_s = makespan_lower_bound(bare, pipe.microbatches);
  result.period_s = period(bare, warmups(pipe));
  result.load_balance = load_balance(hardware, pipe, arithmetic);
  if (result.iteration_s > 0)
    result.samples_per_s = pipe.microbatches * static_cast<double>(pipe.microbatch_size) / result.iteration_s;
  return result;
}

/// Model FLOP utilisation of a predicted plan: FLOPs that training one sample takes (training_flops of the model), at the
/// predicted rate, over the peak of the devices in use.
[[nodiscard]] inline double mfu(const cluster& hardware, const plan& p, double flops_per_sample,
                                precision arithmetic = precision::fp16) {
  const double peak = peak_flops(hardware, p, arithmetic);
  return peak > 0 ? flops_per_sample * p.predicted.samples_per_s / peak : 0;
}

}  // namespace hetsched
