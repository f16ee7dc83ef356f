// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/planners/interop_dp/problem.hpp>

namespace hetsched::detail {

/// Stages in a row on one subcluster with one placement.
struct hetauto_part {
  int subcluster = 0;
  int stages = 0;      ///< 0: not decided
  int placement = -1;  ///< of each; -1: not decided
  friend constexpr bool operator==(const hetauto_part&, const hetauto_part&) = default;
};

/// Calls visit(parts) for chains of parts that differ little from these, of one part a subcluster: one stage more or less, of one
/// part or of two against each other; another placement, on as many devices; two parts exchanged; a part left out, or one put in.
/// Chains that take more devices than there are, or fewer where all are to be used, are left out.
/// Complexity: O(K (K + P)) calls for K subclusters and P placements.
template <class Visit>
void for_each_neighbour(const interop_problem& problem, const std::vector<hetauto_part>& from, bool use_all, Visit visit) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  const auto width = [&](int placement) { return problem.placements[at(placement)].devices; };
  auto parts = from;
  const auto offer = [&] {
    int stages = 0;
    for (const auto& p : parts) {
      const int taken = p.stages * width(p.placement), there = problem.devices[at(p.subcluster)];
      if (p.stages < 1 || taken > there || (use_all && taken < there)) return;
      stages += p.stages;
    }
    if (stages <= problem.layers && (!use_all || parts.size() == problem.devices.size())) visit(std::as_const(parts));
  };
  // The part with each placement of its subcluster, on about as many devices, on all, and in as many stages.
  const auto replace = [&](std::size_t i, int devices, int stages) {
    const int k = parts[i].subcluster;
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      if (placed.subcluster != k || placed.dominated) continue;
      parts[i].placement = static_cast<int>(p);
      int before = 0, earlier = 0;
      for (const int n : {(devices + placed.devices / 2) / placed.devices, problem.devices[at(k)] / placed.devices, stages}) {
        if (n == before || n == earlier ||
            (i < from.size() && from.size() == parts.size() && n == from[i].stages && parts[i].placement == from[i].placement))
          continue;
        earlier = std::exchange(before, n);
        parts[i].stages = n;
        offer();
      }
    }
  };
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (const int more : {1, -1}) {
      parts[i].stages += more;
      offer();
      for (std::size_t j = 0; j < from.size(); ++j) {
        if (j == i) continue;
        parts[j].stages -= more;
        offer();
        parts[j].stages += more;
      }
      parts[i].stages -= more;
    }
    replace(i, from[i].stages * width(from[i].placement), from[i].stages);
    parts = from;
    for (std::size_t j = i + 1; j < from.size(); ++j) {
      std::swap(parts[i], parts[j]);
      offer();
      std::swap(parts[i], parts[j]);
    }
    if (from.size() == 1) continue;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
    offer();
    parts = from;
  }
  for (int k = 0; k < static_cast<int>(problem.devices.size()); ++k) {
    if (std::any_of(from.begin(), from.end(), [&](const auto& p) { return p.subcluster == k; })) continue;
    for (std::size_t i = 0; i <= from.size(); ++i) {
      parts = from;
      parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(i), hetauto_part{.subcluster = k});
      replace(i, problem.devices[at(k)] / 2, 1);
    }
  }
}

}  // namespace hetsched::detail
