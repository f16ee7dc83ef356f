// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct baseline_options {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
};

}  // namespace hetsched
