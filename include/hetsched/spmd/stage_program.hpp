// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <memory>
#include <vector>

#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/spmd/problem.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd {

/// A stage and the program that unlike devices compute it by. All ranks of the stage have the same.
struct stage_program {
  std::shared_ptr<const spmd::problem> problem{};  ///< of add_stage_backward's graph and goal
  stage_goal stage{};
  spmd::program program{};
  std::vector<double> shares{};  ///< of a device of each kind
};

}  // namespace hetsched::spmd
