// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_inference_test.cpp.

#include <optional>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/plan/objective.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// What a plan for inference is expected to do with requests of equal length.
struct inference_prediction {
  double latency_s = 0;       ///< of a request, from its start to its last token
  double first_token_s = 0;   ///< of this, until the first token
  double token_s = 0;         ///< between two tokens of a request
  double requests_per_s = 0;  ///< with as many in flight as the plan says
  double tokens_per_s = 0;    ///< that are made, of all requests together
  friend bool operator==(const inference_prediction&, const inference_prediction&) = default;
};

/// Who computes what for requests: ordered stages that each of them passes. What a stage or a boundary says of backwards,
/// warm-ups and updates stays empty.
struct inference_plan {
  std::string planner = {};
  plan_objective objective = plan_objective::latency;  ///< or throughput
  int in_flight = 1;                                   ///< batches whose caches are held at once
  int batch_size = 1;                                  ///< requests that pass the stages together
  std::vector<stage_plan> stages = {};
  std::vector<boundary_plan> boundaries = {};  ///< stages - 1, or none before evaluate_inference
  plan_setting setting = {};
  std::optional<inference_prediction> predicted = {};
  std::optional<search_evidence> evidence = {};
  friend bool operator==(const inference_plan&, const inference_plan&) = default;
};

/// What a plan is worth under its objective, in seconds of or per request: smaller is better.
/// Throws: input_error for a plan without a prediction, or one of no requests.
[[nodiscard]] double objective_of(const inference_plan& p);

/// The stages as what plays, checks and draws pipelines takes them: every batch in flight is a microbatch of forwards.
[[nodiscard]] pipeline_plan forward_pipeline(const inference_plan& p);

/// Throws input_error for an objective of training or counts below 1, and as validate of a plan does.
/// Complexity: O(stages + devices).
void validate(const cluster& hardware, const inference_plan& p, int layer_count);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/inference_plan.ipp>
#endif
