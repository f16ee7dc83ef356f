// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/planners/find_inference_plan.hpp>
#include <hetsched/planners/placement.hpp>

namespace hetsched {

namespace detail {

/// Throws: input_error for a device that inference cannot be priced on, naming what is not known of it.
inline void expect_known_by_operators(const subcluster& s) {
  const auto& d = s.device;
  if (known_by_operators(d)) return;
  std::string lacking;
  for (const auto& [key, known] : {std::pair{"multiprocessors", d.multiprocessors > 0},
                                   {"a peak in fp32", d.flops(precision::fp32) > 0},
                                   {"l2_mib", d.l2_bytes > 0},
                                   {"clock_mhz", d.clock_hz > 0}})
    if (!known) lacking += (lacking.empty() ? "" : ", ") + std::string(key);
  throw input_error("inference is priced operator by operator, for which device " + d.name + " of subcluster " + s.name +
                    " lacks " + lacking + ", optional keys otherwise");
}

/// Throws: input_error where a model is priced by what was measured in training.
inline void expect_unmeasured(const priced_model& model) {
  if (std::holds_alternative<profile>(model.instead) || std::holds_alternative<replica_profile>(model.instead))
    throw input_error("a profile holds costs of training, not of inference");
}

/// A plan where go_on has ended a search before it had one: of a few devices; or, unless nobody waits for it, of all.
[[nodiscard]] inline outcome<inference_plan> first_inference_plan(const cluster& hardware, const any_cost_model& costs,
                                                                  const serving_request& request, inference_problem problem,
                                                                  outcome<inference_plan> stopped) {
  const auto place = [&] { return place_inference(hardware, costs, problem, {.stages = request.stages}); };
  problem.progress = [](const search_progress&) { return false; };
  problem.go_on = {};
  for (problem.parts = 8; problem.parts < 128 && !problem.use_all_devices; problem.parts *= 2)
    if (auto found = place()) {
      found->evidence->objective_bound = 0;
      found->evidence->complete = false;
      found->evidence->stopped = true;
      return found;
    }
  if (request.wait_for_first && !request.wait_for_first()) return stopped;
  problem.parts = 0;
  problem.go_on = request.wait_for_first;
  return place();
}

}  // namespace detail

HETSCHED_INLINE outcome<inference_plan> find_inference_plan(const cluster& hardware, const any_cost_model& costs,
                                                            const serving_request& request) {
  if (request.in_flight < 0) throw input_error("in_flight must not be negative");
  inference_problem problem{.in_flight = std::max(1, request.in_flight),
                            .batch_size = request.served.batch,
                            .use_all_devices = request.use_all_devices,
                            .objective = request.objective};
  problem.progress = [&](const search_progress& state) {
    if (request.progress) request.progress(state);
    return !request.go_on || request.go_on();
  };
  problem.go_on = request.go_on;
  const auto is_ended = [&] { return request.go_on && !request.go_on(); };
  auto found = place_inference(hardware, costs, problem, {.stages = request.stages});
  if (!found && found.why_not().why == refusal::kind::stopped)
    found = detail::first_inference_plan(hardware, costs, request, problem, std::move(found));
  // More in flight keep more stages busy, until their caches take the memory that layers need.
  const bool as_many_as_are_best = request.in_flight == 0 && request.objective == plan_objective::throughput;
  bool stopped = found && !found->evidence->complete && is_ended();
  while (as_many_as_are_best && found && !stopped && problem.in_flight <= hardware.device_count()) {
    stopped = is_ended();
    if (stopped) break;
    problem.in_flight *= 2;
    auto next = place_inference(hardware, costs, problem, {.stages = request.stages});
    stopped = next ? !next->evidence->complete && is_ended() : next.why_not().why == refusal::kind::stopped;
    if (!next) break;
    if (objective_of(*next) < objective_of(*found)) found = std::move(next);
  }
  if (!found) return found;
  found->setting = request.setting;
  if (stopped) {
    found->evidence->complete = false;
    found->evidence->stopped = true;
  }
  return found;
}

HETSCHED_INLINE inference_cost_model<> inference_costs_on(const cluster& hardware, const priced_model& model,
                                                          inference_options served) {
  detail::expect_unmeasured(model);
  if (model.options.correction) throw input_error("a correction is of training; inference is priced without");
  const auto* const known = std::get_if<transformer>(&model.model);
  if (!known || model.options.formulas == cost_formulas::analytic || std::holds_alternative<hexiscale_formulas>(model.instead))
    throw input_error("inference needs a transformer and the costs of the tile model");
  for (const auto& s : hardware.subclusters) detail::expect_known_by_operators(s);
  if (!model.options.flash_attention) throw input_error("inference is priced with flash attention only");
  served.precision = model.options.precision;
  served.cut = model.options.cut;
  return inference_cost_model<>(hardware, *known, served);
}

HETSCHED_INLINE forward_cost_model<any_cost_model> forward_costs_on(const cluster& hardware, const priced_model& model,
                                                                    int batch) {
  detail::expect_unmeasured(model);
  const auto* const chain = std::get_if<layer_chain>(&model.model);
  if (!chain) throw input_error("costs of forwards need a model that is told by its layers");
  return {costs_on(hardware, model, batch), *chain, batch};
}

HETSCHED_INLINE plan_setting inference_setting_of(const cluster& hardware, const priced_model& model,
                                                  const inference_options& served) {
  auto s = setting_of(hardware, model);
  s.stack.reset();
  s.further_tokens = 0;  // engines make a token at a time
  if (std::holds_alternative<transformer>(model.model)) {
    const auto tokens = std::int64_t{served.prompt_tokens} + served.output_tokens;
    detail::expect_count(tokens, "tokens of a request", 2, 1 << 24);
    s.sequence = static_cast<int>(tokens);
  }
  return s;
}

HETSCHED_INLINE outcome<inference_plan> find_inference_plan(const cluster& hardware, const priced_model& model,
                                                            serving_request request) {
  const bool by_forwards = std::holds_alternative<layer_chain>(model.model);
  const auto costs = by_forwards ? any_cost_model::owner_of(forward_costs_on(hardware, model, request.served.batch))
                                 : any_cost_model::owner_of(inference_costs_on(hardware, model, request.served));
  request.setting = inference_setting_of(hardware, model, request.served);
  return find_inference_plan(hardware, costs, request);
}

}  // namespace hetsched
