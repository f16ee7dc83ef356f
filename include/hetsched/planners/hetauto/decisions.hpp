// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/pack_devices.hpp>
#include <hetsched/plan/problem.hpp>
#include <hetsched/planners/hetauto/neighbours.hpp>
#include <hetsched/planners/interop_dp/judge.hpp>
#include <hetsched/planners/interop_dp/problem.hpp>

namespace hetsched {

/// Which of HetAuto's principles hold. That stages have whole layers is what the cost model's layers say; that a stage lies on
/// one subcluster, what a plan can say.
struct hetauto_principles {
  bool consecutive = true;  ///< the stages of a subcluster follow each other
  bool uniform = true;      ///< those of a subcluster have one placement
};

namespace detail {

/// What HetAuto has decided so far.
struct hetauto_state {
  using part = hetauto_part;
  int stages = 0;  // of the pipeline; 0: not decided
  int placed = 0;  // of these, in parts
  std::vector<part> parts = {};
  std::vector<int> layers = {};  // by stage, as far as decided
  int layers_used = 0;
  double slowest_s = 0;  // stage so far, forward and backward of one microbatch
};

/// HetAuto's decisions as a decision_problem, whose cost is the iteration that evaluate predicts: number of stages; then, part by
/// part, its subcluster, how many stages it has, and their placement; then the layers of each stage. A stage has whole layers and
/// lies on one subcluster. Subclusters may be left out, unless all devices are asked for. Under Virtual-1F1B, whose warm-ups the
/// parts tell, only pipelines that a closed form does not rule out are evaluated.
/// Source: HetAuto, section 4.1 and appendix B.3; there a subcluster's layers are decided before the next subcluster.
template <class Table, stage_cost_model Costs>
class hetauto_decisions {
 public:
  using state = hetauto_state;
  using action = int;

  hetauto_decisions(const cluster& hardware, const Costs& costs, const interop_problem& problem, const Table& table,
                    const planning_problem& asked, std::string schedule, hetauto_principles principles)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        asked_(asked),
        schedule_(std::move(schedule)),
        principles_(principles),
        whole_backwards_(has_warmups(schedule_)),
        knows_warmups_(schedule_ == "virtual_1f1b"),
        exact_(schedule_ == schedule_name(warmup_rule::exact)),
        updates_(costs, problem),
        judge_(hardware, costs, problem, table, updates_, exact_algebra{}, warmup_rule::exact, asked),
        placements_(problem.devices.size()),
        rates_(problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& placed = problem.placements[p];
      const auto k = at(placed.subcluster);
      placements_[k].push_back(static_cast<int>(p));
      room_.push_back(room_within(static_cast<bytes_t>(placed.memory), cost_of::overheads(costs, placed.where)).room + roundings);
      layer_s_.push_back(table.time(static_cast<int>(p), 0, problem.layers) / problem.layers);
      if (layer_s_.back() > 0) rates_[k] = std::max(rates_[k], problem.devices[k] / placed.devices / layer_s_.back());
    }
    const auto classes = at(problem.classes());
    for (std::size_t i = 0; i < classes * classes * at(problem.kinds); ++i) {
      ways_.push_back(problem.prices[i]);
      if (problem.near_prices.empty()) continue;
      const auto& near = problem.near_prices[i];
      auto& least = ways_.back();
      least = {std::max(least.slower_way, near.slower_way), std::min(least.round_trip, near.round_trip),
               std::min(least.occupied, near.occupied)};
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
      const int p = part_of(from, static_cast<int>(from.layers.size())).placement;
      from.slowest_s = std::max(from.slowest_s, table_.time(p, from.layers_used, from.layers_used + a));
      from.layers.push_back(a);
      from.layers_used += a;
    }
    return from;
  }

  [[nodiscard]] bool finished(const state& from) const {
    return from.stages > 0 && static_cast<int>(from.layers.size()) == from.stages;
  }

  /// Seconds; infinite if memory or links are short.
  [[nodiscard]] double cost(const state& from) const {
    const auto made = plan_of(from);
    return made ? made->predicted.iteration_s : infinity;
  }

  /// The same, or a bound of it that is no less than `enough`.
  [[nodiscard]] double cost(const state& from, double enough) const {
    const double least = floor(from);
    return least >= enough ? least : cost(from);
  }

  /// A stage computes all microbatches, one after the other.
  [[nodiscard]] double bound(const state& from) const { return from.slowest_s * asked_.microbatches * safely; }

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
    balance(from, random.uniform() < 0.5);
    return from;
  }

  /// A state, and what it costs or is likely to cost.
  struct priced_state {
    double cost_s;
    state what;
  };

