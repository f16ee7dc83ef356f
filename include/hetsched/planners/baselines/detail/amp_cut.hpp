// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/baselines/detail/uniform_grids.hpp>

namespace hetsched::detail {

/// A way through the first stages: its latency, both ways of transfers included, the longest stage, and where the last one began.
struct amp_label {
  double latency_s = 0, longest_s = 0;
  int first = 0;           // layer
  std::size_t before = 0;  // position among the labels of the stage before, at that layer
};

/// The prices of the ways between a stage and the next one, of all pipelines; equal ones once.
[[nodiscard]] inline std::vector<const transfer_price*> ways_behind(const interop_problem& placed, const uniform_grid& g,
                                                                    int stage) {
  std::vector<const transfer_price*> all;
  for (int r = 0; r < g.pipelines; ++r) {
    const auto from = g.at(stage, r), to = g.at(stage + 1, r);
    const auto &a = at(placed.placements, g.placements[from]), &b = at(placed.placements, g.placements[to]);
    const auto near = proximity_of({g.devices[from]}, {g.devices[to]}, at(placed.devices_per_node, a.subcluster));
    const auto* prices = near == proximity::same_node ? placed.near_transfer(a.transfer_class, b.transfer_class)
                                                      : placed.transfer(a.transfer_class, b.transfer_class);
    if (std::find(all.begin(), all.end(), prices) == all.end()) all.push_back(prices);
  }
  return all;
}

/// The cut of AMP's least sum (t + 2c) + (M - 1) max t for a grid, with 1F1B's microbatches in flight in memory: the cut, or none
/// where no cut fits or is below the limit. Labels of a stage and layer that are neither sooner nor better balanced than another
/// are dropped, so the sum is the least.
[[nodiscard]] inline std::vector<std::vector<int>> amp_cuts(baseline_judge& judge, const uniform_grid& g) {
  const auto& placed = judge.placed();
  const int layers = placed.layers, stages = g.stages, microbatches = judge.asked().microbatches / g.pipelines;
  std::vector<std::vector<std::vector<amp_label>>> labels(as_size(stages + 1),
                                                          std::vector<std::vector<amp_label>>(as_size(layers + 1)));
  labels[0][0].push_back({});
  for (int i = 0; i < stages; ++i) {
    const int in_flight = std::min(stages - i, microbatches);
    const auto& kinds = g.kinds[as_size(i)];
    const auto ways = i > 0 ? ways_behind(placed, g, i - 1) : std::vector<const transfer_price*>();
    for (int first = i; first < layers; ++first) {
      const auto& from = labels[as_size(i)][as_size(first)];
      if (from.empty()) continue;
      double transfer_s = 0;  // of the boundary before the stage
      for (const auto* prices : ways) transfer_s = std::max(transfer_s, prices[placed.kind_before(first)].round_trip);
      if (!(transfer_s < longest_time_s)) continue;
      for (int last = i + 1 == stages ? layers : first + 1; last <= layers - (stages - i - 1); ++last) {
        const double seconds = slowest_s(judge.table(), kinds, {first, last});
        if (judge.hopeless(0, seconds, microbatches)) continue;
        if (!std::all_of(kinds.begin(), kinds.end(), [&](int p) { return judge.fits(p, {first, last}, in_flight); })) continue;
        auto& to = labels[as_size(i + 1)][as_size(last)];
        for (std::size_t b = 0; b < from.size(); ++b) {
          const amp_label next{from[b].latency_s + transfer_s + seconds, std::max(from[b].longest_s, seconds), first, b};
          const auto no_worse = [](const amp_label& a, const amp_label& than) {
            return a.latency_s <= than.latency_s && a.longest_s <= than.longest_s;
          };
          if (std::any_of(to.begin(), to.end(), [&](const auto& known) { return no_worse(known, next); })) continue;
          std::erase_if(to, [&](const auto& known) { return no_worse(next, known); });
          to.push_back(next);
        }
      }
    }
  }
  const auto& ends = labels[as_size(stages)][as_size(layers)];
  if (ends.empty()) return {};
  const auto worth = [&](const amp_label& l) { return l.latency_s + (microbatches - 1) * l.longest_s; };
  const auto* label =
      &*std::min_element(ends.begin(), ends.end(), [&](const auto& a, const auto& b) { return worth(a) < worth(b); });
  std::vector<int> cuts(as_size(stages + 1), layers);
  for (int i = stages; i > 0; --i) {
    cuts[as_size(i - 1)] = label->first;
    label = &labels[as_size(i - 1)][as_size(label->first)][label->before];
  }
  return {cuts};
}

}  // namespace hetsched::detail
