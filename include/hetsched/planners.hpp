// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a cluster and costs to a plan: find_plan, over all planners. A single planner has a door of its own,
// <hetsched/planners/interop_dp.hpp> and its neighbours; plans for inference have <hetsched/planners/find_inference_plan.hpp>.

#include <hetsched/planners/find_plan.hpp>
#include <hetsched/planners/first_plan.hpp>
#include <hetsched/planners/priced_model.hpp>
#include <hetsched/planners/table.hpp>
#include <hetsched/planners/what_if.hpp>
