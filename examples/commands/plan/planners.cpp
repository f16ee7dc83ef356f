// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>

#include "planners.hpp"

namespace command {
namespace {

using namespace hetsched;

outcome<plan> one_pipeline(const cluster& hardware, const any_costs& costs, const planning_problem& problem,
                           const planner_options& given) {
  interop_options options{.warmup = given.warmup, .epsilon = given.epsilon};
  if (given.all_orders) options.order = subcluster_order::all;
  return interop_dp(hardware, costs, problem, options);
}

outcome<plan> several_pipelines(const cluster& hardware, const any_costs& costs, const planning_problem& problem,
                                const planner_options& given) {
  parallel_pipelines_options options{.warmup = given.warmup, .epsilon = given.epsilon};
  if (given.all_orders) options.order = subcluster_order::all;
  return parallel_pipelines(hardware, costs, problem, options);
}

outcome<plan> by_partition(const cluster& hardware, const any_costs& costs, const planning_problem& problem,
                           const planner_options& given) {
  return hexiscale(hardware, costs, problem, {.seed = given.seed, .warmup = given.warmup, .epsilon = given.epsilon});
}

constexpr planner_entry table[] = {
    {"interop_dp", "one pipeline, exact", one_pipeline},
    {"parallel_pipelines", "pipelines that may differ in everything, with a bound", several_pipelines},
    {"hexiscale", "pipelines by graph partition", by_partition},
};

}  // namespace

std::span<const planner_entry> planners() { return table; }

}  // namespace command
