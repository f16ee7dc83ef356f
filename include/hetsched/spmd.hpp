// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by the files of tests/spmd/.

#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/costs.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/min_sum.hpp>
#include <hetsched/spmd/problem.hpp>
#include <hetsched/spmd/program.hpp>
#include <hetsched/spmd/program_costs.hpp>
#include <hetsched/spmd/ratios.hpp>
#include <hetsched/spmd/stage_program.hpp>
#include <hetsched/spmd/synthesize.hpp>
