// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/hexiscale/detail/machine_costs.hpp>
#include <hetsched/planners/hexiscale/detail/set_order.hpp>
#include <hetsched/planners/hexiscale/device_graph.hpp>
#include <hetsched/planners/hexiscale/hand_out.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched::detail {

/// A stage of a group's pipeline.
struct line_stage {
  std::size_t part = 0;  // of the group
  int choice = 0;
  layer_range layers;
  int warmup = 1;
};

/// A group's pipeline; its pace is an estimate without updates.
struct group_line {
  std::vector<line_stage> stages;
  line_pace pace;
};

struct line_request {
  int microbatches = 1;
  bool use_all = false;
  bool serial_transfers = false;  // a stage waits for what it sends on and gets back
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;
  function_ref<bool()> go_on = {};  // asked now and then; false ends the search with what it has found
};

/// Makes pipelines of groups of devices.
class line_builder {
 public:
  line_builder(const machine_costs& costs, const line_request& asked) : costs_(costs), asked_(asked) {}

  /// The best pipeline found through parts in one of these orders: stage sizes by part, layers by speed and memory.
  /// Returns: none where no stages hold the model.
  [[nodiscard]] std::optional<group_line> best_of(const std::vector<machine_part>& parts,
                                                  const std::vector<std::vector<std::size_t>>& orders) {
    std::optional<group_line> best;
    kind_sizes sizes;
    for (const auto& p : parts) sizes[{p.subcluster, p.devices}] = 0;
    for (const auto& order : orders) {
      if (best) {
        consider(parts, order, sizes, best);
        continue;
      }
      // Stage sizes: what suits each part by itself, or one size for all; then of one kind of part after the other.
      kind_sizes tried = sizes;
      const auto try_sizes = [&] {
        if (consider(parts, order, tried, best)) sizes = tried;
      };
      for (auto& [kind, size] : tried) size = own_size(kind.first, kind.second);
      try_sizes();
      int largest = 1;
      for (const auto& [kind, size] : tried) largest = std::max(largest, kind.second);
      for (int all = 1; all <= largest; all *= 2) {
        for (auto& [kind, size] : tried) size = largest_size(kind.first, std::min(all, kind.second));
        try_sizes();
      }
      if (!best) continue;
      for (const auto& [kind, size] : kind_sizes(sizes))
        for (const auto& other : costs_.sizes(kind.first)) {
          if (other.devices > kind.second || other.devices == size) continue;
          tried = sizes;
          tried[kind] = other.devices;
          try_sizes();
        }
    }
    return best;
  }

 private:
  using kind_sizes = std::map<std::pair<int, int>, int>;  // by subcluster and devices of a part: devices of its stages
  struct station {
    std::size_t part = 0;
    int subcluster = 0;
    const std::vector<int>* choices = nullptr;
  };

  bool consider(const std::vector<machine_part>& parts, const std::vector<std::size_t>& order, const kind_sizes& sizes,
                std::optional<group_line>& best) {
    if (asked_.go_on && !asked_.go_on()) return false;
    std::vector<station> stations;
    for (const auto p : order) {
      const auto [k, node, devices] = parts[p];
      int left = devices;
      for (int size = sizes.at({k, devices}); size > 0 && left > 0; size = largest_size(k, std::min(size - 1, left)))
        for (; left >= size; left -= size) stations.push_back({p, k, &choices_of(k, size)});
      if (left > 0 && asked_.use_all) return false;
    }
    const double beat_s = best ? best->pace.end_s(asked_.microbatches) : infinity;
    auto found = solve(stations, beat_s);
    if (!found || found->pace.end_s(asked_.microbatches) >= beat_s) return false;
    best = std::move(found);
    return true;
  }

