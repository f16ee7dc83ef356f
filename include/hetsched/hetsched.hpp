// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster.hpp>
#include <hetsched/core.hpp>
#include <hetsched/cost.hpp>
#include <hetsched/evaluate.hpp>
#include <hetsched/model.hpp>
#include <hetsched/plan.hpp>
#include <hetsched/schedule.hpp>
