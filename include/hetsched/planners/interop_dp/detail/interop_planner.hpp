// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/beam.hpp>
#include <hetsched/planners/interop_dp/detail/chain_costs.hpp>
#include <hetsched/planners/interop_dp/detail/exhaust.hpp>
#include <hetsched/planners/interop_dp/detail/iteration_bound.hpp>
#include <hetsched/planners/interop_dp/detail/judge.hpp>
#include <hetsched/planners/interop_dp/detail/least_period.hpp>
#include <hetsched/planners/interop_dp/detail/period_bound.hpp>
#include <hetsched/planners/interop_dp/detail/search.hpp>
#include <hetsched/planners/interop_dp/detail/shortage.hpp>
#include <hetsched/planners/interop_dp/detail/stage_rows.hpp>
#include <hetsched/planners/interop_dp/detail/tapered_cuts.hpp>
#include <hetsched/planners/interop_dp/options.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// The search of interop_dp: a plan at once, better ones by beams, periods by bound, exact programs, and near-ties by evaluate.
class interop_planner {
 public:
  interop_planner(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
                  warmup_algebra algebra, const planning_problem& asked, const interop_options& options)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        updates_(table.updates()),
        algebra_(algebra),
        judge_(hardware, costs, problem, table, algebra, asked),
        asked_(asked),
        options_(options),
        steady_(asked.microbatches - 1),
        free_order_(has_free_order(hardware, options.order)),
        order_(fixed_order(hardware, options.order)),
        route_(make_route(hardware, options.order, asked.use_all_devices)),
        search_(problem, table, route_, algebra, asked_),
        beam_(problem, table, route_, algebra, asked.microbatches, asked.use_all_devices) {}

  [[nodiscard]] outcome<plan> run() {
    if (ended() || !search_.may_keep(infinity) || !first_plan()) return none();
    shortest_ = free_order_ ? least_period_of_any_order() : shortest_period();
    if (ended()) shortest_ = 0;
    bound_ = std::max({search_.rents().objective(), search_.rents().latency() + steady_ * shortest_, options_.known_bound});
    if (countable() || !closed()) few_beams();
    if (go_on() && !closed()) {
      // Small problems are solved faster than bounded.
      if (small() && !free_order_) prove(options_.effort / 5);
      if (!complete_ && go_on() && !closed()) {
        walk_periods();
        // Where much is left to prove, a large problem's programs would not come to an end.
        if (free_order_) improve_order();
        if (!closed() && go_on() && !free_order_)
          prove(small() || best_s() < bound_ * 1.02 ? options_.effort : options_.effort / 10);
      }
    }
    if (!stopped_ && best_ && best_s() <= std::max(sums_beat(), asked_.beat * (1 + options_.near_tie))) {
      settle_near_ties();
      change_best_plans();
      play_rows();
    }
    if (!stopped_) enumerate();
    if (!best_) return none();
    best_->evidence = evidence();
    return *std::move(best_);
  }

 private:
  struct visited {
    double latency_s, period_s;
  };
  // Periods, and what no plan that keeps one of them is below.
  struct range {
    double low = 0, high = 0, bound = 0;
  };
  static bool later(const range& a, const range& b) { return a.bound > b.bound; }

  [[nodiscard]] double best_s() const { return best_ ? best_->predicted.iteration_s : infinity; }
  /// Plans that take longer do not count.
  [[nodiscard]] double limit_s() const { return std::min(best_s(), asked_.beat); }
  /// Sums that small changes may bring below what is to be beaten are below this.
  [[nodiscard]] double sums_beat() const { return options_.hope * asked_.beat; }
  [[nodiscard]] double sums_limit_s() const { return std::min(best_s(), sums_beat()); }
  [[nodiscard]] bool proved() const { return best_s() <= bound_ * (1 + options_.gap); }
  [[nodiscard]] bool closed() const { return proved() || bound_ >= sums_beat(); }
  void raise_bound(double bound) { bound_ = std::max(bound_, bound); }

  /// Whether the search is to end at once, plan or none.
  [[nodiscard]] bool ended() { return stopped_ = stopped_ || !asked_.may_go_on(); }

