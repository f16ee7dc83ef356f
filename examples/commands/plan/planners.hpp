// SPDX-License-Identifier: Apache-2.0
// The planners that commands offer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/problem.hpp>

namespace command {

/// What the command line says beyond the problem; a planner takes what concerns it.
struct planner_options {
  hetsched::warmup_rule warmup = hetsched::warmup_rule::exact;
  double epsilon = hetsched::default_epsilon;
  bool all_orders = false;  ///< of subclusters, also of more than four
  std::uint64_t seed = 0;
  hetsched::hetauto_principles principles = {};
  std::string schedule = {};                          ///< what the stages are to run; empty: the planner's
  int stages = 0;                                     ///< of placement; 0: as many as are best
  std::vector<hetsched::pipeline_plan> known = {};    ///< pipelines that a first look has found
  std::vector<hetsched::pipeline_plan> similar = {};  ///< those of the best plan of another microbatch size
};

using planner_function = hetsched::outcome<hetsched::plan> (*)(const hetsched::cluster&, const hetsched::any_cost_model&,
                                                               const hetsched::planning_problem&, const planner_options&);
static_assert(hetsched::planner<planner_function, hetsched::any_cost_model, planner_options>);

/// For a whole batch, whose microbatches the planner chooses.
using batch_function = hetsched::outcome<hetsched::plan> (*)(const hetsched::cluster&, const hetsched::costs_by_size&, int batch,
                                                             const hetsched::planning_problem&, const planner_options&);

using frontier_function = hetsched::outcome<std::vector<hetsched::plan>> (*)(const hetsched::cluster&,
                                                                             const hetsched::any_cost_model&,
                                                                             const hetsched::planning_problem&,
                                                                             const planner_options&);

/// What --explain prints. `operators`: between which the model could be cut.
using explain_function = std::string (*)(const hetsched::cluster&, const hetsched::any_cost_model&,
                                         const hetsched::planning_problem&, int operators);

struct planner_entry {
  std::string_view name;
  std::string_view what;  ///< in a few words, for --help
  planner_function make;
  frontier_function frontier = nullptr;  ///< of time against money, where the planner knows money
  bool one_pipeline = false;             ///< its plans have one pipeline
  bool own_schedule = false;             ///< its search goes by the schedules of its plans, not by the rule of --warmup
  explain_function explain = nullptr;    ///< how large its space is, where it tells
  batch_function of_batch = nullptr;     ///< decides microbatches by itself, where it does
};

/// All planners of the library; the first one is the default, and where one pipeline is asked for the first that makes one.
[[nodiscard]] std::span<const planner_entry> planners();

}  // namespace command
