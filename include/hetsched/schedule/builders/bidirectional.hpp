// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>

namespace hetsched {
/// Chimera with one pipeline in each direction, which hold the same parameters: units of `ranks` microbatches, half of them in
/// each direction, one unit after the other. In time steps of a forward or a backward, stage s does its i-th forward of a unit
/// at s + 2i and its backward at 2 * ranks - 1 - s + 2i: the directions never meet, and a unit fills what the one before it
/// leaves free. Any number of microbatches: the last unit may lack some.
/// Throws: input_error for an odd number of ranks or a count below 1.
/// Complexity: O(ranks * microbatches * log(microbatches)).
/// Source: Li and Hoefler 2021, "Chimera".
[[nodiscard]] schedule chimera(int ranks, int microbatches);

/// DualPipe: two directions with the same parameters; in the middle of the iteration every forward of one direction is fused
/// with a backward of the other (action::joined), and weight gradients are put off at both ends only. Made for 2 * ranks
/// microbatches and more; fewer leave gaps. Half of them, or one more, go through direction 0.
/// Throws: input_error for an odd number of ranks or a count below 1.
/// Complexity: O(ranks * (ranks + microbatches)).
/// Source: DeepSeek-V3 technical report, 2024.
[[nodiscard]] schedule dualpipe(int ranks, int microbatches);

/// DualPipeV: one half of a DualPipe of twice the ranks, whose other direction is the second half of the stages: stages r and
/// 2 * ranks - 1 - r on rank r, parameters held once. Made for 2 * ranks microbatches and more; fewer leave gaps.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * (ranks + microbatches)).
[[nodiscard]] schedule dualpipe_v(int ranks, int microbatches);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/bidirectional.ipp>
#endif
