// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cost/analytic.hpp>
#include <hetsched/cost/collective.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/placement.hpp>
#include <hetsched/cost/profile.hpp>
#include <hetsched/cost/tile.hpp>
#include <hetsched/cost/tile_cost.hpp>
#include <hetsched/cost/training_memory.hpp>
#include <hetsched/cost/transfer.hpp>
