// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cost models. Not in here, since they add a third to what this takes to compile: in <hetsched/cost/models/...>
// corrected.hpp and operator_correction.hpp (forest.hpp: costs corrected by measurements), hexiscale.hpp and hexiscale_costs.hpp
// (HexiScale's formulas), replica_profile.hpp (profiles of version 2, which io has); in <hetsched/cost/network/...>
// measured_collectives.hpp and transfer_curve.hpp (fits to measured transfers).

#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/cost/questions/check_cost.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>
