// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/views.hpp>
#include <hetsched/views/plan.hpp>
#include <hetsched/views/reshard.hpp>
#include <hetsched/views/schedule.hpp>
