// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/plan/inference_plan.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<inference_evaluation> evaluate_inference(const cluster& hardware, const any_cost_model& costs,
                                                                 inference_plan p) {
  validate(hardware, p, costs.layer_count());
  evaluation forwards;  // whose costs and memory are found as those of training are
  auto& line = forwards.plan.pipelines.emplace_back(forward_pipeline(p));
  detail::require_one_size(forwards.plan);
  const auto costs_for = [&](int) { return costs; };
  std::vector<detail::priced_parts> priced;
  if (auto why = detail::price(hardware, costs_for, forwards.plan, 0, priced)) return *std::move(why);
  auto& parts = forwards.pipelines.emplace_back();
  inference_prediction served;
  double slowest_s = 0;
  std::vector<double> arrived_s{0};  // by piece of the prompt: at the stage
  if (costs.tells_tokens()) arrived_s.assign(as_size(costs.chunk_count()), 0.0);
  double others_s = 0;  // all tokens behind the first
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    auto& s = line.stages[i];
    s.update_s = 0;
    s.cost.backward_s = s.cost.weight_backward_s = 0;
    s.memory_capacity_bytes = subcluster_of(hardware, s.devices.front().mesh).device.memory_bytes;
    auto& stage = parts.stages.emplace_back();
    stage.in_flight = p.in_flight;
    detail::settle(s, 0, s.cost, stage);
    slowest_s = std::max(slowest_s, s.cost.forward_s);
    double free_s = 0;
    if (costs.tells_tokens()) {
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
    if (costs.tells_tokens()) {
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
  if (costs.tells_tokens()) tokens = costs.output_tokens();
  served.first_token_s = arrived_s.back();
  served.latency_s = served.first_token_s + others_s;
  if (tokens > 1) served.token_s = others_s / (tokens - 1);
  const double batch_s = std::max(slowest_s, served.latency_s / p.in_flight);
  if (batch_s > 0) served.requests_per_s = p.batch_size / batch_s;
  served.tokens_per_s = served.requests_per_s * tokens;
  p.predicted = served;
  auto shortage = detail::shortage_of(forwards, hardware);
  p.stages = std::move(line.stages);
  p.boundaries = std::move(line.boundaries);
  return inference_evaluation{std::move(p), std::move(parts.stages), std::move(shortage)};
}

}  // namespace hetsched
