// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

namespace hetsched {

HETSCHED_INLINE double objective_of(const inference_plan& p) {
  if (!p.predicted) throw input_error("a plan for inference has no prediction of it");
  if (p.objective == plan_objective::latency) return p.predicted->latency_s;
  detail::expect_positive(p.predicted->requests_per_s, "requests_per_s");
  return 1 / p.predicted->requests_per_s;
}

HETSCHED_INLINE pipeline_plan forward_pipeline(const inference_plan& p) {
  return {.microbatches = p.in_flight,
          .microbatch_size = p.batch_size,
          .stages = p.stages,
          .boundaries = p.boundaries,
          .schedule = {.name = std::string(forward_schedule_name)}};
}

HETSCHED_INLINE void validate(const cluster& hardware, const inference_plan& p, int layer_count) {
  if (!is_inference(p.objective))
    throw input_error("a plan for inference has the objective latency or throughput, not " + std::string(name_of(p.objective)));
  if (p.in_flight < 1 || p.batch_size < 1) throw input_error("in_flight and batch_size must be at least 1");
  plan whole;
  whole.pipelines.push_back(forward_pipeline(p));
  validate(hardware, whole, layer_count);
}

}  // namespace hetsched
