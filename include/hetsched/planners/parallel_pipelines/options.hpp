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
  /// What is further behind than `hopeless`, but no further than this, is looked at shortly; what is further is left. Infinity:
  /// all has equal copies tried, and no other look.
  double distant = std::numeric_limits<double>::infinity();
  std::int64_t listed = 20'000;                        ///< small problems list all pipelines: of no more than so many
  std::vector<std::vector<pipeline_plan>> start = {};  ///< sets of pipelines that are known, from another planner, say
  pipelines_search search = pipelines_search::whole;   ///< how much is done
  bool splits = false;                                 ///< the bound is to hold for schedules that split backwards, too
  /// More of them, which take time to make: asked for where bounds alone do not show that none can beat planning_problem::beat.
  std::function<std::vector<std::vector<pipeline_plan>>()> more = {};
  /// `more` is asked for only if the best of `start` takes at most this many times planning_problem::beat, or `start` has none.
  double more_within = std::numeric_limits<double>::infinity();
  /// The best iteration of other problems, as of other microbatch sizes: a first look goes further where it comes near that.
  double others_s = std::numeric_limits<double>::infinity();
};

}  // namespace hetsched
