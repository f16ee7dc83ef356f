// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/pack_devices.hpp>
#include <hetsched/plan/problem.hpp>

namespace hetsched::detail {

/// What HetAuto has decided so far.
struct hetauto_state {
  struct part {
    int subcluster = 0;
    int stages = 0;   // 0: not decided
    int choice = -1;  // placement of each; -1: not decided
  };
  int stages = 0;  // of the pipeline; 0: not decided
  std::vector<part> parts = {};
  std::vector<int> layers = {};  // by stage, as far as decided
  int layers_used = 0;
  double slowest_s = 0;  // stage so far, forward and backward of one microbatch
};

/// HetAuto's decisions as a decision_problem, whose cost is the iteration that evaluate predicts: number of stages; then, for
/// one subcluster after the other, which one it is, how many stages it has, their placement, and the layers of each. A stage has
/// whole layers, lies on one subcluster, and those of a subcluster are consecutive and have one placement. Subclusters may be
/// left out, unless all devices are asked for.
/// Costs of stages are asked once, at the start: O(placements * layers^2) questions.
/// Source: HetAuto, section 4.1 and appendix B.3.
template <stage_cost_model Costs>
class hetauto_decisions {
 public:
  using state = hetauto_state;
  using action = int;

  hetauto_decisions(const cluster& hardware, const Costs& costs, const planning_problem& problem, std::string schedule)
      : hardware_(hardware),
        costs_(costs),
        asked_(problem),
        schedule_(std::move(schedule)),
        layers_(cost_of::layer_count(costs)) {
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      auto& choices = choices_.emplace_back();
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
        for (const placement& where : cost_of::placements(costs, mesh)) {
          auto& c = choices.emplace_back(choice{where, stage_times(k, where)});
          for (int l = 0; l < layers_; ++l)
            c.layer_s += static_cast<double>(cost_of::stage(costs, layer_range{l, l + 1}, where).total_s()) / layers_;
        }
      double most = 0;
      for (const auto& c : choices)
        if (c.layer_s > 0) most = std::max(most, devices(static_cast<int>(k)) / c.where.mesh.device_count() / c.layer_s);
      rates_.push_back(most);
    }
  }

  [[nodiscard]] state root() const { return {}; }

  [[nodiscard]] std::vector<action> actions(const state& at) const {
    if (at.stages == 0) return between(asked_.use_all_devices ? subclusters() : 1, std::min(layers_, hardware_.device_count()));
    if (between_parts(at)) return free_subclusters(at);
    const auto& last = at.parts.back();
    if (last.stages == 0) return stage_counts(at);
    if (last.choice < 0) return fitting(last);
    return layer_counts(at);
  }

  [[nodiscard]] state apply(state at, action a) const {
    if (at.stages == 0) {
      at.stages = a;
    } else if (between_parts(at)) {
      at.parts.push_back({.subcluster = a});
    } else if (at.parts.back().stages == 0) {
      at.parts.back().stages = a;
    } else if (at.parts.back().choice < 0) {
      at.parts.back().choice = a;
    } else {
      at.slowest_s = std::max(at.slowest_s, seconds(at.parts.back(), at.layers_used, a));
      at.layers.push_back(a);
      at.layers_used += a;
    }
    return at;
  }

  [[nodiscard]] bool finished(const state& at) const { return at.stages > 0 && static_cast<int>(at.layers.size()) == at.stages; }

  /// Seconds; infinite if memory or links are short.
  [[nodiscard]] double cost(const state& at) const {
    const auto judged = judge(at);
    return judged && judged->shortage.empty() ? judged->plan.predicted.iteration_s : std::numeric_limits<double>::infinity();
  }

  /// A stage computes all microbatches, one after the other.
  [[nodiscard]] double bound(const state& at) const { return at.slowest_s * asked_.microbatches * (1 - 1e-9); }

  /// A balanced pipeline: subclusters by falling memory of their devices; stages by how many layers a subcluster can compute in
  /// the same time; the fastest placement for so many; and layers such that all stages that are left take as long.
  [[nodiscard]] std::size_t rollout(const state& at, const std::vector<action>& next) const {
    if (at.stages == 0) return std::numeric_limits<std::size_t>::max();
    if (between_parts(at))
      return best_of(next, [&](action k) { return -static_cast<double>(subcluster(k).device.memory_bytes); });
    const auto& last = at.parts.back();
    double others = 0;  // layers per second
    for (const int k : free_subclusters(at)) others += rates_[static_cast<std::size_t>(k)];
    const int stages_left = at.stages - static_cast<int>(at.layers.size()), layers_left = layers_ - at.layers_used;
    if (last.stages == 0) {
      const double own = rates_[static_cast<std::size_t>(last.subcluster)];
      return best_of(next, [&](action n) { return std::abs(n - stages_left * own / (own + others)); });
    }
    if (last.choice < 0)
      return best_of(next, [&](action c) {
        return choices_[static_cast<std::size_t>(last.subcluster)][static_cast<std::size_t>(c)].layer_s;
      });
    int behind = last.stages;  // stages of this subcluster that have layers already
    for (const auto& p : at.parts) behind -= p.stages;
    behind += static_cast<int>(at.layers.size());
    const double each = choice_of(last).layer_s, period = layers_left / ((last.stages - behind) / each + others);
    return best_of(next, [&](action n) { return std::abs(seconds(last, at.layers_used, n) - period); });
  }

