// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>

#include "../interop_dp/brute_force.hpp"
#include "../interop_dp/plan_checks.hpp"
#include "../interop_dp/random_instance.hpp"

namespace hetsched::test {

inline parallel_pipelines_options as_parallel(const interop_options& o) {
  return {.warmup = o.warmup, .epsilon = o.epsilon, .gap = 0};
}

inline brute_force_options as_brute(const instance& i) {
  return {.rule = i.options.warmup, .microbatches = i.problem.microbatches, .epsilon = i.options.epsilon};
}

inline std::vector<int> devices_of(const cluster& hardware) {
  std::vector<int> devices;
  for (const auto& s : hardware.subclusters) devices.push_back(s.device_count());
  return devices;
}

/// That a plan is evaluate's, uses no device twice, does all microbatches and fits.
template <class Costs>
void check(const instance& given, const Costs& costs, const plan& p) {
  REQUIRE(p.planner == "parallel_pipelines");
  REQUIRE(microbatch_count(p) == given.problem.microbatches);
  const auto again = evaluate(given.hardware, costs, p, {.epsilon = given.options.epsilon});
  REQUIRE(again);
  REQUIRE(again->shortage == "");
  REQUIRE(again->plan.predicted == p.predicted);
  REQUIRE(p.evidence);
  REQUIRE(p.objective == given.problem.objective);
  REQUIRE(p.evidence->objective_value == objective_of(p));
  REQUIRE(p.evidence->objective_bound <= objective_of(p));
  REQUIRE(p.predicted.iteration_s <= given.problem.deadline_s);
  std::set<std::pair<int, int>> used;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices)
        for (int d = 0; d < g.mesh.device_count(); ++d) REQUIRE(used.insert({g.mesh.subcluster, g.first_device + d}).second);
}

/// Reductions that take time: a price per layer and holder, dearer between subclusters.
template <class Costs>
struct with_reductions : Costs {
  double each_s = 0, across_s = 0;
  [[nodiscard]] reduction_cost gradient_sync(layer_range range, std::span<const placement> holders) const {
    if (holders.size() < 2) return {};
    bool across = false;
    for (const auto& h : holders) across = across || h.mesh.subcluster != holders.front().mesh.subcluster;
    const double n = static_cast<double>(holders.size());
    return {range.size() * (across ? across_s : each_s) * (n - 1) / n, range.size()};
  }
};

