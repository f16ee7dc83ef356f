// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/options.hpp>

namespace hetsched {

namespace detail {

/// A point of a pipeline's way through the subclusters, walked from the last stage to the first: the subcluster that it is in,
/// and from which earlier points it may have come. Phases stand in topological order; those of one level do not depend on each
/// other.
struct route_phase {
  int subcluster = 0;
  int level = 0;
  bool may_start = false;  // may hold the last stage of the pipeline
  bool may_end = false;    // may hold the first stage
  std::vector<int> from;
  std::vector<int> done;  // subclusters that no stage further up can lie in
};

/// A fixed order: a phase is a position in it. With use_all, every subcluster must be visited.
[[nodiscard]] inline std::vector<route_phase> route_through(const std::vector<int>& first_to_last, bool use_all) {
  const int k = static_cast<int>(first_to_last.size());
  std::vector<route_phase> phases;
  for (int position = 0; position < k; ++position) {
    route_phase phase{at(first_to_last, k - 1 - position), position, !use_all || position == 0,
                      !use_all || position == k - 1,       {},       {}};
    for (int from = use_all ? std::max(0, position - 1) : 0; from < position; ++from) phase.from.push_back(from);
    for (int before = 0; before < position; ++before) phase.done.push_back(at(first_to_last, k - 1 - before));
    phases.push_back(phase);
  }
  return phases;
}

/// A long way over links, by which a pipeline may run through many subclusters: from each subcluster on to the neighbour that has
/// fewest others left, and the longest of these. Ties go to those that stand first in `preferred`. O(K^3) for K subclusters.
[[nodiscard]] inline std::vector<int> way_over_links(const cluster& hardware, const std::vector<int>& preferred) {
  std::vector<std::vector<int>> next(preferred.size());  // as preferred
  for (const int a : preferred)
    for (const int b : preferred)
      if (a != b && hardware.between(a, b)) at(next, a).push_back(b);
  std::vector<int> longest;
  for (const int start : preferred) {
    std::vector<int> way{start}, left(preferred.size());
    std::vector<bool> seen(preferred.size());
    for (std::size_t k = 0; k < next.size(); ++k) left[k] = static_cast<int>(next[k].size());
    for (int now = start; now >= 0;) {
      seen[as_size(now)] = true;
      int best = -1;
      for (const int b : at(next, now)) {
        --at(left, b);
        if (!seen[as_size(b)] && (best < 0 || at(left, b) < at(left, best))) best = b;
      }
      if (best >= 0) way.push_back(best);
      now = best;
    }
    if (way.size() > longest.size()) longest = std::move(way);
    if (longest.size() == preferred.size()) break;
  }
  for (const int k : preferred)
    if (std::find(longest.begin(), longest.end(), k) == longest.end()) longest.push_back(k);
  return longest;
}

/// Whether the order is left to a local search, as there are too many to look at.
[[nodiscard]] inline bool has_free_order(const cluster& hardware, subcluster_order order) {
  const auto count = hardware.subclusters.size();
  return (order == subcluster_order::automatic && count > 4) || (order == subcluster_order::all && count > most_in_all_orders);
}

/// Subclusters from the first stage on.
[[nodiscard]] inline std::vector<int> fixed_order(const cluster& hardware, subcluster_order order) {
  std::vector<int> first_to_last(hardware.subclusters.size());
  std::iota(first_to_last.begin(), first_to_last.end(), 0);
  const auto ratio = [&](int i) {
    const auto& d = at(hardware.subclusters, i).device;
    return static_cast<double>(d.memory_bytes) / d.flops(precision::fp16);
  };
  if (order != subcluster_order::as_given)
    std::stable_sort(first_to_last.begin(), first_to_last.end(), [&](int a, int b) { return ratio(a) > ratio(b); });
  const auto pairs = first_to_last.size() * (first_to_last.size() - 1) / 2;
  if (has_free_order(hardware, order) && hardware.links.size() < pairs) return way_over_links(hardware, first_to_last);
  return first_to_last;
}

/// All orders: a phase is a set of visited subclusters and the one of them that is active (Held and Karp 1962), so orders that
/// end alike share their work. Else the fixed one, or the first one of a local search.
[[nodiscard]] inline std::vector<route_phase> make_route(const cluster& hardware, subcluster_order order, bool use_all) {
  const int k = static_cast<int>(hardware.subclusters.size());
  if (order == subcluster_order::automatic && k <= 4) order = subcluster_order::all;
  if (order != subcluster_order::all || has_free_order(hardware, order))
    return route_through(fixed_order(hardware, order), use_all);
  std::vector<route_phase> phases;
  const auto full = (1u << k) - 1;
  std::vector<int> index((std::size_t{full} + 1) * as_size(k), -1);
  for (int size = 1; size <= k; ++size)
    for (unsigned set = 1; set <= full; ++set) {
      if (std::popcount(set) != size) continue;
      for (int active = 0; active < k; ++active) {
        if (!(set >> active & 1u)) continue;
        route_phase phase{active, size - 1, size == 1, !use_all || set == full, {}, {}};
        const unsigned before = set & ~(1u << active);
        for (int last = 0; last < k; ++last)
          if (before >> last & 1u) {
            phase.from.push_back(index[before * static_cast<unsigned>(k) + static_cast<unsigned>(last)]);
            phase.done.push_back(last);
          }
        index[set * static_cast<unsigned>(k) + static_cast<unsigned>(active)] = static_cast<int>(phases.size());
        phases.push_back(phase);
      }
    }
  return phases;
}

}  // namespace detail
}  // namespace hetsched