  /// The best state found by small changes of this one, whose cost is `cost`; this one where the principles are not all kept.
  [[nodiscard]] state improve(state from, double cost) const {
    if (!principles_.consecutive || !principles_.uniform) return from;
    return improve_any({{cost, std::move(from)}}, looks_when_better, near_best, [] { return true; }).what;
  }

  /// The best state found by small changes of several, and of what these become: `looks` times, the cheapest one that is not yet
  /// looked at is changed, also into states that cost up to `worse` times as much as the best one, which may lead on.
  /// Requires: not known.empty(), all finished. Ends early when go_on() is false.
  template <class GoOn>
  [[nodiscard]] priced_state improve_any(std::vector<priced_state> known, int looks, double worse, GoOn go_on) const {
    const auto cheaper = [](const priced_state& a, const priced_state& b) { return a.cost_s < b.cost_s; };
    std::vector<std::vector<hetauto_part>> looked_at;
    std::vector<priced_state> judged = known;
    for (; looks > 0 && !known.empty() && go_on(); --looks) {
      const auto next = std::min_element(known.begin(), known.end(), cheaper);
      const auto from = std::move(*next);
      known.erase(next);
      if (std::find(looked_at.begin(), looked_at.end(), from.what.parts) != looked_at.end()) continue;
      looked_at.push_back(from.what.parts);
      double least = std::min_element(judged.begin(), judged.end(), cheaper)->cost_s;
      auto changes = changes_of(from.what, least * worse);
      for (std::size_t i = 0; i < changes.size() && i < judged_changes; ++i) {
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

  /// The parts of a state of other microbatches, with layers balanced for these; not finished where they are not offered or do
  /// not fit.
  [[nodiscard]] state like(const hetauto_decisions& other, const state& from) const {
    state next{.stages = from.stages, .placed = from.placed, .parts = from.parts};
    for (auto& part : next.parts) {
      const auto& where = other.problem_.placements[at(part.placement)].where;
      part.placement = placement_of(where);
      if (part.placement == static_cast<int>(problem_.placements.size())) return {};
    }
    balance(next, false);
    return next;
  }

  /// What decides these stages.
  [[nodiscard]] state state_of(const std::vector<stage_plan>& stages) const {
    state all{.stages = static_cast<int>(stages.size()), .placed = static_cast<int>(stages.size())};
    for (const auto& s : stages) {
      const int p = placement_of(s.where());
      if (all.parts.empty() || all.parts.back().placement != p) all.parts.push_back({s.where().mesh.subcluster, 0, p});
      ++all.parts.back().stages;
      all.layers.push_back(s.layers.size());
      all.layers_used += s.layers.size();
    }
    return all;
  }

  /// The plan, as evaluate fills it in; none if memory or links are short.
  /// Requires: finished(from).
  [[nodiscard]] std::optional<plan> plan_of(const state& from) const {
    if (exact_) {
      const auto met = judge_.judge(stages_of(from));
      return met ? judge_.evaluated(*met, "hetauto", default_epsilon) : std::nullopt;
    }
    plan p{.planner = "hetauto"};
    auto& line = p.pipelines.emplace_back();
    line.microbatches = asked_.microbatches;
    line.microbatch_size = asked_.microbatch_size;
    line.schedule.name = schedule_;
    std::vector<submesh> shapes;
    for (const auto& part : from.parts) {
      const auto& where = problem_.placements[at(part.placement)].where;
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
  /// Requires: finished(from). Complexity: O(stages).
  [[nodiscard]] double floor(const state& from) const {
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
          if (table_.memory(p, first, last, held) > room_[at(p)]) return infinity;
          own = m > held ? std::max(trip, held * forward + backward) + (m - held - 1) * work +
                               std::max(trip, forward + held * backward)
                         : trip + (m - 1) * std::max(forward, backward);
          steady = std::max(steady, std::floor((m - 1) / held) * trip);
        }
        steady = std::max(steady, (m - 1) * std::max(forward, backward));
        most = std::max(most, own - trip);
        const double update =
            static_cast<double>(cost_of::update(costs_, layer_range{first, last}, problem_.placements[at(p)].where));
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
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr double safely = 1 - 1e-9;  // of sums in another order than evaluate's
  static constexpr double roundings = 16;     // bytes, more than memory is rounded by
  // Of the small changes of a plan, those within this factor of the best are looked at, and so many of them are evaluated.
  static constexpr double near_best = 1.03;
  static constexpr std::size_t judged_changes = 64;
  static constexpr int looks_when_better = 12;  // at a new best plan, and what it becomes
  static constexpr double resolution = 0.003;   // of the slowest stage, when layers are balanced

  [[nodiscard]] std::vector<interop_stage> stages_of(const state& from) const {
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

  /// Small changes of a state that are likely to cost less than `enough`, by what they are likely to cost.
  [[nodiscard]] std::vector<priced_state> changes_of(const state& from, double enough) const {
    std::vector<priced_state> changes;
    for_each_neighbour(problem_, from.parts, asked_.use_all_devices, [&](const std::vector<hetauto_part>& parts) {
      for (const bool from_the_front : {false, true}) {
        state next{.parts = parts};
        for (const auto& p : parts) next.stages += p.stages;
        next.placed = next.stages;
        balance(next, from_the_front, enough);
        if (!finished(next)) continue;
        const double likely_s = estimate(next);
        if (!(likely_s < enough)) continue;
        enough = std::min(enough, likely_s * near_best);
        changes.push_back({likely_s, std::move(next)});
      }
    });
    std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.cost_s < b.cost_s; });
    return changes;
  }

  /// Seconds that the iteration is likely to take.
  [[nodiscard]] double estimate(const state& from) const {
    if (!exact_) return floor(from);
    const auto met = judge_.judge(stages_of(from));
    return met ? met->objective_s : infinity;
  }

  /// As many as there are if there is none.
  [[nodiscard]] int placement_of(const placement& where) const {
    const auto& all = problem_.placements;
    return static_cast<int>(std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.where == where; }) - all.begin());
  }
  [[nodiscard]] static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int subclusters() const { return static_cast<int>(problem_.devices.size()); }
  [[nodiscard]] int all_devices() const { return hardware_.device_count(); }

  [[nodiscard]] const transfer_price& way_between(int p, int next, int cut) const {
    const int from = problem_.placements[at(p)].transfer_class, to = problem_.placements[at(next)].transfer_class;
    return ways_[at((from * problem_.classes() + to) * problem_.kinds + problem_.kind_before(cut))];
  }

  [[nodiscard]] static std::vector<action> between(int first, int last) {
    std::vector<action> all;
    for (int i = first; i <= last; ++i) all.push_back(i);
    return all;
  }

  [[nodiscard]] static const state::part& part_of(const state& from, int stage) {
    auto part = from.parts.begin();
    for (; stage >= part->stages; ++part) stage -= part->stages;
    return *part;
  }

  [[nodiscard]] int spare(const state& from, int k) const {
    int left = problem_.devices[at(k)];
    for (const auto& p : from.parts)
      if (p.subcluster == k && p.placement >= 0) left -= p.stages * problem_.placements[at(p.placement)].devices;
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
    for (const int p : placements_[at(own.subcluster)]) {
      if (principles_.uniform && returns && p != before->placement) continue;
      if (follows && p == from.parts[count - 2].placement) continue;  // they would be one part
      const int taken = own.stages * problem_.placements[at(p)].devices;
      if (asked_.use_all_devices && once ? taken == devices : taken <= devices) all.push_back(p);
    }
    return all;
  }

  /// Whether a stage can hold its layers: at least as many microbatches as stages come behind, where warm-ups are known.
  [[nodiscard]] bool holds(const state& from, int p, int stage, int first, int last) const {
    const int in_flight = knows_warmups_ ? std::min(asked_.microbatches, from.stages - stage) : 0;
    return table_.memory(p, first, last, in_flight) <= room_[at(p)];
  }

  [[nodiscard]] std::vector<action> layer_counts(const state& from) const {
    std::vector<action> all;
    const int stage = static_cast<int>(from.layers.size()), after = from.stages - stage - 1;
    const int p = part_of(from, stage).placement, first = from.layers_used, most = problem_.layers - first - after;
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
      return best_of([&](action k) { return -static_cast<double>(hardware_.subclusters[at(k)].device.memory_bytes); });
    }
    const int k = from.parts.back().subcluster;
    if (from.parts.back().stages == 0) {
      double others = 0;  // layers per second
      for (int o = 0; o < subclusters(); ++o)
        if (o != k && may_follow(from, o)) others += rates_[at(o)];
      const double left = from.stages - from.placed, shift = random.uniform(-1.5, 1.5);
      const double share = others > 0 ? rates_[at(k)] / (rates_[at(k)] + others) : 1;
      return best_of([&](action n) { return std::abs(n - left * share - shift); });
    }
    if (random.uniform() < 0.5) return best_of([&](action p) { return layer_s_[at(p)]; });
    const auto one = any(), other = any();
    return layer_s_[at(next[one])] < layer_s_[at(next[other])] ? one : other;
  }

  /// Gives the stages that have none yet their layers, the slowest as fast as can be told by halving; the first or the last ones
  /// take as many as they can. Leaves the state a dead end where memory is short, or where it costs `enough` or more.
  void balance(state& from, bool from_the_front, double enough = infinity) const {
    struct open_stage {
      int placement = 0, in_flight = 0;
    };
    std::vector<open_stage> open;
    const int done = static_cast<int>(from.layers.size());
    int in_flight = 0;
    for (auto part = from.parts.rbegin(); part != from.parts.rend(); ++part)
      for (int s = 0; s < part->stages && static_cast<int>(open.size()) < from.stages - done; ++s) {
        in_flight += s == 0 && part != from.parts.rbegin() && (part - 1)->subcluster != part->subcluster ? 2 : 1;
        open.push_back({part->placement, std::min(in_flight, asked_.microbatches)});
      }
    std::reverse(open.begin(), open.end());
    const int count = static_cast<int>(open.size()), first_layer = from.layers_used;
    std::vector<int> taken(open.size()), kept;
    double slowest = 0;  // stage of those taken
    const auto fills = [&](double period, bool in_front) {
      int low = first_layer, high = problem_.layers;
      slowest = 0;
      exact_algebra::state behind;
      for (int i = 0; i < count; ++i) {
        const auto here = at(in_front ? i : count - 1 - i);
        auto& s = open[here];
        const int most = high - low - (count - 1 - i);
        int good = 0, bad = most + 1, step = 1;
        double longest = 0;
        exact_algebra::state own, best;
        // Layers are much alike: about so many fit, or a few more or less.
        const double about = period / layer_s_[at(s.placement)];
        int next = about < most ? std::max(1, static_cast<int>(about)) : most;
        while (bad - good > 1) {
          const int n = next;
          const int a = in_front ? low : high - n, b = in_front ? low + n : high;
          const double work = table_.time(s.placement, a, b);
          bool fits = work <= period && (!exact_ || (work < infinity && period > 0));  // no warm-ups for 0 / 0
          if (fits && exact_ && !in_front) {
            (void)exact_algebra::extend(work, i > 0 ? way_between(s.placement, open[here + 1].placement, b) : transfer_price{},
                                        behind, period, own);
            s.in_flight = std::min(own.warmup, asked_.microbatches);
          }
          fits = fits && table_.memory(s.placement, a, b, s.in_flight) <= room_[at(s.placement)];
          if (fits) {
            best = own;
            longest = work;
          }
          (fits ? good : bad) = n;
          next = good == 0 || bad > most ? (fits ? good + step : bad - step) : (good + bad) / 2;
          if (next <= good || next >= bad) next = (good + bad) / 2;
          step *= 2;
        }
        if (good == 0) return false;
        slowest = std::max(slowest, longest);
        if (exact_ && !in_front) {
          behind = best;
          s.in_flight = std::min(best.warmup, asked_.microbatches);
        }
        taken[here] = good;
        (in_front ? low : high) += in_front ? good : -good;
      }
      return low == high;
    };
    // The exact rule's warm-ups come from behind.
    const bool search_in_front = from_the_front && !exact_;
    double rate = 0, low = 0, high = 0;  // layers per second, if they were alike
    for (const auto& s : open) {
      high = std::max(high, table_.time(s.placement, first_layer, problem_.layers));
      rate += 1 / layer_s_[at(s.placement)];
    }
    high = std::min(high, enough / asked_.microbatches);
    const double even = (problem_.layers - first_layer) / rate;
    auto held = open;
    const auto try_period = [&](double period) {
      const bool filled = fills(period, search_in_front);
      if (filled) {
        kept = taken;
        held = open;
      }
      (filled ? high : low) = filled ? std::min(period, slowest) : period;
      return filled;
    };
    if (!(1.1 * even < high) || !try_period(1.1 * even)) {
      if (!try_period(high)) return;
    } else {
      low = 0.7 * even;
    }
    for (int i = 0; i < 10 && high - low > resolution * high; ++i) (void)try_period((low + high) / 2);
    if (from_the_front && exact_) {
      open = held;
      if (fills(high, true)) kept = taken;
    }
    for (const int l : kept) from = apply(std::move(from), l);
  }

  const cluster& hardware_;
  const Costs& costs_;
  const interop_problem& problem_;
  const Table& table_;
  const planning_problem& asked_;
  std::string schedule_;
  hetauto_principles principles_;
  bool whole_backwards_, knows_warmups_, exact_;
  update_table updates_;
  plan_judge<Table, exact_algebra, Costs> judge_;
  std::vector<std::vector<int>> placements_;  // by subcluster
  std::vector<double> rates_;                 // by subcluster: layers per second, at the most
  std::vector<double> room_;                  // by placement, bytes for what a stage's costs take
  std::vector<double> layer_s_;               // by placement, on average
  std::vector<transfer_price> ways_;          // [from][to][kind of boundary], at the least
};

}  // namespace detail
}  // namespace hetsched
