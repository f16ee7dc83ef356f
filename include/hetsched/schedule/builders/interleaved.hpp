// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/stage_map.hpp>

namespace hetsched {
namespace detail {

/// Stages of `chunks` per rank; rank r does warmup(r) forwards, then a forward and a backward in turn, then the backwards
/// that are left. All ranks go through the same list: group after group of microbatches, within a group chunk after chunk,
/// for backwards the last chunk first. Where groups cannot be equal, the list is that of equal ones with one microbatch left
/// out of the last groups: that can cause no deadlock, as no microbatch needs another, whereas a list of smaller groups may.
template <class Warmup>
[[nodiscard]] schedule looped(int ranks, int chunks, int microbatches, int groups, Warmup warmup) {
  const int group = (microbatches + groups - 1) / groups;
  const int least = microbatches / groups, larger = microbatches % groups;  // groups of more than the least
  const int passes = groups * group * chunks;
  auto result = make_schedule(ranks, microbatches, loop_map(ranks, chunks));
  for (auto& l : result.lanes) {
    l.actions.reserve(2 * as_size(chunks) * as_size(microbatches));
    const auto add = [&](action_kind kind, int pass) {
      const int g = pass / (group * chunks), step = pass / group % chunks, i = pass % group;
      if (i == least && g >= larger) return;
      const int chunk = kind == action_kind::forward ? step : chunks - 1 - step;
      l.actions.push_back({.kind = kind, .stage = chunk * ranks + l.rank, .microbatch = g * least + std::min(g, larger) + i});
    };
    const int ahead = std::min(warmup(l.rank, group), passes);
    for (int pass = 0; pass < passes + ahead; ++pass) {
      if (pass < passes) add(action_kind::forward, pass);
      if (pass >= ahead) add(action_kind::backward, pass - ahead);
    }
  }
  return result;
}

inline void require_chunks(int ranks, int chunks, int microbatches) {
  require_counts(ranks, microbatches);
  if (chunks < 1) throw input_error("a rank needs at least one chunk, not " + std::to_string(chunks));
  if (chunks > INT_MAX / most_listed / (ranks * microbatches) || chunks > most_stages / ranks)
    throw input_error("a schedule of " + std::to_string(chunks) + " chunks on each of " + std::to_string(ranks) +
                      " ranks has too many actions");
}

}  // namespace detail

/// Interleaved 1F1B: `chunks` virtual stages per rank, stage s on rank s % ranks; with one chunk, 1F1B. The paper asks for
/// microbatches in multiples of ranks and takes them in groups of that many. Here any number will do: groups are as equal as
/// can be, of at least `ranks` microbatches if there are that many. That keeps the paper's idle time; the first rank then
/// holds (2 * ranks - 1 + (chunks - 1) * largest group) / chunks microbatches.
/// Throws: input_error unless all counts are at least 1.
/// Complexity: O(ranks * chunks * microbatches).
/// Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM".
[[nodiscard]] schedule interleaved_1f1b(int ranks, int chunks, int microbatches);

/// Looped breadth-first: every chunk takes all microbatches before the next chunk starts, so that its parameters are gathered
/// and its gradients reduced once per iteration.
/// Throws: input_error unless all counts are at least 1.
/// Complexity: O(ranks * chunks * microbatches).
/// Source: Lamy-Poirier 2023, "Breadth-first pipeline parallelism".
[[nodiscard]] inline schedule looped_bfs(int ranks, int chunks, int microbatches) {
  detail::require_chunks(ranks, chunks, microbatches);
  return detail::looped(ranks, chunks, microbatches, 1, [&](int, int group) { return chunks * group; });
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/interleaved.ipp>
#endif
