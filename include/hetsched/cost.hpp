// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cost models. Not in here, since they add a third to what this takes to compile: in <hetsched/cost/...>
// corrected.hpp and operator_correction.hpp (forest.hpp: costs corrected by measurements), measured_collectives.hpp and
// transfer_curve.hpp (fits to measured transfers), hexiscale.hpp and hexiscale_costs.hpp (HexiScale's formulas),
// replica_profile.hpp (profiles of version 2, which io has).

#include <hetsched/cost/analytic.hpp>
#include <hetsched/cost/collective.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/profile.hpp>
#include <hetsched/cost/stage_cost.hpp>
#include <hetsched/cost/tile.hpp>
#include <hetsched/cost/tile_cost.hpp>
#include <hetsched/cost/training_memory.hpp>
#include <hetsched/cost/transfer.hpp>