  [[nodiscard]] bool go_on() {
    if (ended()) return false;
    if (asked_.progress && !asked_.progress({evaluations_, "searches", best_s(), std::min(bound_, best_s())})) stopped_ = true;
    // What cannot beat a plan that is known already is not worth the time; where plans are counted, that shows then.
    if (!stopped_ && !countable() && std::min(bound_, best_s()) > sums_beat()) beaten_ = stopped_ = true;
    return !stopped_;
  }

  /// Hands a plan to evaluate, and keeps it if it is the best so far.
  bool consider(const met_plan& candidate) {
    ++plans_;
    auto judged = judge_.evaluated(candidate, "interop_dp", options_.epsilon);
    if (!judged) return false;
    const double iteration_s = judged->predicted.iteration_s;
    if (iteration_s <= best_s() * (1 + options_.near_tie)) judged_.emplace_back(iteration_s, candidate.stages);
    if (iteration_s >= best_s()) return false;
    best_ = *std::move(judged);
    chosen_ = candidate;
    return true;
  }

  // Remembers a plan met; one that has the least objective so far is considered at once.
  void meet(std::optional<met_plan> found) {
    if (!found) return;
    const auto known = std::find_if(met_.begin(), met_.end(), [&](const met_plan& m) { return m.stages == found->stages; });
    if (known != met_.end()) {
      if (found->objective_s < known->objective_s) *known = *found;
    } else {
      met_.push_back(*found);
    }
    if (found->objective_s >= least_objective_) return;
    least_objective_ = found->objective_s;
    consider(*found);
  }

  [[nodiscard]] std::vector<int> undominated() const {
    std::vector<int> all;
    for (std::size_t p = 0; p < problem_.placements.size(); ++p)
      if (!problem_.placements[p].dominated) all.push_back(static_cast<int>(p));
    return all;
  }

  // False if there is none: the exact program without a limit on the period looks at all stages that memory allows.
  [[nodiscard]] bool first_plan() {
    ++evaluations_;
    for (auto& s : beam_.solve(infinity, undominated(), search_.rents().cost_before(), 1, 1, asked_.poll()))
      meet(judge_.judge(std::move(s.stages)));
    if (best_) return true;
    auto found = search_.solve(infinity, 0, infinity, 1);
    const bool any = !found.empty();
    for (auto& s : found) meet(judge_.judge(std::move(s.stages)));
    return any;
  }

  // Returns whether it has found any.
  bool try_beam(double period, const std::vector<int>& placements, const std::vector<double>& cost_before, int width) {
    ++evaluations_;
    auto found = beam_.solve(period, placements, cost_before, width, 2, asked_.poll());
    for (auto& s : found) meet(judge_.judge(std::move(s.stages)));
    return !found.empty();
  }

  [[nodiscard]] bool small() const {
    const double states = static_cast<double>(hardware_.device_count()) * problem_.layers * static_cast<double>(route_.size());
    return !table_.additive() || states * static_cast<double>(problem_.placements.size()) < 4e6;
  }

  // The longest period of plans whose sums are below the limit, at the least latency.
  [[nodiscard]] double longest_in_reach() const { return (sums_limit_s() - search_.rents().latency()) / steady_; }

  // If a beam finds no plan for a period, shorter periods are not tried.
  void few_beams() {
    if (steady_ == 0 || !(shortest_ > 0)) return;
    const auto cost_before = search_.rents().cost_before();
    const auto placements = small() ? undominated() : search_.rents().competitive(1.5);
    const auto enough = [&] { return ended() || (!small() && beam_.looked_at() > 1'000'000); };
    const auto finds = [&](double longer) {
      const double period = std::min(shortest_ * longer, longest_in_reach());
      return period >= shortest_ && !enough() && try_beam(period, placements, cost_before, 2);
    };
    if (finds(1.1)) (void)finds(1.02);
    if (shortest_ * 1.1 < longest_in_reach()) (void)finds(wide);
  }

