// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders.hpp>
#include <hetsched/schedule/check.hpp>
#include <hetsched/schedule/period.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/simulate.hpp>
#include <hetsched/schedule/warmup.hpp>
