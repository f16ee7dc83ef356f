// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// Throws input_error, naming layers and placement, unless every part of a cost is finite and not negative.
void check_cost(const stage_cost& c, const cluster& hardware, layer_range layers, const placement& where);

/// Throws input_error, naming the layers, unless copies are of two layers of the model each, and their bytes not negative and no
/// less than their parts.
void check_copies(std::span<const parameter_copy> copies, int layers);

/// Throws input_error, naming boundary and placements, for a transfer whose time is negative or no number, or that occupies its
/// boundary for longer than it takes. Infinity passes: what cannot be moved.
void check_transfer(const transfer_cost& c, const cluster& hardware, int boundary, const placement& from, const placement& to);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/check_cost.ipp>
#endif