  // Bounds ranges of periods, of which those that may hold the best plan are halved; and looks for plans by beams.
  void walk_periods() {
    if (!best_ || steady_ == 0 || !(shortest_ > 0) || !table_.additive()) return;
    period_bound bounds(problem_, table_);
    const double end = least_update();
    const auto work = static_cast<std::int64_t>(options_.effort * 5e6);
    const auto bound_of = [&](double low, double high) {
      const double rest = steady_ * low + end;
      return bounds.latency(high, sums_limit_s() - rest) + rest;
    };
    approach_period();
    std::vector<range> open;
    const double step = static_cast<double>(problem_.placements.size()) * problem_.layers < 4e4 ? 1.02 : 1.05;
    for (double low = shortest_; steady_ * low + search_.rents().latency() < sums_limit_s(); low = open.back().high) {
      if (!go_on()) return;
      open.push_back({low, low * step, bound_of(low, low * step)});
    }
    std::make_heap(open.begin(), open.end(), later);
    if (open.empty()) return;
    raise_bound(std::min(open.front().bound, sums_limit_s()));

    // Beams, by the least size of stages: near the best plan's period, and then for all ranges, the least bound first.
    int best_size = 1;
    const int largest = *std::max_element(problem_.devices.begin(), problem_.devices.end());
    const auto most = static_cast<std::int64_t>(options_.effort * 2e5);
    const auto try_size = [&](double at, int size) {
      if (size < 1 || size > largest || beam_.looked_at() > most || closed() || !go_on()) return;
      const double before = best_s();
      try_beam(at, bounds.competitive(1.25, size), bounds.cost_before(), 3);
      if (best_s() < before) best_size = size;
    };
    const auto try_sizes = [&](double at) {
      if (bounds.latency(at, sums_limit_s() - steady_ * at) + steady_ * at >= sums_limit_s()) return;
      for (int size = 1; size <= largest; size *= 2) try_size(at, size);
    };
    auto by_bound = open;
    std::sort(by_bound.begin(), by_bound.end(), [](const range& a, const range& b) { return a.bound < b.bound; });
    for (const auto& r : by_bound)
      if (r.bound < sums_limit_s() && beam_.looked_at() <= most && go_on()) try_sizes(r.high);

    constexpr double narrow = 1.001;
    while (bounds.looked_at() < work && go_on()) {
      const auto r = open.front();
      if (closed() || r.high < r.low * narrow) return;
      std::pop_heap(open.begin(), open.end(), later);
      open.pop_back();
      const double middle = (r.low + r.high) / 2;
      const auto look_at = [&](double low, double high) {
        open.push_back({low, high, std::max(r.bound, bound_of(low, high))});
        if (open.back().bound < sums_limit_s()) {
          try_size(high, best_size);
          try_size(high, best_size / 2);
        }
        std::push_heap(open.begin(), open.end(), later);
      };
      look_at(r.low, middle);
      look_at(middle, r.high);
      if (!stopped_) raise_bound(std::min(open.front().bound, sums_limit_s()));
    }
  }

  // Where the best plan is far from the bound: looks for the shortest period for which a beam finds a plan, from the longest
  // period that can win down. If no beam finds a plan for that one, shorter periods are not tried.
  void approach_period() {
    if (best_s() <= 1.3 * bound_) return;
    const auto finds = [&](double period) {
      const double before = best_s();
      try_beam(period, search_.rents().competitive(1.5), search_.rents().cost_before(), 2);
      return best_s() < before;
    };
    double low = shortest_, high = own_period();
    if (const double longest = longest_in_reach(); longest < high) {
      if (!(longest > wide * low) || !go_on() || !finds(longest)) return;  // few_beams have looked at less
      high = longest;
    }
    while (high > 1.1 * low && go_on()) {
      const double middle = std::sqrt(low * high);
      (finds(middle) ? high : low) = middle;
    }
  }