  /// The largest stage size of at most so many devices; 0 if there is none.
  [[nodiscard]] int largest_size(int subcluster, int most) const {
    int found = 0;
    for (const auto& s : costs_.sizes(subcluster))
      if (s.devices <= most) found = s.devices;
    return found;
  }
  [[nodiscard]] const std::vector<int>& choices_of(int subcluster, int size) const {
    const auto& all = costs_.sizes(subcluster);
    return std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.devices == size; })->choices;
  }

  /// The stage size that a part of so many devices would take alone: a layer passes one stage, and each stage has its share of
  /// the layers in every period.
  [[nodiscard]] int own_size(int subcluster, int devices) const {
    int best = 0;
    double least = infinity;
    for (const auto& s : costs_.sizes(subcluster)) {
      if (s.devices > devices) continue;
      double fastest = infinity;
      for (const int c : s.choices) {
        stage_cost one;
        costs_.grow(c, 0, 1, one);
        if (costs_.layers() > 2) {
          one = {};
          costs_.grow(c, costs_.layers() / 2, costs_.layers() / 2 + 1, one);
        }
        fastest = std::min(fastest, one.total_s());
      }
      const double seconds = fastest * (1 + (asked_.microbatches - 1) * static_cast<double>(s.devices) / devices);
      if (seconds < least) least = seconds, best = s.devices;
    }
    return best;
  }

  /// The shortest period that the stations can keep, to half a percent, and somewhat longer ones. None if it cannot end before
  /// `beat_s`.
  [[nodiscard]] std::optional<group_line> solve(const std::vector<station>& stations, double beat_s) {
    // The period if every station had its share of the work.
    double rate = 0, shortest_whole = infinity;
    for (const auto& s : stations) {
      double whole = infinity;
      for (const int c : *s.choices) whole = std::min(whole, costs_[c].whole_s);
      rate += 1 / whole;
      shortest_whole = std::min(shortest_whole, whole);
    }
    double low = 0.999 / rate;
    if (line_pace{shortest_whole, low}.end_s(asked_.microbatches) >= beat_s) return std::nullopt;
    auto best = fill(stations, infinity);
    if (!best) return best;
    const auto try_period = [&](double period) {
      const auto found = fill(stations, period);
      if (!found) return infinity;
      if (found->pace.end_s(asked_.microbatches) < best->pace.end_s(asked_.microbatches)) best = found;
      return std::min(period, found->pace.period_s);
    };
    double high = best->pace.period_s;
    for (int step = 0; step < 40 && high > low * 1.005; ++step) {
      // The first steps look near the bound.
      const double middle = step == 0 ? std::min(1.1 * low, (low + high) / 2) : (low + high) / 2;
      const double kept = try_period(middle);
      if (kept <= middle)
        high = kept;
      else
        low = middle;
    }
    for (const double longer : {1.05, 1.15, 1.3}) try_period(high * longer);
    return best;
  }

  [[nodiscard]] warmup_step step_before(const warmup_step& next, double compute, const transfer_cost* over, double period) const {
    if (asked_.warmup == warmup_rule::exact)
      return period < infinity ? unchecked::exact_step(compute, over ? over->round_trip_s() : 0, period, next.carry)
                               : warmup_step{1, 0};
    if (!over) return {1, 0};
    const int more = asked_.warmup == warmup_rule::one_f_one_b ? 1
                     : asked_.warmup == warmup_rule::eager     ? 2
                                                           : unchecked::h1f1b_step(over->slower_way_s(), period, asked_.epsilon);
    return {next.warmup + more, 0};
  }

  struct taken {
    int choice = -1, first = 0;
    double seconds = 0;
    warmup_step step{};
    const transfer_cost* over = nullptr;  // to the next stage
  };

  /// The most layers before `end`, not before `first_allowed`, that a station may take in a period, and the choice that takes
  /// them in the least time. `next`: the stage behind it, or null, with its warm-up `behind`.
  [[nodiscard]] taken most_layers(const station& here, const line_stage* next, const warmup_step& behind, int end,
                                  int first_allowed, double period) const {
    taken best{.first = end};
    for (const int c : *here.choices) {
      const transfer_cost* over = nullptr;
      if (next) {
        over = &costs_.transfer(end, c, next->choice, next->part == here.part ? proximity::same_node : proximity::other_node);
        if (!(over->slower_way_s() < longest_time_s) || over->slower_way_s() > period) continue;
      }
      const auto& choice = costs_[c];
      const double room = choice.room - (over ? 2 * static_cast<double>(over->extra_bytes) : 0.0);
      const double waits = over && asked_.serial_transfers ? over->round_trip_s() : 0;
      // It cannot take the best one's layers in time, or no more than these and no faster.
      if (const double least = costs_.least_s(c, best.first, end);
          least + waits > period || (best.choice >= 0 && best.first == first_allowed && least >= best.seconds))
        continue;
      stage_cost cost;
      for (int l = end - 1; l >= first_allowed; --l) {
        costs_.grow(c, l, end, cost);
        if (cost.total_s() + waits > period) break;
        const auto step = step_before(behind, cost.total_s(), over, period);
        const double held = static_cast<double>(cost.activation_bytes) * std::min(step.warmup, asked_.microbatches);
        if (static_cast<double>(cost.weight_bytes) + (static_cast<double>(cost.temporary_bytes) + held) * choice.scale > room)
          break;
        if (l < best.first || (l == best.first && cost.total_s() < best.seconds)) best = {c, l, cost.total_s(), step, over};
      }
    }
    return best;
  }

  /// From the last station to the first, each takes all layers that the period and its memory allow.
  [[nodiscard]] std::optional<group_line> fill(const std::vector<station>& stations, double period) {
    group_line line;
    int end = costs_.layers();
    warmup_step behind;
    std::vector<double> times, forth, back;
    double longest = 0;
    for (std::size_t i = stations.size(); i-- > 0 && end > 0;) {
      const auto& here = stations[i];
      const int first_allowed = asked_.use_all ? std::min(end - 1, static_cast<int>(i)) : 0;
      const auto best =
          most_layers(here, line.stages.empty() ? nullptr : &line.stages.back(), behind, end, first_allowed, period);
      if (best.choice < 0) {
        if (asked_.use_all) return std::nullopt;
        continue;
      }
      line.pace.latency_s += best.seconds + (best.over ? best.over->round_trip_s() : 0);
      times.push_back(best.seconds);
      longest = std::max(longest, best.seconds + (best.over ? best.over->round_trip_s() : 0));
      if (best.over) {
        forth.push_back(best.over->forward_s);
        back.push_back(best.over->backward_s);
      }
      line.stages.push_back({here.part, best.choice, {best.first, end}, best.step.warmup});
      behind = best.step;
      end = best.first;
    }
    if (end > 0 || (asked_.use_all && line.stages.size() < stations.size())) return std::nullopt;
    std::reverse(line.stages.begin(), line.stages.end());
    std::vector<int> counts;
    for (const auto& s : line.stages) counts.push_back(s.warmup);
    line.pace.period_s = hetsched::period({.forward_s = {times.rbegin(), times.rend()},
                                           .backward_s = std::vector<double>(times.size()),
                                           .transfer_s = {forth.rbegin(), forth.rend()},
                                           .gradient_transfer_s = {back.rbegin(), back.rend()}},
                                          counts);
    if (asked_.serial_transfers) line.pace.period_s = longest;
    return line;
  }

  const machine_costs& costs_;
  line_request asked_;
};

/// Orders of a group's parts, whose links are `links`: sets of parts, put in line along wide links.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> part_orders(const device_graph& links, const std::vector<int>& set_of,
                                                                       int sets, int top, std::size_t keep) {
  const auto count = as_size(sets);
  device_graph widths{std::vector<double>(count, 1.0), std::vector<double>(count * count)};
  std::vector<std::vector<std::size_t>> members(count);
  for (std::size_t p = 0; p < links.size(); ++p) at(members, set_of[p]).push_back(p);
  // Sets come in the order of their first parts.
  std::sort(members.begin(), members.end());
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < count; ++b)
      if (a != b && !members[a].empty() && !members[b].empty())
        widths.edges[a * count + b] = links.edge(members[a].back(), members[b].front());
  std::vector<std::vector<std::size_t>> orders;
  for (const auto& path : widest_paths(widths, top, keep, 2000)) {
    auto& order = orders.emplace_back();
    for (const auto set : path) order.insert(order.end(), members[set].begin(), members[set].end());
  }
  return orders;
}

}  // namespace hetsched::detail
