// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/models/forward_costs.hpp>
#include <hetsched/cost/models/inference.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/planners/priced_model.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// What find_inference_plan is asked for.
struct serving_request {
  /// The requests, how many go together, and in how many bits. Of costs of one's own only the batch is used, which must be that
  /// of the costs; of a priced_model, precision and cut are the model's.
  inference_options served = {};
  plan_objective objective = plan_objective::latency;  ///< or throughput
  int in_flight = 0;  ///< batches whose caches are held at once; 0: one, or for throughput as many as are best
  int stages = 0;     ///< how many; 0: as many as are best
  bool use_all_devices = false;
  plan_setting setting = {};  ///< what the costs are of, for the plan to remember; a priced_model tells it
  std::function<void(const search_progress&)> progress = {};  ///< told now and then
  /// Asked often, also before there is a plan; false ends the search at once, with the best plan so far, or else with one for a
  /// few devices, which is soon found: time budgets and cancellation live here. If the model does not fit on a few devices,
  /// wait_for_first decides. Once false, it must stay so.
  std::function<bool()> go_on = {};
  /// Asked often once go_on has ended a search without a plan, and no plan for a few devices exists: true waits for the first
  /// plan for all devices, false gives up. Not given: wait.
  std::function<bool()> wait_for_first = {};
};

/// The stages on single devices that serve best, by place_inference: with as many batches in flight as are asked for, or, for
/// throughput, of 1, 2, 4 ... up to twice as many as there are devices, until their caches leave no room for the layers, the
/// number that is best. Returns: the plan, evaluated; its bound is of plans with as many batches in flight, one on a few devices
/// bounds nothing, and the evidence is incomplete where go_on has ended any of the searches. Refusals as of place_inference.
/// Throws: as that, and for a negative number in flight. Determinism: by the arguments, unless go_on ends it.
[[nodiscard]] outcome<inference_plan> find_inference_plan(const cluster& hardware, const any_cost_model& costs,
                                                          const serving_request& request);

/// The same of a model and what it is priced by: inference_costs_on a transformer; of a chain of layers a request is one forward,
/// and forward_costs_on are its costs. Throws: also as these. Example:
///     const auto read = read_model("config.json");
///     const priced_model model{.model = *read.family, .options = {.precision = read.precision, .cut = granularity::block}};
///     const auto found = find_inference_plan(hardware, model, {.served = {.prompt_tokens = 512, .output_tokens = 128}});
///     if (found) std::printf("first token after %g s\n", found->predicted->first_token_s);
[[nodiscard]] outcome<inference_plan> find_inference_plan(const cluster& hardware, const priced_model& model,
                                                          serving_request request);

/// Costs of serving requests; precision and cut are the model's. Throws: input_error unless it is a transformer priced by its
/// operators, without a correction and with flash attention, and naming what is not known of a device; as inference_cost_model.
[[nodiscard]] inference_cost_model<> inference_costs_on(const cluster& hardware, const priced_model& model,
                                                        inference_options served);

/// Costs of serving requests that are one forward each, of a model told by its layers: those of forwards in training. Throws:
/// input_error unless it is a chain of layers priced by formulas, as costs_on, and as forward_cost_model.
[[nodiscard]] forward_cost_model<any_cost_model> forward_costs_on(const cluster& hardware, const priced_model& model, int batch);

/// What a plan for such requests remembers of its costs: no stack, which is of training, and of a transformer the tokens of a
/// request. Throws: input_error unless these are 2 to 2^24; as setting_of.
[[nodiscard]] plan_setting inference_setting_of(const cluster& hardware, const priced_model& model,
                                                const inference_options& served);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/find_inference_plan.ipp>
#endif
