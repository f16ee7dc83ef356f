// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_exact_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/hetauto/detail/decisions.hpp>
#include <hetsched/planners/hetauto/detail/uniform_path.hpp>
#include <hetsched/planners/hetauto/options.hpp>
#include <hetsched/planners/interop_dp/detail/exhaust.hpp>
#include <hetsched/planners/interop_dp/detail/iteration_bound.hpp>
#include <hetsched/planners/interop_dp/detail/judge.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/search/problem.hpp>
#include <hetsched/search/tree_search.hpp>

namespace hetsched {

namespace detail {

/// The search of hetauto_exact: ranges of periods, bounded by the least latency, with updates, at their longest period; the one
/// of the least bound is halved. Small problems end with a look at all plans.
class uniform_planner {
 public:
  uniform_planner(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
                  warmup_algebra algebra, const planning_problem& asked, const hetauto_exact_options& options)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        algebra_(algebra),
        judge_(hardware, costs, problem, table, algebra, asked),
        asked_(asked),
        options_(options),
        steady_(asked.microbatches - 1),
        paths_(problem, table, algebra, asked.microbatches, asked.use_all_devices) {}

  [[nodiscard]] outcome<plan> run() {
    shortest_ = least_period_of_layers();
    separate();
    begin();
    // Of a plan that is worth a look, M - 1 periods are shorter than the best one's iteration.
    const bool any = best_ && steady_ > 0;
    const auto whole = look_at(shortest_, any ? goal() / steady_ : infinity, any ? goal() : infinity);
    if (!best_ && !stopped_ && !(whole.bound < infinity)) return no_such_pipeline();
    walk(whole);
    polish();
    improve();
    // Where much is left, exact programs hardly close it.
    if (limit_s() > bound_ * (1 + options_.gap)) prove(options_.effort * (limit_s() > bound_ * 1.01 ? 0.25 : 1));
    enumerate();
    if (!best_) return none();
    auto ask = [&] { return !stopped_ && asked_.may_go_on(); };
    const double proved = options_.prove ? least_iteration(problem_, table_, hardware_, costs_, asked_.microbatches, limit_s(),
                                                           options_.gap, ask, asked_.enough)
                                         : 0;
    best_->evidence = {.objective_value = best_s(),
                       .objective_bound = std::min(proved, best_s()),
                       .complete = options_.prove && limit_s() * (1 - options_.gap) <= proved * (1 + tolerance::sums),
                       .work = {{"periods", periods_}, {"ends", paths_.looked_at()}, {"plans", plans_}},
                       .sum_bound = counted_all_ ? limit_s() : bound_,
                       .rule = std::string(schedule_name(options_.warmup)),
                       .space = "one pipeline, on any devices in any order"};
    return *std::move(best_);
  }

 private:
  // One for each subcluster of a plan met, and the least objective with them.
  struct choice {
    double objective_s = 0;
    std::vector<int> placements;
  };
  // Periods from low to high, the least latency with updates that all of them have, and the least objective.
  struct range {
    double low = 0, high = 0, end = infinity, bound = infinity;
  };
  static bool later(const range& a, const range& b) { return a.bound > b.bound; }

  [[nodiscard]] double best_s() const { return best_ ? best_->predicted.iteration_s : infinity; }
  [[nodiscard]] double limit_s() const { return std::min(best_s(), asked_.beat); }
  /// What ranges have to beat: also the objectives of plans whose iteration is longer than that. Of what is known of other
  /// problems `hope` times as much: what is made of these plans in the end may be shorter than their sums by a third.
  [[nodiscard]] double goal() const { return std::min({best_s(), least_objective_, options_.hope * asked_.beat}); }
  [[nodiscard]] bool go_on() {
    stopped_ = stopped_ || !asked_.may_go_on();
    if (asked_.progress && !stopped_ && !asked_.progress({periods_, "periods", best_s(), std::min(bound_, best_s())}))
      stopped_ = true;
    return !stopped_;
  }

