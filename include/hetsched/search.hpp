// SPDX-License-Identifier: Apache-2.0
#pragma once

// What searches for plans share; every planner's header brings what it needs of it.

#include <hetsched/search/frontier.hpp>
#include <hetsched/search/microbatch.hpp>
#include <hetsched/search/pack_devices.hpp>
#include <hetsched/search/problem.hpp>
#include <hetsched/search/taper.hpp>
#include <hetsched/search/tree_search.hpp>
#include <hetsched/search/within_target.hpp>
