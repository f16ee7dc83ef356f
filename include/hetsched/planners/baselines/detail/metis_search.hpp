// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/baselines/detail/baseline_judge.hpp>
#include <hetsched/planners/baselines/detail/device_line.hpp>

namespace hetsched::detail {

/// Sizes of groups, one for each subcluster: all choices of those that there are placements for and that share it out; where
/// these are too many, up to one size the largest everywhere.
[[nodiscard]] inline std::vector<std::vector<int>> group_sizes(const baseline_judge& judge) {
  const auto& hardware = judge.hardware();
  std::vector<std::vector<int>> sizes(hardware.subclusters.size());
  for (const auto& p : judge.placed().placements) {
    auto& own = at(sizes, p.subcluster);
    const bool even = at(hardware.subclusters, p.subcluster).device_count() % p.devices == 0;
    if (even && (own.empty() || own.back() != p.devices)) own.push_back(p.devices);
  }
  constexpr double most = 4096;
  double choices = 1;
  int largest = 0;
  for (const auto& own : sizes) {
    if (own.empty()) return {};
    choices *= static_cast<double>(own.size());
    largest = std::max(largest, own.back());
  }
  std::vector<std::vector<int>> all;
  if (choices > most) {
    for (int size = 1; size <= largest; ++size) {
      std::vector<int> chosen;
      for (const auto& own : sizes) {
        const auto above = std::upper_bound(own.begin(), own.end(), size);
        chosen.push_back(above == own.begin() ? own.front() : *(above - 1));
      }
      if (all.empty() || all.back() != chosen) all.push_back(std::move(chosen));
    }
    return all;
  }
  all.emplace_back();
  for (const auto& own : sizes) {
    std::vector<std::vector<int>> longer;
    for (const auto& chosen : all)
      for (const int size : own) {
        longer.push_back(chosen);
        longer.back().push_back(size);
      }
    all = std::move(longer);
  }
  return all;
}

/// Cuts the layers such that each stage has about its share of the model, and one layer at least. `placements`: whose layers'
/// times the share is of, by stage; `speeds`: what shares are in proportion to.
[[nodiscard]] inline std::vector<int> cut_by_speed(const stage_prices& table, int layers, const std::vector<int>& placements,
                                                   const std::vector<double>& speeds) {
  const int stages = static_cast<int>(speeds.size());
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<int> cuts{0};
  double share = 0;
  for (int i = 0; i + 1 < stages; ++i) {
    const int p = at(placements, i);
    share += at(speeds, i) / all;
    const double whole = table.time(p, 0, layers);
    int best = cuts.back() + 1;
    double nearest = infinity;
    for (int l = best; l <= layers - (stages - 1 - i); ++l) {
      const double before = table.time(p, 0, l), off = std::abs(before - share * whole);
      if (off < nearest) {
        nearest = off;
        best = l;
      }
      if (table.additive() && before >= share * whole) break;  // further ones are further off
    }
    cuts.push_back(best);
  }
  cuts.push_back(layers);
  return cuts;
}

/// Looks at one choice of groups: cuts by speed, takes the fastest placements that hold the cut, and cuts again.
inline void balance_groups(baseline_judge& judge, const std::vector<device_group>& groups) {
  const int stages = static_cast<int>(groups.size()), layers = judge.placed().layers, microbatches = judge.asked().microbatches;
  const auto& table = judge.table();
  const auto fastest = [&](int i, layer_range range, bool in_memory) {
    int best = -1;
    for (const int p : judge.placements_on(at(groups, i).mesh)) {
      if (in_memory && !judge.fits(p, range, std::min(stages - i, microbatches))) continue;
      if (best < 0 || table.time(p, range.first, range.last) < table.time(best, range.first, range.last)) best = p;
    }
    return best;
  };
  const auto speed = [&](int p) { return 1 / std::max(table.time(p, 0, layers), 1e-300); };
  std::vector<int> placements;
  std::vector<double> speeds;
  for (int i = 0; i < stages; ++i) {
    const bool alike = i > 0 && at(groups, i).mesh == at(groups, i - 1).mesh;
    placements.push_back(alike ? placements.back() : fastest(i, {0, layers}, false));
    speeds.push_back(speed(placements.back()));
  }
  // Hardly any cut is better than one anywhere between layers, with all the memory that it wants.
  const double even_s = 1 / std::accumulate(speeds.begin(), speeds.end(), 0.0);
  if (judge.hopeless((stages - 1) * even_s, even_s, microbatches)) return;
  constexpr int rounds = 12;
  constexpr double less = 0.85;  // of its speed, for a group that has too many layers for its memory
  for (int round = 0; round < rounds; ++round) {
    const auto cuts = cut_by_speed(table, layers, placements, speeds);
    bool fits = true, changed = false;
    double before_s = 0;
    pipeline_plan line{.microbatches = microbatches};
    for (int i = 0; i < stages; ++i) {
      const layer_range range{at(cuts, i), at(cuts, i + 1)};
      const int p = fastest(i, range, true);
      if (p < 0) {
        fits = false;
        at(speeds, i) *= less;
        continue;
      }
      const double seconds = table.time(p, range.first, range.last);
      if (judge.hopeless(before_s, seconds, microbatches)) fits = false;
      before_s += seconds;
      line.stages.push_back(judge.stage(p, at(groups, i), range));
      if (p == at(placements, i)) continue;
      changed = true;
      at(speeds, i) *= speed(p) / speed(std::exchange(at(placements, i), p));
    }
    if (fits) judge.consider({line});
    if (line.stages.size() == groups.size() && !changed) return;
  }
}

[[nodiscard]] inline outcome<plan> metis_search(baseline_judge& judge) {
  const auto choices = group_sizes(judge);
  for (const auto& order : subcluster_orders(judge.hardware())) {
    const device_line line(judge.hardware(), order);
    for (const auto& sizes : choices) {
      if (!judge.go_on()) return judge.result();
      std::vector<device_group> groups;
      int first = 0;
      bool possible = true;
      for (const int k : order) {
        const int size = at(sizes, k);
        for (int n = at(judge.hardware().subclusters, k).device_count() / size; n > 0; --n, first += size) {
          const auto group = line.group(first, size);
          possible = possible && group && !judge.placements_on(group->mesh).empty();
          if (group) groups.push_back(*group);
        }
      }
      if (possible && static_cast<int>(groups.size()) <= judge.placed().layers) balance_groups(judge, groups);
    }
  }
  return judge.result();
}

}  // namespace hetsched::detail
