// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a plan is. What it is worth: <hetsched/evaluate.hpp>; how one is found: <hetsched/planners/...>.

#include <hetsched/plan/gradient_groups.hpp>
#include <hetsched/plan/inference_plan.hpp>
#include <hetsched/plan/nccl_channels.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/plan/transport.hpp>
#include <hetsched/plan/validate.hpp>