  // Moves single subclusters, and swaps two, in the order of the best plan as long as that helps.
  void improve_order() {
    if (!best_ || steady_ == 0) return;
    const auto cost_before = search_.rents().cost_before();
    const auto placements = search_.rents().competitive(1.5);
    const auto count = order_.size();
    const auto most = static_cast<std::int64_t>(options_.effort * 1e5);
    std::int64_t looked_at = 0;
    const auto better = [&](const std::vector<int>& order) {
      const auto route = route_through(order, asked_.use_all_devices);
      beam_search beam(problem_, table_, route, algebra_, asked_.microbatches, asked_.use_all_devices);
      const double before = best_s();
      for (const double longer : {1.0, 1.01}) {
        ++evaluations_;
        for (auto& s : beam.solve(own_period() * longer, placements, cost_before, 2, 2, asked_.poll()))
          meet(judge_.judge(std::move(s.stages)));
      }
      looked_at += beam.looked_at();
      if (!(best_s() < before)) return false;
      order_ = order;
      route_ = route;
      return true;
    };
    for (bool again = true; again;) {
      again = false;
      for (std::size_t from = 0; from < count; ++from)
        for (std::size_t to = 0; to < count; ++to) {
          if (from == to || looked_at > most || !go_on()) continue;
          auto moved = order_;
          const int which = moved[from];
          moved.erase(moved.begin() + static_cast<std::ptrdiff_t>(from));
          moved.insert(moved.begin() + static_cast<std::ptrdiff_t>(to), which);
          again = better(moved) || again;
          if (to <= from) continue;
          moved = order_;
          std::swap(moved[from], moved[to]);
          again = better(moved) || again;
        }
    }
  }

