// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cost/questions/stage_part.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// Whether devices of several subclusters work on one stage.
[[nodiscard]] bool is_mixed(const std::vector<device_group>& devices);

namespace detail {

[[nodiscard]] bool are_uneven(const std::vector<double>& shares);

}  // namespace detail

/// The parts of a stage that gets microbatches of so many samples: one where its devices are alike and share evenly. Else those
/// of replicas that follow each other and are alike, or of one replica those of such tensor ranks, in the order of the stage's
/// devices. Shares become whole samples, or of `slices` of a layer whole ones, by largest remainder, as the runtime has them.
/// `slices`: those that the costs know of, 0: none.
/// Throws: input_error unless degrees, samples and slices make sense, and there are as many devices as the degrees say; for
/// uneven shares of the context axis; for those of the tensor axis without slices, or beside data or context ranks; for data
/// ranks that share out experts and have unlike devices or uneven shares of samples or state; for a rank without a sample or
/// slice; and for a data rank of several whose devices lie in two groups or across nodes.
[[nodiscard]] std::vector<stage_part> parts_of(const stage_plan& s, int microbatch_size, int slices = 0);

/// Lets parts hold the state that ZeRO shares out by the stage's shares of it, if it says any: of each part the data rank with
/// most.
/// Throws: input_error unless the parts have a cost each and their data ranks a share each, finite and at least 0, and the bytes
/// that come out fit 64 bits.
void share_state(const stage_plan& s, const std::vector<stage_part>& parts, parts_cost& cost);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/stage_parts.ipp>
#endif
