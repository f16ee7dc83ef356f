// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>

namespace hetsched {

HETSCHED_INLINE schedule interleaved_1f1b(int ranks, int chunks, int microbatches) {
  detail::require_chunks(ranks, chunks, microbatches);
  if (chunks == 1) return detail::looped(ranks, 1, microbatches, 1, [&](int rank, int) { return ranks - 1 - rank; });
  return detail::looped(ranks, chunks, microbatches, std::max(1, microbatches / ranks),
                        [&](int rank, int group) { return 2 * (ranks - 1 - rank) + (chunks - 1) * group; });
}

}  // namespace hetsched