  /// The plan, as evaluate fills it in.
  /// Requires: finished(at).
  [[nodiscard]] outcome<evaluation> judge(const state& at) const {
    plan p{.planner = "hetauto"};
    auto& line = p.pipelines.emplace_back();
    line.microbatches = asked_.microbatches;
    line.microbatch_size = asked_.microbatch_size;
    line.schedule.name = schedule_;
    std::vector<submesh> shapes;
    for (const auto& part : at.parts) {
      const auto& where = choice_of(part).where;
      for (int s = 0; s < part.stages; ++s) {
        const int first = line.stages.empty() ? 0 : line.stages.back().layers.last;
        line.stages.push_back({.layers = {first, first + at.layers[line.stages.size()]},
                               .degrees = where.degrees,
                               .recompute = where.recompute,
                               .zero = where.zero});
        shapes.push_back(where.mesh);
      }
    }
    const auto groups = pack_devices(hardware_, shapes);
    for (std::size_t i = 0; i < groups.size(); ++i) line.stages[i].devices = {groups[i]};
    return evaluate(hardware_, costs_, std::move(p),
                    {.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic});
  }

 private:
  struct choice {
    placement where;
    std::vector<double> seconds;  // [first][layers - 1]; infinite: the state alone is too large
    double layer_s = 0;           // on average
  };

  /// The position of the least worth.
  template <class Worth>
  [[nodiscard]] static std::size_t best_of(const std::vector<action>& actions, Worth worth) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (const double w = worth(actions[i]); w < least) {
        least = w;
        best = i;
      }
    return best;
  }

  [[nodiscard]] std::vector<double> stage_times(std::size_t subcluster, const placement& where) const {
    const auto n = static_cast<std::size_t>(layers_);
    std::vector<double> times(n * n, std::numeric_limits<double>::infinity());
    for (int first = 0; first < layers_; ++first)
      for (int last = first + 1; last <= layers_; ++last) {
        const stage_cost c = cost_of::stage(costs_, layer_range{first, last}, where);
        if (c.weight_bytes > hardware_.subclusters[subcluster].device.memory_bytes) continue;
        times[static_cast<std::size_t>(first) * n + static_cast<std::size_t>(last - first - 1)] = c.total_s();
      }
    return times;
  }

  [[nodiscard]] const choice& choice_of(const state::part& p) const {
    return choices_[static_cast<std::size_t>(p.subcluster)][static_cast<std::size_t>(p.choice)];
  }
  [[nodiscard]] double seconds(const state::part& p, int first, int layers) const {
    return choice_of(p).seconds[static_cast<std::size_t>(first * layers_ + layers - 1)];
  }
  [[nodiscard]] int subclusters() const { return static_cast<int>(hardware_.subclusters.size()); }
  [[nodiscard]] const hetsched::subcluster& subcluster(int k) const { return hardware_.subclusters[static_cast<std::size_t>(k)]; }
  [[nodiscard]] int devices(int k) const { return subcluster(k).device_count(); }

  [[nodiscard]] static std::vector<action> between(int first, int last) {
    std::vector<action> all;
    for (int i = first; i <= last; ++i) all.push_back(i);
    return all;
  }

  /// Whether the subclusters so far are decided.
  [[nodiscard]] static bool between_parts(const state& at) {
    int decided = 0;
    for (const auto& p : at.parts) decided += p.stages;
    return at.parts.empty() || (at.parts.back().choice >= 0 && static_cast<int>(at.layers.size()) == decided);
  }

  [[nodiscard]] std::vector<action> free_subclusters(const state& at) const {
    std::vector<action> free;
    for (int k = 0; k < subclusters(); ++k)
      if (std::none_of(at.parts.begin(), at.parts.end(), [&](const auto& p) { return p.subcluster == k; })) free.push_back(k);
    return free;
  }

  /// Those that leave stages and devices for the other subclusters.
  [[nodiscard]] std::vector<action> stage_counts(const state& at) const {
    const auto free = free_subclusters(at);
    int room = 0;
    for (const int k : free) room += devices(k);
    const int left = at.stages - static_cast<int>(at.layers.size());
    const int kept = asked_.use_all_devices ? static_cast<int>(free.size()) : 0;
    return between(std::max(1, left - room), std::min(left - kept, devices(at.parts.back().subcluster)));
  }

  [[nodiscard]] std::vector<action> fitting(const state::part& p) const {
    std::vector<action> all;
    const auto& choices = choices_[static_cast<std::size_t>(p.subcluster)];
    for (std::size_t c = 0; c < choices.size(); ++c) {
      const int taken = p.stages * choices[c].where.mesh.device_count();
      if (asked_.use_all_devices ? taken == devices(p.subcluster) : taken <= devices(p.subcluster))
        all.push_back(static_cast<int>(c));
    }
    return all;
  }

  [[nodiscard]] std::vector<action> layer_counts(const state& at) const {
    std::vector<action> all;
    const int after = at.stages - static_cast<int>(at.layers.size()) - 1, most = layers_ - at.layers_used - after;
    for (int l = after == 0 ? most : 1; l <= most; ++l)
      if (seconds(at.parts.back(), at.layers_used, l) < std::numeric_limits<double>::infinity()) all.push_back(l);
    return all;
  }

  const cluster& hardware_;
  const Costs& costs_;
  const planning_problem& asked_;
  std::string schedule_;
  int layers_;
  std::vector<std::vector<choice>> choices_;  // by subcluster
  std::vector<double> rates_;                 // likewise: layers per second, at the most
};

}  // namespace hetsched::detail
