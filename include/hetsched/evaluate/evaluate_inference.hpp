// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_inference_test.cpp.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/validate.hpp>

namespace hetsched {

/// Costs of inference that tell apart what makes the first token and what the others: the times of `chunk`, counted from 0, are
/// of one piece of the prompt, those of `decoding` of all tokens behind the first together. They add up to stage's forward_s and
/// to transfer's.
template <class M>
concept inference_costs = stage_cost_model<M> && requires(const M& m, layer_range r, const placement& p, proximity near) {
  { m.output_tokens() } -> std::convertible_to<int>;
  { m.chunk_count() } -> std::convertible_to<int>;
  { m.chunk_s(0, r, p) } -> std::convertible_to<double>;
  { m.decoding_s(r, p) } -> std::convertible_to<double>;
  { m.chunk_transfer_s(0, 0, p, p, near) } -> std::convertible_to<double>;
  { m.decoding_transfer_s(0, p, p, near) } -> std::convertible_to<double>;
};

/// What a plan of one pipeline for inference is worth: fills in costs, transfers and memory, with microbatches batches of
/// microbatch_size requests in flight, each of which has its cache on every device that it passes. A request's latency is the
/// sum of all stages and transfers; only pieces of its prompt follow each other through the stages. Requests pass at the pace of
/// the slowest stage or transfer, if enough are in flight to keep it busy. Where costs are not inference_costs a request has one
/// token. The way of a token back to the first stage is not counted.
/// Returns: the evaluation, also of a plan that does not fit in memory (`shortage` says so); a refusal where a link is missing.
/// Throws: input_error as evaluate does.
/// Complexity: O(stages * (layers + chunks)).
template <stage_cost_model Costs>
[[nodiscard]] outcome<evaluation> evaluate_inference(const cluster& hardware, const Costs& costs, plan p) {
  if (p.pipelines.size() != 1) throw input_error("a plan for inference needs one pipeline");
  validate(hardware, p, cost_of::layer_count(costs));
  detail::require_one_size(p);
  const auto costs_for = [&](int) -> const Costs& { return costs; };
  std::vector<detail::priced_parts> priced;
  if (auto why = detail::price(hardware, costs_for, p, 0, priced)) return *std::move(why);
  auto& line = p.pipelines.front();
  evaluation result;
  auto& parts = result.pipelines.emplace_back();
  inference_prediction served;
  double slowest_s = 0;
  std::vector<double> arrived_s{0};  // by piece of the prompt: at the stage
  if constexpr (inference_costs<Costs>) arrived_s.assign(static_cast<std::size_t>(costs.chunk_count()), 0.0);
  double others_s = 0;  // all tokens behind the first
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    s.update_s = 0;
    s.cost.backward_s = s.cost.weight_backward_s = 0;
    s.memory_capacity_bytes = subcluster_of(hardware, s.devices.front().mesh).device.memory_bytes;
    auto& stage = parts.stages.emplace_back();
    stage.in_flight = line.microbatches;
    detail::settle(s, 0, s.cost, stage);
    slowest_s = std::max(slowest_s, s.cost.forward_s);
    double free_s = 0;
    if constexpr (inference_costs<Costs>) {
      others_s += costs.decoding_s(s.layers, s.where());
      for (std::size_t c = 0; c < arrived_s.size(); ++c)
        free_s = arrived_s[c] = std::max(free_s, arrived_s[c]) + costs.chunk_s(static_cast<int>(c), s.layers, s.where());
    } else {
      arrived_s.front() += s.cost.forward_s;
    }
    if (i + 1 == line.stages.size()) break;
    auto& b = line.boundaries[i];
    b.backward_s = 0, b.backward_occupied_s = {};
    slowest_s = std::max(slowest_s, b.forward_occupied_s.value_or(b.forward_s));
    if constexpr (inference_costs<Costs>) {
      const auto& next = line.stages[i + 1];
      const auto near = proximity_of(s.devices, next.devices, subcluster_of(hardware, s.devices.front().mesh).devices_per_node);
      const int boundary = s.layers.last - 1;
      others_s += costs.decoding_transfer_s(boundary, s.where(), next.where(), near);
      free_s = 0;
      for (std::size_t c = 0; c < arrived_s.size(); ++c)
        free_s = arrived_s[c] =
            std::max(free_s, arrived_s[c]) + costs.chunk_transfer_s(static_cast<int>(c), boundary, s.where(), next.where(), near);
    } else {
      arrived_s.front() += b.forward_s;
    }
  }
  int tokens = 1;
  if constexpr (inference_costs<Costs>) tokens = costs.output_tokens();
  served.first_token_s = arrived_s.back();
  served.latency_s = served.first_token_s + others_s;
  if (tokens > 1) served.token_s = others_s / (tokens - 1);
  const double batch_s = std::max(slowest_s, served.latency_s / line.microbatches);
  if (batch_s > 0) served.requests_per_s = line.microbatch_size / batch_s;
  served.tokens_per_s = served.requests_per_s * tokens;
  p.gradient_sync.clear();
  p.predicted = {.inference = served};
  result.plan = std::move(p);
  result.shortage = detail::shortage_of(result, hardware);
  return result;
}

}  // namespace hetsched