  // All devices together must do all layers, and some stage each of them.
  [[nodiscard]] double least_period_of_any_order() const {
    double work = 0, longest = 0;
    for (int l = 0; l < problem_.layers; ++l) {
      double least = infinity, least_work = infinity;
      for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
        const double t = table_.time(static_cast<int>(p), l, l + 1);
        least = std::min(least, t);
        least_work = std::min(least_work, t * problem_.placements[p].devices);
      }
      if (table_.additive()) work += least_work;
      longest = std::max(longest, least);
    }
    return std::max(longest, work / static_cast<double>(hardware_.device_count())) * (1 - tolerance::sums);
  }

  // Of the plan chosen so far, as its warm-ups have it.
  [[nodiscard]] double own_period() const {
    const auto bare = search_pipeline(problem_, table_, chosen_.stages);
    return period(bare, chosen_.warmups);
  }

  // The first stage holds the first layer, and updates when all else is done.
  [[nodiscard]] double least_update() const {
    if (!updates_.any()) return 0;
    double least = infinity;
    for (std::size_t p = 0; p < problem_.placements.size(); ++p)
      least = std::min(least, costs_.update(layer_range{0, 1}, problem_.placements[p].where));
    return least < infinity ? least : 0;
  }

  // The least objective, exactly: first with a budget just above the lower bound, then with larger ones. A walk that finds
  // nothing raises the bound to its budget, and a small budget keeps the work small.
  void prove(double effort) {
    most_work_ = static_cast<std::int64_t>(effort * 1e6);
    ended_early_ = false;
    // Small updates cannot change much, and take partial plans to tell apart.
    with_updates_ =
        updates_.any() && judge_.end_of(chosen_.stages, search_pipeline(problem_, table_, chosen_.stages)) > 0.003 * best_s();
    search_.count_updates(with_updates_);
    const double lower = bound_, end = with_updates_ ? 0 : least_update();
    least_ = infinity;
    for (const auto& m : met_) least_ = std::min(least_, with_updates_ ? m.objective_s : m.objective_s - m.end_s);
    for (double gap = 0.001;; gap = gap < 1 ? 1.5 * gap : infinity) {
      const double budget = std::min(least_, lower * (1 + gap));
      walk(budget);
      if (stopped_ || ended_early_) return;
      if (least_ <= budget || budget == infinity) break;
      raise_bound(budget + end);
    }
    raise_bound(least_ + end);
    complete_ = true;
  }

  // Looks at all plans whose objective is within the budget. f(x), the least latency of the plans that keep period x, falls as x
  // grows: so the plan found for x beats all whose period lies between its own and x, and one of a shorter period can only win
  // with a period below (best - f(x)) / (M - 1). From the longest period that can win, the walk jumps from one such period to the
  // next. It looks at slices of 1 %, since the shortest period of a slice is what shows that a partial plan is too slow for it.
  void walk(double budget) {
    constexpr double below = 1 - 1e-11;  // more than the rounding that a period's constraints are granted
    double longest = longest_period(budget);
    while (longest >= shortest_ && go_on()) {
      const bool last_slice = !(longest < infinity) || longest <= 1e-3 * longest_period(std::min(least_, budget));
      const double shortest = last_slice ? shortest_ : std::max(shortest_, 0.99 * longest);
      const auto found = visit(longest, shortest, std::min(least_, budget));
      if (stopped_ || ended_early_) return;
      double next = shortest * below;
      if (found && steady_ > 0) next = std::max(next, std::min(found->period_s * below, (least_ - found->latency_s) / steady_));
      if (!(next < longest)) break;
      longest = std::min(next, longest_period(std::min(least_, budget)));
    }
  }

  [[nodiscard]] double longest_period(double budget) const {
    return steady_ > 0 ? (budget - search_.rents().latency()) / steady_ : infinity;
  }

  // The shortest period that passes the quick test, to 1e-6: no plan has a period more than that shorter.
  [[nodiscard]] double shortest_period() {
    constexpr double closely = 1 + 1e-6, none = 1e-300;
    double low = least_period_of_any_order(), high = low;
    // Of other costs than sums, a stage may be faster than its layers.
    if (!table_.additive())
      for (; low > none && !ended() && search_.may_keep(low); low /= 2) high = low;
    if (!(low > none)) return 0;
    for (double step = 1.05; !ended() && !search_.may_keep(high); step *= step) {
      low = high;
      high *= step;
    }
    while (high > low * closely && !ended()) {
      const double middle = (low + high) / 2;
      (search_.may_keep(middle) ? high : low) = middle;
    }
    return low;
  }

  // The plan of least latency that keeps a period, unless none of a period of at least `longer_than` is within the budget.
  [[nodiscard]] std::optional<visited> visit(double period, double longer_than, double budget) {
    constexpr std::size_t ties = 4;
    period = std::max(period, std::numeric_limits<double>::min());
    const auto work_left = most_work_ - looked_at_;
    auto ask = [&] { return go_on(); };
    auto found = search_.solve(period, longer_than, budget, ties, work_left, ask);
    ++evaluations_;
    labels_ += search_.labels();
    looked_at_ += search_.looked_at();
    if (search_.aborted() || looked_at_ > most_work_) {
      ended_early_ = true;
      return std::nullopt;
    }
    std::optional<visited> least;
    for (auto& s : found) {
      const auto bare = search_pipeline(problem_, table_, s.stages);
      const auto caps = warmup_caps(problem_, table_, s.stages, asked_.microbatches);
      const double own = std::min(period, least_period(algebra_, bare, caps, period));
      if (!least) least = visited{s.latency, own};
      const double objective = s.latency + steady_ * own;
      least_ = std::min(least_, objective);
      const double end = judge_.end_of(s.stages, bare);
      meet(met_plan{with_updates_ ? objective : objective + end, end, std::move(s.stages), warmups_for(algebra_, bare, own)});
    }
    return least;
  }

  // Among plans of nearly the same objective, and neighbours of the best one, the prediction decides.
  void settle_near_ties() {
    const double limit = least_objective_ * (1 + options_.near_tie);
    const auto chosen = chosen_.stages;
    consider_least(met_, limit);
    // The search keeps only the fastest placements of a mesh; others may be nearly as fast, and far cheaper at the end of the
    // iteration.
    std::vector<met_plan> variants;
    for (std::size_t i = 0; i < chosen.size() && !ended(); ++i)
      for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
        const auto current = as_size(chosen[i].placement);
        const auto& other = problem_.placements[p];
        if (p == current || other.barred || !(other.where.mesh == problem_.placements[current].where.mesh)) continue;
        auto variant = chosen;
        variant[i].placement = static_cast<int>(p);
        if (auto judged = judge_.judge(std::move(variant))) variants.push_back(*std::move(judged));
      }
    consider_least(std::move(variants), limit);
    shift_cuts();
  }

  // Those of the least objectives, at most `limit`.
  void consider_least(std::vector<met_plan> plans, double limit) {
    std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.objective_s < b.objective_s; });
    const auto actions = static_cast<double>(chosen_.stages.size()) * asked_.microbatches;
    const auto most = static_cast<std::size_t>(std::clamp(5e4 / actions, 8.0, 64.0));
    for (std::size_t i = 0; i < std::min(plans.size(), most) && plans[i].objective_s <= limit && !ended(); ++i)
      consider(plans[i]);
  }

  [[nodiscard]] bool route_is_fixed() const {
    return options_.order == subcluster_order::memory_to_compute || options_.order == subcluster_order::as_given;
  }

  // Small problems end with the least iteration of all plans, proved.
  [[nodiscard]] bool countable() const {
    return problem_.layers * static_cast<int>(problem_.placements.size()) <= 2000 && options_.enumeration > 0;
  }

  void enumerate() {
    if (!best_ || !countable()) return;
    plan_enumeration plans(problem_, table_, asked_.microbatches, asked_.use_all_devices,
                           route_is_fixed() ? order_ : std::vector<int>{});
    const bool all = plans.run(
        static_cast<std::int64_t>(options_.enumeration * 1000), [&] { return limit_s(); },
        [&](const std::vector<interop_stage>& stages) {
          if (const auto judged = judge_.judge(stages)) consider(*judged);
        },
        [&] { return go_on(); });
    counted_all_ = all && !stopped_;
    if (counted_all_) counted_bound_ = std::min(limit_s(), plans.least());
  }

  // Moves single layers over boundaries as long as that helps.
  void shift_cuts() {
    const auto actions = static_cast<double>(chosen_.stages.size()) * asked_.microbatches;
    int tries = static_cast<int>(std::clamp(5e4 / actions, 8.0, 200.0));
    for (bool better = true; better && tries > 0 && go_on();) {
      better = false;
      for (std::size_t i = 0; i + 1 < chosen_.stages.size(); ++i)
        for (const int by : {1, -1}) {
          auto variant = chosen_.stages;
          variant[i].layers.last += by;
          variant[i + 1].layers.first += by;
          if (variant[i].layers.first >= variant[i].layers.last || variant[i + 1].layers.first >= variant[i + 1].layers.last)
            continue;
          const auto judged = judge_.judge(std::move(variant));
          if (!judged || judged->objective_s > best_s() * (1 + options_.near_tie) || --tries < 0) continue;
          better = consider(*judged) || better;
        }
    }
  }

  // The best plans are changed a little, and what they become: G and evaluate's iteration may part by some per cent.
  void change_best_plans() {
    if (algebra_.is_exact()) {
      if (stopped_ || route_is_fixed() || options_.looks == 0) return;
      const chain_costs chains(hardware_, costs_, problem_, table_, asked_, id_of(options_.warmup));
      std::vector<priced_chain> known;
      for (const auto& [iteration_s, stages] : judged_)
        if (iteration_s <= best_s() * (1 + options_.near_tie)) known.push_back({iteration_s, chains.chain_of(stages)});
      const int looks = std::min(options_.looks, chains.looks_within(options_.effort, chains.chain_of(chosen_.stages)));
      auto found = chains.improve_any(std::move(known), looks, 1 + options_.near_tie, true, [&] { return go_on(); });
      if (auto met = judge_.judge(chains.stages_of(found.what))) consider(*met);
      if (!stopped_) shift_cuts();
    }
  }

  // Other rows of placements than the best plan's, which may come back to a subcluster, with cuts that are tapered; then of what
  // they become. Which stages save memory, and how, is a choice of each that latency and period alone settle badly.
  void play_rows() {
    if (!algebra_.is_exact() || !table_.additive() || route_is_fixed() || !options_.rows) return;
    tapered_cuts cuts(problem_, table_, hardware_, costs_);
    const auto most = static_cast<std::int64_t>(options_.effort * 1e6);
    const auto fits = [&](const std::vector<int>& row) {
      auto left = problem_.devices;
      for (const int p : row) {
        const auto& placed = at(problem_.placements, p);
        at(left, placed.subcluster) -= placed.devices;
      }
      const auto [least, all] = std::minmax_element(left.begin(), left.end());
      return *least >= 0 && (!asked_.use_all_devices || *all == 0);
    };
    // The cuts of a row if they are better than the best plan's, or nothing.
    const auto best_of = [&](const std::vector<int>& row) {
      auto found = cuts.solve(row, asked_.microbatches, best_s() * close, false);
      if (found.makespan_s < infinity)
        if (auto closer = cuts.solve(row, asked_.microbatches, found.makespan_s, true); closer.makespan_s < found.makespan_s)
          found = std::move(closer);
      if (!(found.makespan_s < best_s())) found.stages.clear();
      return std::move(found.stages);
    };
    bool better = true, ended = false;
    while (better && !ended) {
      better = false;
      std::vector<int> row;
      for (const auto& s : chosen_.stages) row.push_back(s.placement);
      for_each_stage_order(problem_, row, [&](const std::vector<int>& next) {
        ended = cuts.looked_at() > most || !go_on();
        if (ended || !fits(next)) return !ended;
        auto stages = best_of(next);
        if (stages.empty()) return true;
        const auto met = judge_.judge(std::move(stages));
        better = met && consider(*met);
        return !better;
      });
    }
  }

  [[nodiscard]] search_evidence evidence() {
    double proved = 0;
    auto ask = [&] { return (!stopped_ || beaten_) && asked_.may_go_on(); };
    const bool counted = counted_all_ && !options_.splits;
    if (counted) proved = counted_bound_;
    if (options_.prove)
      proved = std::max(proved, least_iteration(problem_, table_, hardware_, costs_, asked_.microbatches, limit_s(), options_.gap,
                                                ask, asked_.enough, {}, options_.splits));
    return {.objective_value = best_s(),
            .objective_bound = std::min(proved, best_s()),
            // Under another rule plans were judged under that one alone.
            .complete = (counted && algebra_.is_exact()) ||
                        (options_.prove && limit_s() * (1 - options_.gap) <= proved * (1 + tolerance::sums)),
            .work = {{"evaluations", evaluations_}, {"labels", labels_}, {"plans", plans_}},
            .sum_bound = bound_,
            .rule = std::string(schedule_name(algebra_.rule())),
            .space = "one pipeline, on any devices in any order"};
  }

  [[nodiscard]] refusal none() {
    if (stopped_ && bound_ > sums_beat())
      return {refusal::kind::infeasible, "no plan has an iteration below that of one that is known"};
    std::string why;
    if (!ended() && least_objective_ < infinity)
      why = "no link joins stages of any plan that was met to add up gradients of shared parameters";
    else if (!ended())
      why = explain_shortage({.hardware = hardware_,
                              .problem = problem_,
                              .table = table_,
                              .route = route_,
                              .search = search_,
                              .algebra = algebra_,
                              .use_all = asked_.use_all_devices,
                              .one_order = free_order_,
                              .go_on = asked_.poll()});
    if (!ended()) return {refusal::kind::infeasible, std::move(why)};
    return {refusal::kind::stopped, "the search was stopped before it found a plan"};
  }

  static constexpr double wide = 1.3;     // periods that few_beams look at, by the shortest
  static constexpr double close = 1.006;  // how far behind the best a row is worth other cuts

  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  const update_table& updates_;
  warmup_algebra algebra_;
  plan_judge judge_;
  const planning_problem& asked_;
  interop_options options_;
  double steady_;  // M - 1: how often the period counts
  bool free_order_;
  std::vector<int> order_;  // where it is free: of the best plan so far
  std::vector<route_phase> route_;
  interop_search search_;
  beam_search beam_;
  double counted_bound_ = 0;  // where all plans were counted
  double shortest_ = 0;       // no plan has a shorter period
  double bound_ = 0;
  double least_ = infinity;            // latency and M - 1 periods of a plan met
  double least_objective_ = infinity;  // with updates
  std::int64_t most_work_ = 0;
  bool with_updates_ = false;
  bool stopped_ = false, ended_early_ = false, complete_ = false, counted_all_ = false;
  bool beaten_ = false;  // stopped, as no sum is below what is to be beaten; an iteration may be
  std::int64_t evaluations_ = 0, labels_ = 0, looked_at_ = 0, plans_ = 0;
  std::vector<met_plan> met_;
  met_plan chosen_;
  std::vector<std::pair<double, std::vector<interop_stage>>> judged_;  // iterations near the best one, and what has them
  std::optional<plan> best_;
};

}  // namespace detail
}  // namespace hetsched
