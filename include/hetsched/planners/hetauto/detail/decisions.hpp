// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/hetauto/options.hpp>
#include <hetsched/planners/interop_dp/detail/chain_costs.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// HetAuto's decisions as a decision_problem, whose cost is the iteration that evaluate predicts: number of stages; then, part by
/// part, its subcluster, how many stages it has, and their placement; then the layers of each stage. A stage has whole layers and
/// lies on one subcluster. Subclusters may be left out, unless all devices are asked for. Under Virtual-1F1B, whose warm-ups the
/// parts tell, only pipelines that a closed form does not rule out are evaluated.
/// Source: HetAuto, section 4.1 and appendix B.3; there a subcluster's layers are decided before the next subcluster.
class hetauto_decisions {
 public:
  using state = part_chain;
  using action = int;

  hetauto_decisions(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem,
                    const stage_prices& table, const planning_problem& asked, schedule_id schedule, hetauto_principles principles)
      : hardware_(hardware),
        problem_(problem),
        table_(table),
        asked_(asked),
        principles_(principles),
        chains_(hardware, costs, problem, table, asked, schedule),
        placements_(problem.devices.size()),
        rates_(problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      const auto k = as_size(placed.subcluster);
      const int own = static_cast<int>(p);
      placements_[k].push_back(own);
      if (const double s = chains_.layer_s(own); s > 0) rates_[k] = std::max(rates_[k], problem.devices[k] / placed.devices / s);
    }
  }

  [[nodiscard]] state root() const { return {}; }

  [[nodiscard]] std::vector<action> actions(const state& from) const {
    if (from.stages == 0) return between(asked_.use_all_devices ? subclusters() : 1, std::min(problem_.layers, all_devices()));
    if (!from.parts.empty() && from.parts.back().stages == 0) return stage_counts(from);
    if (!from.parts.empty() && from.parts.back().placement < 0) return fitting(from);
    if (from.placed < from.stages) return next_subclusters(from);
    return leaves_devices(from) ? std::vector<action>{} : layer_counts(from);
  }

  [[nodiscard]] state apply(state from, action a) const {
    if (from.stages == 0) {
      from.stages = a;
    } else if (!from.parts.empty() && from.parts.back().stages == 0) {
      from.parts.back().stages = a;
      from.placed += a;
    } else if (!from.parts.empty() && from.parts.back().placement < 0) {
      from.parts.back().placement = a;
    } else if (from.placed < from.stages) {
      from.parts.push_back({.subcluster = a});
    } else {
      chains_.add_layers(from, a);
    }
    return from;
  }

  [[nodiscard]] bool finished(const state& from) const { return from.finished(); }
  [[nodiscard]] double cost(const state& from) const { return chains_.cost(from); }
  [[nodiscard]] double cost(const state& from, double enough) const { return chains_.cost(from, enough); }
  [[nodiscard]] double bound(const state& from) const { return chains_.bound(from); }
  [[nodiscard]] std::optional<plan> plan_of(const state& from) const { return chains_.plan_of(from); }

  /// By small changes that keep the principles; none where subclusters may return.
  [[nodiscard]] state improve(state from, double cost) const {
    return principles_.consecutive ? chains_.improve(std::move(from), cost, !principles_.uniform) : from;
  }
  [[nodiscard]] const chain_costs& chains() const { return chains_; }

  /// Decides the rest: subclusters mostly by falling memory of their devices, stages about as many as a subcluster can compute in
  /// the same time, fast placements mostly; and layers so that the slowest stage is as fast as it can be.
  [[nodiscard]] state play_out(state from, random_source& random) const {
    while (from.stages == 0 || from.placed < from.stages || from.parts.back().placement < 0) {
      const auto next = actions(from);
      if (next.empty()) return from;
      const auto chosen = next[drawn(from, next, random)];
      from = apply(std::move(from), chosen);
    }
    if (finished(from) || leaves_devices(from)) return from;
    chains_.balance(from, random.uniform() < 0.5);
    return from;
  }

 private:
  [[nodiscard]] int subclusters() const { return static_cast<int>(problem_.devices.size()); }
  [[nodiscard]] int all_devices() const { return hardware_.device_count(); }

  [[nodiscard]] static std::vector<action> between(int first, int last) {
    std::vector<action> all;
    for (int i = first; i <= last; ++i) all.push_back(i);
    return all;
  }

  [[nodiscard]] int spare(const state& from, int k) const {
    int left = at(problem_.devices, k);
    for (const auto& p : from.parts)
      if (p.subcluster == k && p.placement >= 0) left -= p.stages * at(problem_.placements, p.placement).devices;
    return left;
  }

  /// Whether devices have no stage, although all are to be used.
  [[nodiscard]] bool leaves_devices(const state& from) const {
    if (!from.layers.empty() || !asked_.use_all_devices) return false;
    for (int k = 0; k < subclusters(); ++k)
      if (spare(from, k) > 0) return true;
    return false;
  }

  /// Whether a part may lie on k, behind those that are decided.
  [[nodiscard]] bool may_follow(const state& from, int k) const {
    if (spare(from, k) == 0) return false;
    if (!from.parts.empty() && from.parts.back().subcluster == k) return !principles_.uniform;
    return !principles_.consecutive ||
           std::none_of(from.parts.begin(), from.parts.end(), [&](const auto& p) { return p.subcluster == k; });
  }

  [[nodiscard]] std::vector<action> next_subclusters(const state& from) const {
    std::vector<action> all;
    for (int k = 0; k < subclusters(); ++k)
      if (may_follow(from, k)) all.push_back(k);
    return all;
  }

  /// Those that leave stages and devices for the other subclusters.
  [[nodiscard]] std::vector<action> stage_counts(const state& from) const {
    const int own = from.parts.back().subcluster, left = from.stages - from.placed, devices = spare(from, own);
    int room = 0, others = 0;
    for (int k = 0; k < subclusters(); ++k)
      if (k == own ? !principles_.uniform || !principles_.consecutive : may_follow(from, k)) {
        room += spare(from, k);
        ++others;
      }
    const bool once = principles_.uniform && principles_.consecutive;
    return between(std::max(1, left - room), std::min(left - (asked_.use_all_devices && once ? others : 0), devices));
  }

  [[nodiscard]] std::vector<action> fitting(const state& from) const {
    const auto& own = from.parts.back();
    const int devices = spare(from, own.subcluster);
    const auto count = from.parts.size();
    const bool follows = count > 1 && from.parts[count - 2].subcluster == own.subcluster;
    const auto before =
        std::find_if(from.parts.begin(), from.parts.end() - 1, [&](const auto& p) { return p.subcluster == own.subcluster; });
    const bool returns = before != from.parts.end() - 1;
    const bool once = principles_.uniform && principles_.consecutive;
    std::vector<action> all;
    for (const int p : at(placements_, own.subcluster)) {
      if (principles_.uniform && returns && p != before->placement) continue;
      if (follows && p == from.parts[count - 2].placement) continue;  // they would be one part
      const int taken = own.stages * at(problem_.placements, p).devices;
      if (asked_.use_all_devices && once ? taken == devices : taken <= devices) all.push_back(p);
    }
    return all;
  }

  /// Whether a stage can hold its layers: at least as many microbatches as stages come behind, where warm-ups are known.
  [[nodiscard]] bool holds(const state& from, int p, int stage, int first, int last) const {
    const int in_flight = chains_.knows_warmups() ? std::min(asked_.microbatches, from.stages - stage) : 0;
    return table_.memory(p, first, last, in_flight) <= chains_.room(p);
  }

  [[nodiscard]] std::vector<action> layer_counts(const state& from) const {
    std::vector<action> all;
    const int stage = static_cast<int>(from.layers.size()), after = from.stages - stage - 1;
    const int p = chains_.part_of(from, stage).placement, first = from.layers_used, most = problem_.layers - first - after;
    for (int l = after == 0 ? most : 1; l <= most; ++l)
      if (holds(from, p, stage, first, first + l)) all.push_back(l);
    return all;
  }

  /// The position of an action that the policy draws.
  [[nodiscard]] std::size_t drawn(const state& from, const std::vector<action>& next, random_source& random) const {
    const auto any = [&] { return static_cast<std::size_t>(random.uniform() * static_cast<double>(next.size())); };
    const auto best_of = [&](auto worth) {
      std::size_t best = 0;
      double least = infinity;
      for (std::size_t i = 0; i < next.size(); ++i)
        if (const double w = worth(next[i]); w < least) {
          least = w;
          best = i;
        }
      return best;
    };
    if (from.stages == 0) return any();
    if (from.parts.empty() || from.parts.back().placement >= 0) {
      if (random.uniform() < 0.25) return any();
      return best_of([&](action k) { return -static_cast<double>(at(hardware_.subclusters, k).device.memory_bytes); });
    }
    const int k = from.parts.back().subcluster;
    if (from.parts.back().stages == 0) {
      double others = 0;  // layers per second
      for (int o = 0; o < subclusters(); ++o)
        if (o != k && may_follow(from, o)) others += at(rates_, o);
      const double left = from.stages - from.placed, shift = random.uniform(-1.5, 1.5);
      const double share = others > 0 ? at(rates_, k) / (at(rates_, k) + others) : 1;
      return best_of([&](action n) { return std::abs(n - left * share - shift); });
    }
    if (random.uniform() < 0.5) return best_of([&](action p) { return chains_.layer_s(p); });
    const auto one = any(), other = any();
    return chains_.layer_s(next[one]) < chains_.layer_s(next[other]) ? one : other;
  }

  const cluster& hardware_;
  const interop_problem& problem_;
  const stage_prices& table_;
  const planning_problem& asked_;
  hetauto_principles principles_;
  chain_costs chains_;
  std::vector<std::vector<int>> placements_;  // by subcluster
  std::vector<double> rates_;                 // by subcluster: layers per second, at the most
};

}  // namespace detail
}  // namespace hetsched
