// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <string>

#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct baseline_options {
  std::string schedule = "exact_1f1b";  ///< of the plan, as build_schedule knows it
  double epsilon = default_epsilon;     ///< H-1F1B's tolerance
  bool one_order = false;               ///< all pipelines of a plan start with as many microbatches as the one that needs most
};

}  // namespace hetsched
