// SPDX-License-Identifier: Apache-2.0
// The planners that commands offer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <hetsched/plan/problem.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

#include "../any_costs.hpp"

namespace command {

/// What the command line says beyond the problem; a planner takes what concerns it.
struct planner_options {
  hetsched::warmup_rule warmup = hetsched::warmup_rule::exact;
  double epsilon = hetsched::default_epsilon;
  bool all_orders = false;  ///< of subclusters, also of more than four
  std::uint64_t seed = 0;
};

using planner_function = hetsched::outcome<hetsched::plan> (*)(const hetsched::cluster&, const any_costs&,
                                                               const hetsched::planning_problem&, const planner_options&);
static_assert(hetsched::planner<planner_function, any_costs, planner_options>);

struct planner_entry {
  std::string_view name;
  std::string_view what;  ///< in a few words, for --help
  planner_function make;
};

/// All planners of the library; the first one is the default.
[[nodiscard]] std::span<const planner_entry> planners();

}  // namespace command
