// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/interop_dp/options.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// How much parallel_pipelines does.
enum class pipelines_search {
  whole,    ///< until the best plan is known, or its effort is spent, with a bound
  copies,   ///< one pipeline and equal copies of one, where much is found soon; nothing is proved
  changes,  ///< what is known to begin with, by small changes alone; nothing is proved
};

/// What planning_problem leaves open.
struct parallel_pipelines_options {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;                      ///< H-1F1B's tolerance
  subcluster_order order = subcluster_order::automatic;  ///< of the search for one pipeline
  double gap = 0.001;                                    ///< the search ends when no plan can be better by more than this share
  int rounds = 40;                                       ///< of rents, at the most
  double effort = 50;                                    ///< of the search for one pipeline, as interop_options has it
  double near_tie = interop_options{}.near_tie;          ///< likewise
  int looks = interop_options{}.looks;                   ///< likewise, and of the best plan, where it is a single pipeline
  double hopeless = 1.05;                                ///< what is so far behind planning_problem::beat is not improved
  /// A best plan that takes more than `hopeless` and at most `distant` times planning_problem::beat is followed by a short search
  /// for one pipeline, and by equal copies; beyond `distant` there is neither. Infinity: equal copies always, no short search.
  double distant = std::numeric_limits<double>::infinity();
  std::int64_t listed = 20'000;                        ///< problems of at most this many pipelines list them all
  std::vector<std::vector<pipeline_plan>> start = {};  ///< sets of pipelines that are known, from another planner, say
  pipelines_search search = pipelines_search::whole;   ///< how much is done
  bool splits = false;                                 ///< the bound is to hold for schedules that split backwards, too
  /// More of them, which take time to make: asked for where bounds alone do not show that none can beat planning_problem::beat.
  std::function<std::vector<std::vector<pipeline_plan>>()> more = {};
  /// `more` is asked for only if the best plan until then takes at most this many times planning_problem::beat, or there is none.
  double more_within = std::numeric_limits<double>::infinity();
  /// Seconds: the best iteration of other problems, as of other microbatch sizes. A first look that comes within `distant` times
  /// this looks for sets of pipelines, too.
  double others_s = std::numeric_limits<double>::infinity();
};

}  // namespace hetsched
