// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp.hpp>

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

constexpr planner_entry table[] = {
    {"interop_dp", "one pipeline, exact", one_pipeline},
};

}  // namespace

std::span<const planner_entry> planners() { return table; }

}  // namespace command
