// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// In which orders a planner lets the pipeline run through the subclusters.
enum class subcluster_order {
  automatic,          ///< all orders of up to four subclusters, beyond that what a local search finds
  all,                ///< every order of up to most_in_all_orders; the work grows with K * 2^(K-1) for K subclusters
  memory_to_compute,  ///< falling memory per FLOP/s from the first stage on (HARP sec. 5.2.1)
  as_given            ///< the cluster's order, first stage first
};

/// All orders of more subclusters are not looked at.
inline constexpr int most_in_all_orders = 12;

/// What planning_problem leaves open.
struct interop_options {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  subcluster_order order = subcluster_order::automatic;
  /// The search ends when the best plan is known to be within this share of the optimum.
  double gap = 0.001;
  /// Among the plans met, and those that differ from the best of them in single cuts or placements, the prediction decides if the
  /// objective is within this share of the least.
  double near_tie = 0.05;
  /// How much searching there is at the most: ends of stages that exact programs look at, in millions, some ten nanoseconds each;
  /// and what goes with it elsewhere.
  double effort = 50;
  /// Small problems end with a look at all plans that can beat the best one: stages that it may take, in thousands; 0: none.
  double enumeration = 200;
  /// So many of the best plans met, and of what they become, are changed a little at the end, under the exact warm-ups; fewer
  /// where that takes long.
  int looks = 12;
  /// A lower bound on latency, periods and end that is known already.
  double known_bound = 0;
  /// How many times problem.beat a sum may be that is looked at: small changes, which go by no sum, may bring its plan below
  /// that. The plan of the least sum visits a subcluster once, and where the first and the last layer share parameters, coming
  /// back to it may save a third. Where layers share none, no more than a tenth above it is looked at.
  double hope = 4;
  /// Whether the evidence bounds the iteration; else only latency and periods: for searches that are parts of others.
  bool prove = true;
  /// Whether the bound is to hold for schedules that split backwards, too: weight gradients come last, and nobody waits for them.
  bool splits = false;
  /// Whether other rows of placements are played at the end.
  bool rows = true;
};

}  // namespace hetsched
