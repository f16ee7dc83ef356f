// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/plan/microbatch.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/predict.hpp>
#include <hetsched/plan/with_schedule.hpp>