  // Some stage has the longest layer.
  [[nodiscard]] double least_period_of_layers() const {
    double longest = 0;
    for (int l = 0; l < problem_.layers; ++l) {
      double least = infinity;
      for (std::size_t p = 0; p < problem_.placements.size(); ++p)
        least = std::min(least, table_.time(static_cast<int>(p), l, l + 1));
      longest = std::max(longest, least);
    }
    return table_.additive() ? longest * (1 - tolerance::sums) : 0;
  }

  // Looks for the pipeline of the least end that keeps `high`, and returns what is left to look at between the two periods. Those
  // that have at least the objective of the plan found are not.
  [[nodiscard]] range look_at(double low, double high, double enough) {
    ++periods_;
    auto ask = [&] { return go_on(); };
    auto found = paths_.solve(high, enough, ask);
    if (!found.complete) return {low, high, 0, steady_ * low};
    if (!(found.end < infinity)) return {low, high, infinity, infinity};
    range left{low, high, found.end * (1 - tolerance::sums), found.end * (1 - tolerance::sums) + steady_ * low};
    if (found.stages.empty()) return left;
    if (const auto met = judge_.judge(std::move(found.stages), high)) {
      consider(*met);
      if (steady_ > 0) left.high = std::min(high, (met->objective_s - found.end) / steady_ * (1 - 1e-11));
    }
    return left;
  }

  void consider(const met_plan& candidate) {
    const auto chosen = placements_of(candidate.stages);
    const auto known = std::find_if(met_.begin(), met_.end(), [&](const auto& m) { return m.placements == chosen; });
    if (known == met_.end())
      met_.push_back({candidate.objective_s, chosen});
    else
      known->objective_s = std::min(known->objective_s, candidate.objective_s);
    if (candidate.objective_s > least_objective_ * (1 + options_.near_tie)) return;
    least_objective_ = std::min(least_objective_, candidate.objective_s);
    keep(judge_.evaluated(candidate, "hetauto_exact", options_.epsilon));
  }

  void keep(std::optional<plan> judged) {
    ++plans_;
    if (!judged) return;
    const double iteration_s = judged->predicted.iteration_s;
    if (algebra_.is_exact())
      if (iteration_s <= best_s() * (1 + options_.near_tie)) judged_.emplace_back(iteration_s, judged->pipelines.front().stages);
    if (iteration_s < best_s()) best_ = *std::move(judged);
  }

  [[nodiscard]] static std::vector<int> placements_of(const std::vector<interop_stage>& stages) {
    std::vector<int> all;
    for (const auto& s : stages)
      if (std::find(all.begin(), all.end(), s.placement) == all.end()) all.push_back(s.placement);
    std::sort(all.begin(), all.end());
    return all;
  }

  // The best placements met get the best cuts that interop_dp finds for them: evaluate's iteration and the objective may part by
  // some per cent, and a path remembers one pipeline of many.
  void polish() {
    std::stable_sort(met_.begin(), met_.end(), [](const auto& a, const auto& b) { return a.objective_s < b.objective_s; });
    auto part = problem_;
    auto asked = asked_;
    asked.enough = 0;  // these placements' own bound says nothing
    asked.beat = infinity;
    asked.progress = [&](const search_progress&) { return go_on(); };
    const interop_options options{.warmup = options_.warmup,
                                  .epsilon = options_.epsilon,
                                  .near_tie = options_.near_tie,
                                  .effort = 1,
                                  .enumeration = 0,
                                  .looks = 0,
                                  .prove = false};
    for (std::size_t i = 0; i < met_.size() && static_cast<int>(i) < options_.polished; ++i) {
      if (stopped_ || met_[i].objective_s > least_objective_ * (1 + options_.near_tie)) return;
      for (std::size_t p = 0; p < part.placements.size(); ++p) {
        const auto& chosen = met_[i].placements;
        auto& placed = part.placements[p];
        placed.barred = !std::binary_search(chosen.begin(), chosen.end(), static_cast<int>(p));
        placed.dominated = placed.barred;
      }
      auto found = one_pipeline_search(hardware_, costs_, part, table_, algebra_, asked, options);
      if (!found) continue;
      found->planner = "hetauto_exact";
      keep(*std::move(found));
    }
  }