/// The least value(iteration, devices by subcluster) over all sets of pipelines whose reductions take time, by trying all of
/// them. `by_periods`: no stage is done before latency + (microbatches - 1) * period, less the backwards and gradients on their
/// way in front of it, which is what bounds speak of. Requires: a value that grows with both.
template <class Costs>
double all_sets(const instance& given, const Costs& costs, const std::function<double(double, const std::vector<int>&)>& value,
                bool by_periods = false) {
  struct line {
    bare_plan times;
    std::vector<int> used;
    std::vector<placement> where;
    std::vector<layer_range> layers;
  };
  std::vector<line> lines;
  const int layers = cost_of::layer_count(costs);
  // All pipelines, by cuts and placements.
  std::vector<placement> places;
  for (std::size_t k = 0; k < given.hardware.subclusters.size(); ++k)
    for (const auto& mesh : submeshes(given.hardware.subclusters[k], static_cast<int>(k)))
      for (const auto& p : cost_of::placements(costs, mesh)) places.push_back(p);
  const auto room_of = [&](const placement& p) {
    return room(static_cast<double>(subcluster_of(given.hardware, p.mesh).device.memory_bytes), cost_of::overheads(costs, p));
  };
  const auto devices = devices_of(given.hardware);
  line now;
  now.used.assign(devices.size(), 0);
  std::vector<int> visited;
  const std::function<void(int)> grow = [&](int first) {
    if (first == layers) {
      lines.push_back(now);
      return;
    }
    for (const auto& p : places) {
      const auto k = static_cast<std::size_t>(p.mesh.subcluster);
      const bool enters = visited.empty() || visited.back() != p.mesh.subcluster;
      if (enters && std::find(visited.begin(), visited.end(), p.mesh.subcluster) != visited.end()) continue;
      if (now.used[k] + p.mesh.device_count() > devices[k]) continue;
      const auto before = now;
      if (enters) visited.push_back(p.mesh.subcluster);
      if (first > 0) now.times.transfer.push_back(cost_of::transfer(costs, first - 1, now.where.back(), p));
      now.used[k] += p.mesh.device_count();
      now.where.push_back(p);
      const auto entered = now;
      for (int last = first + 1; last <= layers; ++last) {
        const auto c = cost_of::stage(costs, {first, last}, p);
        const int cap = room_of(p).cap(c, given.problem.microbatches);
        if (cap < 1) continue;
        now.times.compute.push_back(c.total_s());
        now.times.forward.push_back(c.forward_s);
        now.times.update.push_back(cost_of::update(costs, layer_range{first, last}, p));
        now.times.caps.push_back(cap);
        now.layers.push_back({first, last});
        if (now.times.slowest() < never) grow(last);
        now = entered;
      }
      now = before;
      if (enters) visited.pop_back();
    }
  };
  grow(0);

  // Ends of the stages of each, by microbatches.
  const auto ends = [&](const line& l, int m) -> std::vector<double> {
    const auto period = least_period_of(given.options.warmup, l.times, m, given.options.epsilon);
    if (!period) return {};
    auto counts = counts_at(given.options.warmup, l.times, *period, given.options.epsilon);
    pipeline bare;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = std::min(counts[i], m);
      bare.forward_s.push_back(l.times.forward[i]);
      bare.backward_s.push_back(l.times.compute[i] - l.times.forward[i]);
      if (i + 1 == counts.size()) break;
      bare.transfer_s.push_back(l.times.transfer[i].forward_s);
      bare.gradient_transfer_s.push_back(l.times.transfer[i].backward_s);
    }
    auto found = stage_ends(bare, counts, m);
    if (!by_periods) return found;
    double left = (m - 1) * *period;
    for (int i = 0; i < bare.stages(); ++i) left += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
    for (int i = 0; i < bare.stages(); ++i) {
      auto& own = found[static_cast<std::size_t>(i)];
      own = std::max(own, left);
      left -= bare.backward_s[static_cast<std::size_t>(i)] + (i + 1 < bare.stages() ? bare.slower_way_s(i) : 0.0);
    }
    return found;
  };
  auto left = devices;
  double best = never;
  std::vector<std::pair<const line*, std::vector<double>>> set;
  const auto judge = [&] {
    // From the last layer to the first: a reduction begins when all that hold the layers are free.
    std::vector<std::size_t> at;
    for (const auto& [l, free] : set) at.push_back(l->layers.size() - 1);
    auto free = set;
    for (int last = layers; set.size() > 1 && last > 0;) {
      int first = 0;
      double start = 0;
      std::vector<placement> holders;
      for (std::size_t i = 0; i < set.size(); ++i) {
        first = std::max(first, set[i].first->layers[at[i]].first);
        start = std::max(start, free[i].second[at[i]]);
        holders.push_back(set[i].first->where[at[i]]);
      }
      const double end = start + cost_of::gradient_sync(costs, layer_range{first, last}, holders).seconds;
      for (std::size_t i = 0; i < set.size(); ++i) {
        free[i].second[at[i]] = end;
        if (set[i].first->layers[at[i]].first == first && first > 0) --at[i];
      }
      last = first;
    }
    double done = 0;
    for (const auto& [l, own] : free)
      for (std::size_t i = 0; i < own.size(); ++i) done = std::max(done, own[i] + l->times.update[i]);
    auto used = devices;
    for (std::size_t k = 0; k < left.size(); ++k) used[k] -= left[k];
    best = std::min(best, value(done, used));
  };
  const std::function<void(std::size_t, int)> add = [&](std::size_t from, int microbatches) {
    if (microbatches == 0) return judge();
    for (std::size_t i = from; i < lines.size(); ++i) {
      bool fits = true;
      for (std::size_t k = 0; k < left.size(); ++k) fits = fits && lines[i].used[k] <= left[k];
      if (!fits) continue;
      for (std::size_t k = 0; k < left.size(); ++k) left[k] -= lines[i].used[k];
      for (int own = 1; own <= microbatches; ++own) {
        auto e = ends(lines[i], own);
        if (e.empty() || value(*std::max_element(e.begin(), e.end()) * (1 - 1e-9), lines[i].used) >= best) continue;
        set.push_back({&lines[i], std::move(e)});
        add(i, microbatches - own);
        set.pop_back();
      }
      for (std::size_t k = 0; k < left.size(); ++k) left[k] += lines[i].used[k];
    }
  };
  add(0, given.problem.microbatches);
  return best;
}

}  // namespace hetsched::test
