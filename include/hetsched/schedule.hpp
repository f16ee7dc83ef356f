// SPDX-License-Identifier: Apache-2.0
#pragma once

// Schedules: builders by name, the search for one, what they cost, simulation and bounds. Not in here, since they add half to
// what this takes to compile: in <hetsched/schedule/...> check/check.hpp (whether a schedule runs), passes.hpp (listed
// transfers, streams), posting.hpp (asynchronous transfers, as PyTorch has them), text.hpp (as CSV), and of simulate/
// compare_timelines.hpp, critical_path.hpp, jitter.hpp and what_if.hpp.

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/bidirectional.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/v_schedules.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/builders/zero_bubble.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>
#include <hetsched/schedule/search/min_memory.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/stage_map.hpp>
#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/workload.hpp>
