// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/stage_parts_test.cpp.

#include <span>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace hetsched {

/// Seconds after the last backward: the slowest part's own update, and up to ZeRO stage 1 the reduction between parts that are
/// replicas, as between pipelines. Tensor ranks of one replica each take what their slices take of the whole.
/// Returns: infinity where no link joins parts. Throws: input_error for no parts, or parts without samples or with slices in some
/// of them only. O(parts) questions.
[[nodiscard]] double update_of_parts(const costs_by_size& costs_for, layer_range layers, std::span<const stage_part> parts);

/// What a range of layers costs each part of a stage, and together. The slowest part counts. Tensor ranks of one replica cost
/// what the model says of slices. From ZeRO stage 2 on, which shards inside each part, every backward of replicas also waits for
/// a reduction between the parts, and at stage 3 both ways wait for one more, in place of gathering weights. `costs_for`: the
/// cost model for a microbatch size.
/// Returns: seconds may be infinite where no link joins parts. Throws: as update_of_parts. O(parts) questions.
[[nodiscard]] parts_cost cost_of_parts(const costs_by_size& costs_for, layer_range layers, std::span<const stage_part> parts);

/// The same of a stage: each part is charged, and the slowest one then counts.
/// Requires: what cost_of_parts has for `parts`.
void charge_sums(parts_cost& c, std::span<const stage_part> parts, double microbatches, double of_batch, bool several_stages);

/// What it takes to move a microbatch's activation from the parts of a stage to those of the next, and its gradient back: two
/// parts exchange the samples that both have. Each part does its transfers one after the other, and the parts work at once; the
/// busiest counts (in an open shop with interruptions nothing else does; Gonzalez and Sahni 1976). Tensor ranks of one replica
/// count as if the slowest of its parts did all. Throws: as update_of_parts. O(parts of both) questions.
/// `one(p, q, samples)`: the transfer of so many samples from part p to part q.
[[nodiscard]] transfer_cost transfer_of_parts(std::span<const stage_part> from, std::span<const stage_part> to,
                                              function_ref<transfer_cost(const stage_part&, const stage_part&, int)> one);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/parts.ipp>
#endif
