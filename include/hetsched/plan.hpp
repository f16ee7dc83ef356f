// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans and what they are worth. Not in here, since <functional> adds a sixth to what this takes to compile:
// <hetsched/plan/problem.hpp>, what planners are asked; every planner's header brings it.

#include <hetsched/plan/breakdown.hpp>
#include <hetsched/plan/check_cost.hpp>
#include <hetsched/plan/describe.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/gradient_groups.hpp>
#include <hetsched/plan/microbatch.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/pack_devices.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/transport.hpp>
#include <hetsched/plan/validate.hpp>
