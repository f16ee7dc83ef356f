// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/chain_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/planners/interop_dp/detail/chain_neighbours.hpp>
#include <hetsched/planners/interop_dp/detail/judge.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/pack_devices.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// Stages in a row: parts, and the layers of each stage, as far as they are decided.
struct part_chain {
  int stages = 0;  // of the pipeline; 0: not decided
  int placed = 0;  // of these, in parts
  std::vector<chain_part> parts = {};
  std::vector<int> layers = {};  // by stage, as far as decided
  int layers_used = 0;
  double slowest_s = 0;  // stage so far, forward and backward of one microbatch
  [[nodiscard]] bool finished() const { return stages > 0 && static_cast<int>(layers.size()) == stages; }
};

/// A chain, and what it costs or is likely to cost.
struct priced_chain {
  double cost_s;
  part_chain what;
};

/// What chains of parts are worth under a schedule: evaluate's iteration, and a closed form that bounds it; how their stages get
/// layers; and which small changes make them better.
class chain_costs {
 public:
  /// All but the schedule outlive this.
  chain_costs(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
              const planning_problem& asked, schedule_id schedule)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        asked_(asked),
        schedule_(schedule),
        whole_backwards_(has_warmups(schedule_)),
        knows_warmups_(schedule_ == schedule_id::virtual_1f1b),
        exact_(schedule_ == schedule_id::exact_1f1b),
        judge_(hardware, costs, problem, table, warmup_algebra(warmup_rule::exact), asked) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      room_.push_back(placed.room + roundings);
      layer_s_.push_back(table.time(static_cast<int>(p), 0, problem.layers) / problem.layers);
    }
    const auto classes = as_size(problem.classes());
    for (std::size_t i = 0; i < classes * classes * as_size(problem.kinds); ++i) {
      ways_.push_back(problem.prices[i]);
      if (problem.near_prices.empty()) continue;
      const auto& near = problem.near_prices[i];
      auto& least = ways_.back();
      least = {std::max(least.slower_way, near.slower_way), std::min(least.round_trip, near.round_trip),
               std::min(least.occupied, near.occupied)};
    }
  }

  chain_costs(const chain_costs&) = delete;  // its judge refers to its own table
  chain_costs& operator=(const chain_costs&) = delete;

  /// Seconds; infinite if memory or links are short.
  [[nodiscard]] double cost(const part_chain& from) const {
    const auto made = plan_of(from);
    return made ? made->predicted.iteration_s : infinity;
  }

  /// The same, or a bound of it that is no less than `enough`.
  [[nodiscard]] double cost(const part_chain& from, double enough) const {
    const double least = floor(from);
    return least >= enough ? least : cost(from);
  }

  /// A stage computes all microbatches, one after the other.
  [[nodiscard]] double bound(const part_chain& from) const { return from.slowest_s * asked_.microbatches * safely; }

  /// Gives the stages that have none yet their layers, the slowest as fast as can be told by halving; the first or the last ones
  /// take as many as they can. Leaves the chain a dead end where memory is short, or where it costs `enough` or more.
  void balance(part_chain& from, bool from_the_front, double enough = infinity) const {
    auto open = open_stages(from);
    const int first_layer = from.layers_used;
    // The exact rule's warm-ups come from behind.
    const bool search_in_front = from_the_front && !exact_;
    double rate = 0, low = 0, high = 0;  // layers per second, if they were alike
    for (const auto& s : open) {
      high = std::max(high, table_.time(s.placement, first_layer, problem_.layers));
      rate += 1 / at(layer_s_, s.placement);
    }
    high = std::min(high, enough / asked_.microbatches);
    const double even = (problem_.layers - first_layer) / rate;
    std::vector<open_stage> kept;
    const auto try_period = [&](double period) {
      const auto slowest = filled(open, first_layer, period, search_in_front);
      if (slowest) kept = open;
      (slowest ? high : low) = slowest ? std::min(period, *slowest) : period;
      return slowest.has_value();
    };
    if (!(1.1 * even < high) || !try_period(1.1 * even)) {
      if (!try_period(high)) return;
    } else {
      low = 0.7 * even;
    }
    for (int i = 0; i < 10 && high - low > resolution * high; ++i) (void)try_period((low + high) / 2);
    if (from_the_front && exact_) {
      open = kept;
      if (filled(open, first_layer, high, true)) kept = open;
    }
    for (const auto& s : kept) add_layers(from, s.layers);
  }

  /// Gives the next stage its layers.
  void add_layers(part_chain& to, int layers) const {
    const int p = part_of(to, static_cast<int>(to.layers.size())).placement;
    to.slowest_s = std::max(to.slowest_s, table_.time(p, to.layers_used, to.layers_used + layers));
    to.layers.push_back(layers);
    to.layers_used += layers;
  }

  /// The part of a stage.
  [[nodiscard]] static const chain_part& part_of(const part_chain& of, int stage) {
    auto part = of.parts.begin();
    for (; stage >= part->stages; ++part) stage -= part->stages;
    return *part;
  }

  /// Bytes that a placement has for a stage's costs.
  [[nodiscard]] double room(int placement) const { return at(room_, placement); }
  /// A layer's seconds, on average.
  [[nodiscard]] double layer_s(int placement) const { return at(layer_s_, placement); }
  /// Whether a stage holds as many microbatches as stages come behind it.
  [[nodiscard]] bool knows_warmups() const { return knows_warmups_; }

  static constexpr int looks_when_better = 12;  ///< at a new best plan, and what it becomes

  /// The best chain found by small changes of this one, whose cost is `cost`; with unlike stages in a subcluster, too, if
  /// `unlike`.
  /// Requires: the parts of a subcluster follow each other.
  [[nodiscard]] part_chain improve(part_chain from, double cost, bool unlike, int looks = looks_when_better) const {
    return improve_any({{cost, std::move(from)}}, looks, near_best, unlike, [&] { return asked_.may_go_on(); }).what;
  }

  /// The same of several, and of what these become: `looks` times, the cheapest one that is not yet
  /// looked at is changed, also into chains that cost up to `worse` times as much as the best one, which may lead on.
  /// Requires: not known.empty(), all finished, and as improve. Ends early when go_on() is false.
  template <class GoOn>
  [[nodiscard]] priced_chain improve_any(std::vector<priced_chain> known, int looks, double worse, bool unlike,
                                         GoOn go_on) const {
    const auto cheaper = [](const priced_chain& a, const priced_chain& b) { return a.cost_s < b.cost_s; };
    std::vector<std::vector<chain_part>> looked_at;
    std::vector<priced_chain> judged = known;
    for (; looks > 0 && !known.empty() && go_on(); --looks) {
      const auto next = std::min_element(known.begin(), known.end(), cheaper);
      const auto from = std::move(*next);
      known.erase(next);
      if (std::find(looked_at.begin(), looked_at.end(), from.what.parts) != looked_at.end()) continue;
      looked_at.push_back(from.what.parts);
      double least = std::min_element(judged.begin(), judged.end(), cheaper)->cost_s;
      auto changes = changes_of(from.what, least * worse, unlike);
      for (std::size_t i = 0; i < changes.size() && i < judged_changes && asked_.may_go_on(); ++i) {
        auto& change = changes[i];
        if (std::any_of(judged.begin(), judged.end(),
                        [&](const auto& j) { return j.what.parts == change.what.parts && j.what.layers == change.what.layers; }))
          continue;
        change.cost_s = cost(change.what, least * worse);
        least = std::min(least, change.cost_s);
        judged.push_back(change);
        if (change.cost_s < least * worse) known.push_back(std::move(change));
      }
    }
    return *std::min_element(judged.begin(), judged.end(), cheaper);
  }

  /// How many looks improve and improve_any make in about `effort` times 10 ms on chains like this one; at least one.
  [[nodiscard]] int looks_within(double effort, const part_chain& like) const {
    const auto stages = static_cast<double>(like.stages);
    const auto neighbours = static_cast<double>(like.parts.size() * problem_.placements.size());
    return 1 + static_cast<int>(effort * std::min(2.5e4 / (neighbours * stages), 2e3 / (stages * asked_.microbatches)));
  }

  /// The parts of a chain of other microbatches, with layers balanced for these; not finished where they are not offered or do
  /// not fit.
  [[nodiscard]] part_chain like(const chain_costs& other, const part_chain& from) const {
    part_chain next{.stages = from.stages, .placed = from.placed, .parts = from.parts};
    for (auto& part : next.parts) {
      const auto& where = at(other.problem_.placements, part.placement).where;
      part.placement = placement_of(where);
      if (part.placement == static_cast<int>(problem_.placements.size())) return {};
    }
    balance(next, false);
    return next;
  }

  /// Stages of one placement each as a chain.
  [[nodiscard]] part_chain chain_of(const std::vector<interop_stage>& stages) const {
    const int count = static_cast<int>(stages.size());
    part_chain all{.stages = count, .placed = count};
    for (const auto& s : stages) {
      if (all.parts.empty() || all.parts.back().placement != s.placement)
        all.parts.push_back({at(problem_.placements, s.placement).subcluster, 0, s.placement});
      ++all.parts.back().stages;
      add_layers(all, s.layers.size());
    }
    return all;
  }

  [[nodiscard]] part_chain chain_of(const std::vector<stage_plan>& stages) const {
    std::vector<interop_stage> all;
    for (const auto& s : stages) all.push_back({placement_of(s.where()), s.layers});
    return chain_of(all);
  }

  /// Whether the parts of a subcluster follow each other.
  [[nodiscard]] static bool keeps_together(const part_chain& chain) {
    std::vector<int> left;
    for (std::size_t i = 1; i < chain.parts.size(); ++i) {
      if (chain.parts[i].subcluster == chain.parts[i - 1].subcluster) continue;
      left.push_back(chain.parts[i - 1].subcluster);
      if (std::find(left.begin(), left.end(), chain.parts[i].subcluster) != left.end()) return false;
    }
    return true;
  }

  /// The chain's stages.
  /// Requires: from.finished().
  [[nodiscard]] std::vector<interop_stage> stages_of(const part_chain& from) const {
    std::vector<interop_stage> stages;
    int first = 0;
    for (const auto& part : from.parts)
      for (int s = 0; s < part.stages; ++s) {
        const int last = first + from.layers[stages.size()];
        stages.push_back({part.placement, {first, last}});
        first = last;
      }
    return stages;
  }

  /// The plan, as evaluate fills it in; none if memory or links are short.
  /// Requires: from.finished().
  [[nodiscard]] std::optional<plan> plan_of(const part_chain& from) const {
    if (exact_) {
      const auto met = judge_.judge(stages_of(from));
      return met ? judge_.evaluated(*met, "hetauto", default_epsilon) : std::nullopt;
    }
    plan p{.planner = "hetauto"};
    auto& line = p.pipelines.emplace_back();
    line.microbatches = asked_.microbatches;
    line.microbatch_size = asked_.microbatch_size;
    line.schedule.name = name_of(schedule_);
    std::vector<submesh> shapes;
    for (const auto& part : from.parts) {
      const auto& where = at(problem_.placements, part.placement).where;
      for (int s = 0; s < part.stages; ++s) {
        const int first = line.stages.empty() ? 0 : line.stages.back().layers.last;
        line.stages.push_back({.layers = {first, first + from.layers[line.stages.size()]},
                               .degrees = where.degrees,
                               .recompute = where.recompute,
                               .zero = where.zero});
        shapes.push_back(where.mesh);
      }
    }
    const auto groups = pack_devices(hardware_, shapes);
    for (std::size_t i = 0; i < groups.size(); ++i) line.stages[i].devices = {groups[i]};
    auto judged =
        evaluate(hardware_, costs_, std::move(p), {.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic});
    if (!judged || !judged->shortage.empty()) return std::nullopt;
    return std::move(judged->plan);
  }

  /// Seconds that the iteration takes at least, infinite if memory is short. With the round trip R_i from stage i through all
  /// behind it, N_i microbatches in flight, f_i, b_i and t_i = f_i + b_i, the largest of
  ///   R_0 - R_i + max(R_i, N_i f_i + b_i) + (M - N_i - 1) t_i + max(R_i, f_i + N_i b_i)   stage i ends its first backward, is at
  ///                                                            work, and begins its last forward, with N_i backwards behind it;
  ///   R_0 + k R_i, k = floor((M - 1) / N_i)                    a forward waits for the backward N_i before;
  ///   R_0 + k (t_i + r_i + t_i+1), k = floor((M - N_i+1) / (N_i - N_i+1 + 1))    likewise between neighbours;
  ///   R_0 + (M - 1) x                                          x: a forward, a backward, or what a boundary is occupied for;
  /// and stages update when their last backward is done. Where the parts do not tell the warm-ups, makespan_lower_bound's terms;
  /// and where schedules may split backwards, the slowest stage's work.
  /// Requires: from.finished(). Complexity: O(stages).
  [[nodiscard]] double floor(const part_chain& from) const {
    if (!whole_backwards_) return bound(from);
    const double m = asked_.microbatches;
    double trip = 0, most = 0, steady = 0, tail = 0, updated = 0;
    struct {
      int placement = -1, subcluster = -1;
      double work = 0, in_flight = 0;
    } behind;
    int last = problem_.layers;
    auto stage = from.layers.size();
    for (auto part = from.parts.rbegin(); part != from.parts.rend(); ++part)
      for (int s = 0; s < part->stages; ++s) {
        const int first = last - from.layers[--stage], p = part->placement;
        const double work = table_.time(p, first, last), forward = table_.forward(p, first, last), backward = work - forward;
        double in_flight = 1;
        if (behind.placement >= 0) {
          const auto& way = way_between(p, behind.placement, last);
          in_flight = behind.in_flight + (behind.subcluster == part->subcluster ? 1 : 2);
          steady = std::max(steady, (m - 1) * way.occupied);
          if (knows_warmups_) {
            const double held = std::min(m, behind.in_flight), window = std::min(m, in_flight) - held + 1;
            steady = std::max(steady, std::floor((m - held) / window) * (work + way.round_trip + behind.work));
          }
          trip += way.round_trip;
          tail += way.slower_way;
        }
        trip += work;
        tail += backward;
        double own = m * work;
        if (knows_warmups_) {
          const double held = std::min(m, in_flight);
          if (table_.memory(p, first, last, held) > at(room_, p)) return infinity;
          own = m > held ? std::max(trip, held * forward + backward) + (m - held - 1) * work +
                               std::max(trip, forward + held * backward)
                         : trip + (m - 1) * std::max(forward, backward);
          steady = std::max(steady, std::floor((m - 1) / held) * trip);
        }
        steady = std::max(steady, (m - 1) * std::max(forward, backward));
        most = std::max(most, own - trip);
        const double update = costs_.update(layer_range{first, last}, at(problem_.placements, p).where);
        // The stage ends before the first one by the backwards and gradients in between.
        updated = std::max(updated, std::max(most, steady) + update + tail);
        behind = {p, part->subcluster, work, in_flight};
        last = first;
      }
    // A stage ends before the first one by the backwards and gradients in between, which `tail` counts to the end of the
    // pipeline.
    return (trip + std::max({most, steady, updated - tail})) * safely;
  }

 private:
  static constexpr double safely = 1 - tolerance::sums;  // of sums in another order than evaluate's
  static constexpr double roundings = 16;                // bytes, more than memory is rounded by
  // Of the small changes of a plan, those within this factor of the best are looked at, and so many of them are evaluated.
  static constexpr double near_best = 1.03;
  static constexpr std::size_t judged_changes = 64;
  static constexpr double resolution = 0.003;  // of the slowest stage, when layers are balanced

  // A stage that balance gives layers.
  struct open_stage {
    int placement = 0, in_flight = 0, layers = 0;
  };

  /// Gives one stage after the other, from the front or from behind, as many layers as it computes within a period and holds.
  struct filling {
    const chain_costs& of;
    double period = 0;
    bool in_front = false;
    int low = 0, high = 0;     // layers that are left
    double slowest = 0;        // of the stages that have some
    warmup_state behind = {};  // of the exact rule, where it comes from behind
    warmup_algebra exact_rule{warmup_rule::exact};

    /// Returns false if not even one layer fits. `next`: the stage behind it, null if that has no layers yet.
    [[nodiscard]] bool take(open_stage& s, const open_stage* next, int most) {
      const bool from_behind = of.exact_ && !in_front;
      int good = 0, bad = most + 1, step = 1;
      double longest = 0;
      warmup_state own, best;
      // Layers cost much the same, so the number that fits is near this guess.
      const double about = period / at(of.layer_s_, s.placement);
      int guess = about < most ? std::max(1, static_cast<int>(about)) : most;
      while (bad - good > 1) {
        const int n = guess;
        const int a = in_front ? low : high - n, b = in_front ? low + n : high;
        const double work = of.table_.time(s.placement, a, b);
        bool fits = work <= period && (!of.exact_ || (work < infinity && period > 0));  // no warm-ups for 0 / 0
        if (fits && from_behind) {
          (void)exact_rule.extend(work, next ? of.way_between(s.placement, next->placement, b) : transfer_price{}, behind, period,
                                  own);
          s.in_flight = std::min(own.warmup, of.asked_.microbatches);
        }
        fits = fits && of.table_.memory(s.placement, a, b, s.in_flight) <= at(of.room_, s.placement);
        if (fits) {
          best = own;
          longest = work;
        }
        (fits ? good : bad) = n;
        guess = good == 0 || bad > most ? (fits ? good + step : bad - step) : (good + bad) / 2;
        if (guess <= good || guess >= bad) guess = (good + bad) / 2;
        step *= 2;
      }
      if (good == 0) return false;
      slowest = std::max(slowest, longest);
      if (from_behind) {
        behind = best;
        s.in_flight = std::min(best.warmup, of.asked_.microbatches);
      }
      s.layers = good;
      (in_front ? low : high) += in_front ? good : -good;
      return true;
    }
  };

  /// The stages that have no layers yet, and how many microbatches they may hold.
  [[nodiscard]] std::vector<open_stage> open_stages(const part_chain& from) const {
    std::vector<open_stage> open;
    const int done = static_cast<int>(from.layers.size());
    int in_flight = 0;
    for (auto part = from.parts.rbegin(); part != from.parts.rend(); ++part)
      for (int s = 0; s < part->stages && static_cast<int>(open.size()) < from.stages - done; ++s) {
        in_flight += s == 0 && part != from.parts.rbegin() && (part - 1)->subcluster != part->subcluster ? 2 : 1;
        open.push_back({.placement = part->placement, .in_flight = std::min(in_flight, asked_.microbatches)});
      }
    std::reverse(open.begin(), open.end());
    return open;
  }

  /// Shares out the layers from `first_layer` on. Returns the slowest stage's seconds; none if some are left.
  [[nodiscard]] std::optional<double> filled(std::vector<open_stage>& open, int first_layer, double period, bool in_front) const {
    filling f{.of = *this, .period = period, .in_front = in_front, .low = first_layer, .high = problem_.layers};
    const int count = static_cast<int>(open.size());
    for (int i = 0; i < count; ++i) {
      const auto here = as_size(in_front ? i : count - 1 - i);
      const auto* next = !in_front && i > 0 ? &open[here + 1] : nullptr;
      if (!f.take(open[here], next, f.high - f.low - (count - 1 - i))) return std::nullopt;
    }
    return f.low == f.high ? std::optional(f.slowest) : std::nullopt;
  }

  /// Small changes of a chain, other layers of its stages among them, that are likely to cost less than `enough`, by what they
  /// are likely to cost.
  [[nodiscard]] std::vector<priced_chain> changes_of(const part_chain& from, double enough, bool unlike) const {
    std::vector<priced_chain> changes;
    const auto offer = [&](const std::vector<chain_part>& parts) {
      if (!asked_.may_go_on()) return;
      for (const bool from_the_front : {false, true}) {
        part_chain next{.parts = parts};
        for (const auto& p : parts) next.stages += p.stages;
        next.placed = next.stages;
        balance(next, from_the_front, enough);
        if (!next.finished()) continue;
        const double likely_s = estimate(next);
        if (!(likely_s < enough)) continue;
        enough = std::min(enough, likely_s * near_best);
        changes.push_back({likely_s, std::move(next)});
      }
    };
    offer(from.parts);
    for_each_neighbour(problem_, from.parts, asked_.use_all_devices, unlike, offer);
    std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.cost_s < b.cost_s; });
    return changes;
  }

  /// Seconds that the iteration is likely to take.
  [[nodiscard]] double estimate(const part_chain& from) const {
    if (!exact_) return floor(from);
    const auto met = judge_.judge(stages_of(from));
    return met ? met->objective_s : infinity;
  }

  /// As many as there are if there is none.
  [[nodiscard]] int placement_of(const placement& where) const {
    const auto& all = problem_.placements;
    return static_cast<int>(std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.where == where; }) - all.begin());
  }

  [[nodiscard]] const transfer_price& way_between(int p, int next, int cut) const {
    const int from = at(problem_.placements, p).transfer_class, to = at(problem_.placements, next).transfer_class;
    return at(ways_, (from * problem_.classes() + to) * problem_.kinds + problem_.kind_before(cut));
  }

  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  const planning_problem& asked_;
  schedule_id schedule_;
  bool whole_backwards_, knows_warmups_, exact_;
  plan_judge judge_;
  std::vector<double> room_;          // by placement, bytes for what a stage's costs take
  std::vector<double> layer_s_;       // by placement, on average
  std::vector<transfer_price> ways_;  // [from][to][kind of boundary], at the least
};

}  // namespace hetsched::detail
