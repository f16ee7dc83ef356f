// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// 1F1B with the backward in two parts: rank r starts with warmups[r] forwards, then does an input gradient, a forward and a
/// weight gradient in turn, where the weight gradients stay delays[r] microbatches behind the input gradients. The first ranks
/// get their gradients sooner for it, and every rank has weight gradients left to fill its wait at the end. A rank holds
/// warmups[r] + delays[r] microbatches at most.
/// Throws: as validate_warmups, and input_error unless there is a delay of at least 0 per stage.
/// Complexity: O(stages * microbatches).
[[nodiscard]] schedule split_1f1b(const std::vector<int>& warmups, const std::vector<int>& delays, int microbatches);

/// ZB-H1: no rank holds more microbatches than the first rank of 1F1B, `ranks`.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
/// Source: Qi et al. 2023, "Zero bubble pipeline parallelism".
[[nodiscard]] schedule zb_h1(int ranks, int microbatches);

/// ZB-H2: no idle time where forward, input gradient and weight gradient take equally long, for 2 * ranks - 1 microbatches
/// held on every rank.
/// Throws: input_error unless both counts are at least 1.
/// Complexity: O(ranks * microbatches).
/// Source: Qi et al. 2023, "Zero bubble pipeline parallelism".
[[nodiscard]] schedule zb_h2(int ranks, int microbatches);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/zero_bubble.ipp>
#endif