  void keep_chain(const chain_costs& how, const part_chain& found) {
    auto made = how.plan_of(found);
    if (made) made->planner = "hetauto_exact";
    keep(std::move(made));
  }

  // A first plan: a short tree search's, or else interop_dp's.
  void begin() {
    if (algebra_.is_exact()) {
      const hetauto_decisions how(hardware_, costs_, problem_, table_, asked_, id_of(options_.warmup), {});
      // A rollout plays all microbatches, so it takes as long as there are many.
      const std::int64_t rollouts = std::clamp(100'000 / asked_.microbatches, 64, 1024);
      tree_search_options options{.rollouts = rollouts, .trees = 1, .exploration = 0.3, .greedy = 0.9, .improve = false};
      options.go_on = asked_.go_on;
      constexpr double effort = 10;  // a tenth of a second
      if (auto found = tree_search(how, options); found.best) {
        const int looks = std::min(chain_costs::looks_when_better, how.chains().looks_within(effort, *found.best));
        constexpr bool unlike = false;  // stages of a subcluster: how's principles
        keep_chain(how.chains(), how.chains().improve(*std::move(found.best), found.cost, unlike, looks));
      }
    }
    if (!best_) prove(options_.effort / 10);
  }

  // The best plans met are changed a little, and what they become: evaluate's iteration may part from the objective by some per
  // cent, to either side.
  void improve() {
    if (algebra_.is_exact()) {
      if (judged_.empty() || stopped_) return;
      const chain_costs how(hardware_, costs_, problem_, table_, asked_, id_of(options_.warmup));
      std::vector<priced_chain> known;
      for (const auto& [iteration_s, stages] : std::exchange(judged_, {})) known.push_back({iteration_s, how.chain_of(stages)});
      const auto ask = [&] { return go_on(); };
      keep_chain(how, how.improve_any(std::move(known), options_.looks, 1 + options_.near_tie, false, ask).what);
    }
  }

  // Halves the range of the least bound: its upper half keeps the end, its lower half gets one of its own.
  void walk(range whole) {
    bound_ = std::min(whole.bound, goal());
    if (steady_ == 0 || !(whole.bound < goal())) return;
    constexpr double narrow = 1 + 1e-7;
    double left = infinity;  // least bound of ranges that are too narrow to halve
    std::vector<range> open{whole};
    const auto add = [&](const range& r) {
      if (!(r.low < r.high) || !(r.bound < goal())) return;
      open.push_back(r);
      std::push_heap(open.begin(), open.end(), later);
    };
    const auto least = [&] { return std::min({left, open.empty() ? infinity : open.front().bound, goal()}); };
    for (; !open.empty() && least() * (1 + options_.gap) < goal() && open.front().bound < left && periods_ < options_.periods &&
           go_on();
         bound_ = std::max(bound_, least())) {
      std::pop_heap(open.begin(), open.end(), later);
      const range r = open.back();
      open.pop_back();
      if (r.high < r.low * narrow) {
        left = std::min(left, r.bound);
        continue;
      }
      const double middle = r.high > 1.2 * r.low && r.low > 0 ? std::sqrt(r.low * r.high) : (r.low + r.high) / 2;
      add(look_at(r.low, middle, goal() - steady_ * r.low));
      add({middle, r.high, r.end, r.end + steady_ * middle});
    }
    bound_ = std::max(bound_, least());
  }

  // The problem whose placements of a subcluster have no way between them, unless there are too many.
  void separate() {
    auto apart = problem_;
    std::vector<int> old_class;  // by new class
    apart.class_subcluster.clear();
    for (auto& placed : apart.placements) {
      placed.barred = placed.dominated;
      if (placed.dominated) continue;
      old_class.push_back(placed.transfer_class);
      apart.class_subcluster.push_back(placed.subcluster);
      placed.transfer_class = static_cast<int>(old_class.size()) - 1;
    }
    if (static_cast<double>(old_class.size() * old_class.size()) * problem_.kinds > 2e6) return;
    const transfer_price none{infinity, infinity, infinity};
    const auto price_all = [&](std::vector<transfer_price>& prices, auto price_of) {
      if (prices.empty()) return;
      prices.clear();
      for (int from = 0; from < apart.classes(); ++from)
        for (int to = 0; to < apart.classes(); ++to)
          for (int kind = 0; kind < problem_.kinds; ++kind) {
            const auto f = as_size(from), t = as_size(to);
            const bool there = from == to || apart.class_subcluster[f] != apart.class_subcluster[t];
            prices.push_back(there ? price_of(old_class[f], old_class[t])[kind] : none);
          }
    };
    price_all(apart.prices, [&](int from, int to) { return problem_.transfer(from, to); });
    price_all(apart.near_prices, [&](int from, int to) { return problem_.near_transfer(from, to); });
    // Classes of placements that are dominated.
    for (auto& placed : apart.placements)
      if (placed.dominated) placed.transfer_class = 0;
    apart_ = std::move(apart);
  }

  // interop_dp's search of that problem: a first plan, and at the end, where its exact programs close what is left of the gap, or
  // narrow it, a bound.
  void prove(double effort) {
    if (stopped_ || !apart_ || (best_ && !(effort > 0))) return;
    auto asked = asked_;
    asked.beat = limit_s();
    asked.progress = [&](const search_progress&) { return effort > 0 && go_on(); };
    auto found = one_pipeline_search(hardware_, costs_, *apart_, table_, algebra_, asked,
                                     {.warmup = options_.warmup,
                                      .epsilon = options_.epsilon,
                                      .gap = options_.gap,
                                      .effort = effort,
                                      .enumeration = 0,
                                      .looks = 0,
                                      .known_bound = bound_,
                                      .hope = 1,
                                      .prove = false,
                                      .rows = false});
    if (!found) return;
    if (effort > 0) bound_ = std::max(bound_, found->evidence->sum_bound);
    found->planner = "hetauto_exact";
    keep(*std::move(found));
  }

  [[nodiscard]] bool countable() const {
    return problem_.layers * static_cast<int>(problem_.placements.size()) <= 400 && options_.enumeration > 0;
  }
  void enumerate() {
    if (stopped_ || !countable()) return;
    plan_enumeration plans(problem_, table_, asked_.microbatches, asked_.use_all_devices, {}, true);
    const bool all = plans.run(
        static_cast<std::int64_t>(options_.enumeration * 1000), [&] { return limit_s(); },
        [&](const std::vector<interop_stage>& stages) {
          if (const auto met = judge_.judge(stages)) {
            least_objective_ = infinity;
            consider(*met);
          }
        },
        [&] { return go_on(); });
    counted_all_ = all && !stopped_;
  }

  [[nodiscard]] refusal no_such_pipeline() const {
    if (limit_s() < infinity) return {refusal::kind::infeasible, "no plan has an iteration below that of one that is known"};
    if (auto why = why_no_pipeline(hardware_, costs_, problem_, table_, asked_)) return *std::move(why);
    return {
        refusal::kind::infeasible,
        "no pipeline with one placement in each subcluster holds the model, though one with several does: interop_dp finds it"};
  }

  [[nodiscard]] refusal none() const {
    if (counted_all_) return no_such_pipeline();
    return {refusal::kind::stopped, "the search ended before it found a plan"};
  }

  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  warmup_algebra algebra_;
  plan_judge judge_;
  const planning_problem& asked_;
  hetauto_exact_options options_;
  double steady_;
  uniform_path paths_;
  double shortest_ = 0, least_objective_ = infinity, bound_ = 0;
  std::int64_t periods_ = 0, plans_ = 0;
  bool stopped_ = false, counted_all_ = false;
  std::optional<interop_problem> apart_;
  std::vector<choice> met_;
  std::vector<std::pair<double, std::vector<stage_plan>>> judged_;  // iterations near the best one, and what has them
  std::optional<plan> best_;
};

}  // namespace detail
}  // namespace hetsched
