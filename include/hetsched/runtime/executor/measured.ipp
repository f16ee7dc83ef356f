// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/runtime/executor/measured.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

HETSCHED_INLINE timeline merged(std::span<const timeline> parts) {
  timeline all;
  double first_s = infinity;
  const auto tensor = [](const action& a, int stage) {
    return std::array<int, 4>{a.direction, stage, a.microbatch, moves_gradient(a.kind)};
  };
  std::vector<std::pair<std::array<int, 4>, double>> arrivals;
  for (const auto& part : parts) {
    all.ranks = std::max(all.ranks, part.ranks);
    all.microbatches = std::max(all.microbatches, part.microbatches);
    for (auto a : part.actions) {
      if (detail::is_receive(a.what.kind)) {
        arrivals.emplace_back(tensor(a.what, detail::peer_stage(a.what)), a.end_s);
        continue;
      }
      if (detail::is_h2d(a.what.kind)) std::swap(a.rank, a.peer);
      first_s = std::min(first_s, a.start_s);
      all.actions.push_back(a);
    }
  }
  std::sort(arrivals.begin(), arrivals.end());
  for (auto& a : all.actions) {
    if (detail::is_send(a.what.kind) || detail::is_network(a.what.kind)) {
      const auto key = tensor(a.what, a.what.stage);
      const auto at =
          std::lower_bound(arrivals.begin(), arrivals.end(), key, [](const auto& x, const auto& k) { return x.first < k; });
      if (at != arrivals.end() && at->first == key) a.end_s = std::max(a.start_s, at->second);
    }
    a.start_s -= first_s;
    a.end_s -= first_s;
  }
  std::stable_sort(all.actions.begin(), all.actions.end(), [](const timed_action& a, const timed_action& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (is_transfer(a.what.kind) != is_transfer(b.what.kind)) return is_transfer(b.what.kind);
    return a.start_s < b.start_s;
  });
  return all;
}

}  // namespace hetsched
