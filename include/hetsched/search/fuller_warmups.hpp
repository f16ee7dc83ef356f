// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/search/fuller_warmups_test.cpp.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Warm-ups of a pipeline, and what it takes with them.
struct played_warmups {
  std::vector<int> counts = {};
  double makespan_s = infinity;  ///< infinite where even the least do not fit
};

/// The warm-ups of the shortest makespan, none above its cap, among those of every rule of the 1F1B family, those that the exact
/// rule has for periods down to a tenth of the best one, and what is near the best of them where that takes no time. The least
/// warm-ups reach the best period; more of them fill the way of the first microbatches through the pipeline, and let stages that
/// take unlike times end together.
/// Throws: as validate of the pipeline; input_error unless there is a cap of at least 1 per stage, and microbatches >= 1.
/// Complexity: O(S * microbatches) for each of some ten counts, for S stages; and most_actions more for what is near; with
/// most_actions = 0, only four counts.
[[nodiscard]] played_warmups shortest_warmups(const pipeline& p, std::span<const int> caps, int microbatches,
                                              std::int64_t most_actions = 100'000);

/// The plan that evaluate fills in, with the warm-ups that fill_warmups finds, where they make it better; none if it does not fit
/// in memory or evaluate refuses it.
[[nodiscard]] std::optional<plan> evaluate_filled(const cluster& hardware, const any_cost_model& costs, plan p,
                                                  const evaluate_options& options);

/// An evaluated plan whose pipelines of the 1F1B family have the warm-ups of the shortest makespan that fit in memory; other
/// pipelines stay as they are. What evaluate fills in is left to it. Returns false where nothing changes.
[[nodiscard]] bool fill_warmups(plan& evaluated);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/fuller_warmups.ipp>
#endif
