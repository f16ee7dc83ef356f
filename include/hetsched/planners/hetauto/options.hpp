// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <string>

#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/search/tree_search.hpp>

namespace hetsched {

/// Which of HetAuto's principles hold. That stages have whole layers is what the cost model's layers say; that a stage lies on
/// one subcluster, what a plan can say.
struct hetauto_principles {
  bool consecutive = true;  ///< the stages of a subcluster follow each other
  bool uniform = true;      ///< those of a subcluster have one placement
};

/// What planning_problem leaves open.
struct hetauto_options {
  std::string schedule = "virtual_1f1b";                             ///< of the plan, and what evaluate predicts with
  hetauto_principles principles = {};                                ///< fewer leave more plans
  tree_search_options search = {.exploration = 0.3, .greedy = 0.9};  ///< its progress and parallel are the problem's
};

/// What planning_problem leaves open.
struct hetauto_exact_options {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  double gap = 0.001;                ///< the search ends when the best plan is known to be within this share of the optimum
  int periods = 2000;                ///< that are looked at, at the most
  double near_tie = 0.05;            ///< plans met whose objective is within this share of the least are judged by evaluate
  double effort = 20;                ///< of interop_dp's search at the end; less where much is left, and at the start
  int polished = 4;                  ///< of the best placements met, so many get cuts by interop_dp
  int looks = 16;                    ///< so many of the best plans are changed a little at the end
  double enumeration = 200;          ///< likewise
  double hope = 1.35;                ///< pipelines whose objective is above planning_problem::beat times this are not looked at
  bool prove = true;                 ///< whether the evidence is to bound the iteration, which takes a while
};

}  // namespace hetsched
