// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/planners/interop_dp/assemble.hpp>
#include <hetsched/planners/interop_dp/search.hpp>
#include <hetsched/planners/interop_dp/least_period.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/predict.hpp>
#include <hetsched/planners/interop_dp/shortage.hpp>

namespace hetsched {

/// Where a search stands.
struct search_progress {
  std::int64_t evaluations = 0;  ///< dynamic programs solved
  double best_s = 0;             ///< objective of the best plan so far; infinity before there is one
  double bound_s = 0;            ///< no plan has a smaller objective
};

struct interop_options {
  int microbatches = 1;     ///< M, per iteration
  int microbatch_size = 1;  ///< samples per microbatch, as the cost model has it; noted in the plan
  warmup_rule warmup = warmup_rule::h1f1b;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  bool use_all_devices = false;
  subcluster_order order = subcluster_order::automatic;
  /// Among the plans met, and those that differ from the best of them in the degrees of single stages, the prediction decides
  /// if the objective is within this share of the optimum.
  double near_tie = 0.002;
  precision arithmetic = precision::fp16;                     ///< whose peak counts in the predicted load balance
  std::function<bool(const search_progress&)> progress = {};  ///< called before every dynamic program; false stops the search
  parallel_for parallel = {};  ///< runs independent parts of a search; the plan does not depend on it
};

namespace detail {

template <class Table, class Algebra>
class interop_planner {
 public:
  struct met_plan {
    double objective_s = 0;
    std::vector<interop_stage> stages;
    std::vector<int> warmups;
  };

  interop_planner(const interop_problem& problem, const Table& table, std::vector<route_phase> route, Algebra algebra,
                  const interop_options& options)
      : problem_(problem),
        table_(table),
        route_(std::move(route)),
        algebra_(algebra),
        options_(options),
        steady_(options.microbatches - 1),
        search_(problem_, table_, route_, algebra_, options_.microbatches, options_.use_all_devices, options_.parallel) {}

  // Returns the plans met near the optimum, best objective first. First with a budget just above the lower bound, then with
  // larger ones: a walk that finds nothing raises the bound to its budget, and a small budget keeps the work small.
  [[nodiscard]] std::vector<met_plan> run() {
    if (!search_.may_keep(infinity)) return {};
    shortest_ = shortest_period();
    auto& bound = evidence_.objective_bound_s;
    const double lower = bound = std::max(search_.rents().latency() + steady_ * shortest_, search_.rents().objective());
    for (double gap = 0.001;; gap = gap < 1 ? 1.5 * gap : infinity) {
      const double budget = std::min(best_, lower * (1 + gap));
      walk(budget);
      if (stopped_ || best_ <= budget || budget == infinity) break;
      bound = budget;
    }
    evidence_.complete = !stopped_;
    if (!stopped_) evidence_.objective_bound_s = best_;
    std::erase_if(met_, [&](const met_plan& m) { return m.objective_s > best_ * (1 + options_.near_tie); });
    std::stable_sort(met_.begin(), met_.end(),
                     [](const met_plan& a, const met_plan& b) { return a.objective_s < b.objective_s; });
    return std::move(met_);
  }

  /// A plan with these stages, at its least period; none if it does not fit in memory or a transfer is impossible.
  [[nodiscard]] std::optional<met_plan> judge(std::vector<interop_stage> stages) const {
    const auto bare = search_pipeline(problem_, table_, stages);
    const auto caps = warmup_caps(problem_, table_, stages, options_.microbatches);
    double objective = 0;
    for (int i = 0; i < bare.stages(); ++i) {
      if (caps[static_cast<std::size_t>(i)] < 1) return std::nullopt;
      objective += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
    }
    if (!(objective < infinity)) return std::nullopt;
    const double own = least_period(algebra_, bare, caps, infinity);
    auto counts = warmups_for(algebra_, bare, own);
    for (std::size_t i = 0; i < caps.size(); ++i)
      if (counts[i] > caps[i]) return std::nullopt;
    return met_plan{objective + steady_ * own, std::move(stages), std::move(counts)};
  }

  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const search_evidence& evidence() const { return evidence_; }
  [[nodiscard]] interop_search<Table, Algebra>& search() { return search_; }

 private:
  struct visited {
    double latency_s, period_s;
  };

  [[nodiscard]] bool go_on() {
    if (options_.progress && !options_.progress({evidence_.evaluations, best_, evidence_.objective_bound_s})) stopped_ = true;
    return !stopped_;
  }

  // Looks at all plans whose objective is within the budget. f(x), the least latency of the plans that keep period x, falls as x
  // grows: so the plan found for x beats all whose period lies between its own and x, and one of a shorter period can only win
  // with a period below (best - f(x)) / (M - 1). From the longest period that can win, the walk jumps from one such period to the
  // next. It looks at slices of 1 %, since the shortest period of a slice is what shows that a partial plan is too slow for it.
  void walk(double budget) {
    constexpr double below = 1 - 1e-11;  // more than the rounding that a period's constraints are granted
    double longest = longest_period(budget);
    while (longest >= shortest_ && go_on()) {
      const bool last_slice = !(longest < infinity) || longest <= 1e-3 * longest_period(std::min(best_, budget));
      const double shortest = last_slice ? shortest_ : std::max(shortest_, 0.99 * longest);
      const auto found = visit(longest, shortest, std::min(best_, budget));
      double next = shortest * below;
      if (found && steady_ > 0) next = std::max(next, std::min(found->period_s * below, (best_ - found->latency_s) / steady_));
      if (!(next < longest)) break;
      longest = std::min(next, longest_period(std::min(best_, budget)));
    }
  }

  [[nodiscard]] double longest_period(double budget) const {
    return steady_ > 0 ? (budget - search_.rents().latency()) / steady_ : infinity;
  }

  // The shortest period that passes the quick test, to 1e-9: no plan has a period more than that shorter.
  [[nodiscard]] double shortest_period() {
    double high = 0;
    for (std::size_t p = 0; p < problem_.placements.size(); ++p)
      high = std::max(high, table_.time(static_cast<int>(p), 0, problem_.layers));
    while (high > 0 && !search_.may_keep(high)) high *= 2;
    while (high > 1e-300 && search_.may_keep(high / 2)) high /= 2;
    if (!(high > 1e-300)) return 0;
    double low = high / 2;
    while (high > low * (1 + 1e-9)) {
      const double middle = (low + high) / 2;
      (search_.may_keep(middle) ? high : low) = middle;
    }
    return low;
  }

  // The plan of least latency that keeps a period, unless none of a period of at least `longer_than` is within the budget.
  [[nodiscard]] std::optional<visited> visit(double period, double longer_than, double budget) {
    constexpr std::size_t ties = 4;
    period = std::max(period, std::numeric_limits<double>::min());
    auto found = search_.solve(period, longer_than, budget, ties);
    ++evidence_.evaluations;
    evidence_.labels += search_.labels();
    std::optional<visited> least;
    for (auto& s : found) {
      const auto bare = search_pipeline(problem_, table_, s.stages);
      const auto caps = warmup_caps(problem_, table_, s.stages, options_.microbatches);
      const double own = std::min(period, least_period(algebra_, bare, caps, period));
      if (!least) least = visited{s.latency, own};
      const double objective = s.latency + steady_ * own;
      best_ = std::min(best_, objective);
      const auto known = std::find_if(met_.begin(), met_.end(), [&](const met_plan& m) { return m.stages == s.stages; });
      if (known == met_.end())
        met_.push_back({objective, std::move(s.stages), warmups_for(algebra_, bare, own)});
      else if (objective < known->objective_s)
        *known = {objective, std::move(s.stages), warmups_for(algebra_, bare, own)};
    }
    return least;
  }

  const interop_problem& problem_;
  const Table& table_;
  std::vector<route_phase> route_;
  Algebra algebra_;
  const interop_options& options_;
  double steady_;  // M - 1: how often the period counts
  interop_search<Table, Algebra> search_;
  double shortest_ = 0;  // no plan has a shorter period
  double best_ = infinity;
  bool stopped_ = false;
  search_evidence evidence_;
  std::vector<met_plan> met_;
};

template <class Table, class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> plan_with(const cluster& hardware, const Costs& costs, const interop_problem& problem,
                                      Algebra algebra, const interop_options& options) {
  const Table table(hardware, costs, problem);
  interop_planner<Table, Algebra> planner(problem, table, make_route(hardware, options.order, options.use_all_devices), algebra,
                                          options);
  const auto met = planner.run();
  if (met.empty()) {
    if (planner.stopped())
      return refusal{refusal::kind::stopped, "the search was stopped after " + std::to_string(planner.evidence().evaluations) +
                                                 " evaluations, before it found a plan"};
    return refusal{refusal::kind::infeasible,
                   explain_shortage(hardware, problem, table, planner.search(), algebra, options.use_all_devices)};
  }
  plan best{"interop_dp", options.microbatches, {}, std::string(schedule_name(options.warmup)), {}, planner.evidence()};
  double best_iteration = infinity;
  std::vector<interop_stage> chosen;
  const double limit = met.front().objective_s * (1 + options.near_tie);
  const auto consider = [&](const auto& candidate) {
    std::vector<layer_range> layers;
    std::vector<placement> where;
    for (const auto& s : candidate.stages) {
      layers.push_back(s.layers);
      where.push_back(problem.placements[static_cast<std::size_t>(s.placement)].where);
    }
    auto pipe =
        assemble_pipeline(hardware, costs, layers, where, candidate.warmups, options.microbatches, options.microbatch_size);
    const double iteration = iteration_s(pipe);
    if (iteration >= best_iteration) return;
    best_iteration = iteration;
    best.pipelines = {std::move(pipe)};
    best.evidence.objective_s = candidate.objective_s;
    chosen = candidate.stages;
  };
  constexpr std::size_t most_ties = 8;
  for (std::size_t i = 0; i < std::min(met.size(), most_ties); ++i) consider(met[i]);
  // The search keeps only the fastest degrees of a mesh; others may be nearly as fast, and far cheaper at the end of the
  // iteration.
  for (std::size_t i = 0; i < chosen.size(); ++i)
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      auto variant = chosen;
      const auto current = static_cast<std::size_t>(std::exchange(variant[i].placement, static_cast<int>(p)));
      if (p == current || !(problem.placements[p].where.mesh == problem.placements[current].where.mesh)) continue;
      const auto judged = planner.judge(std::move(variant));
      if (judged && judged->objective_s <= limit) consider(*judged);
    }
  best.evidence.objective_bound_s =
      std::min(best.evidence.objective_bound_s, best.evidence.objective_s);  // they differ by rounding
  best.predicted = predict(hardware, best, options.arithmetic);
  return best;
}

template <class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> plan_with(const cluster& hardware, const Costs& costs, Algebra algebra,
                                      const interop_options& options) {
  const auto problem = make_interop_problem(hardware, costs);
  if (problem.placements.empty())
    return refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"};
  if constexpr (additive_cost_model<Costs>)
    return plan_with<additive_table>(hardware, costs, problem, algebra, options);
  else
    return plan_with<interval_table>(hardware, costs, problem, algebra, options);
}

}  // namespace detail

/// Cuts a model into pipeline stages over a heterogeneous cluster, each stage on a submesh of one subcluster: over all contiguous
/// cuts, submeshes, degrees and orders of the subclusters, and over the period, the least
///     sum (t_i + 2 c_i) + (M - 1) * period
/// such that no stage or transfer takes longer than the period and the warm-ups that the period needs fit in memory. Exact:
/// dynamic programming with Pareto labels (latency, warm-up) per period, and a walk over the periods that can win (HARP sec. 5,
/// Eq. 12-19, with the period free; docs/planner.md). Afterwards the full prediction decides among near-ties. Additive models:
/// O(states * placements) per period for H-1F1B, L times that else; other models also O(P L^2) memory and calls of stage.
/// Deterministic. No plan: what is short, by how much and where. Throws input_error for options or costs out of range.
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> interop_dp(const cluster& hardware, const Costs& costs, const interop_options& options = {}) {
  if (options.microbatches < 1 || options.microbatch_size < 1)
    throw input_error("microbatches and microbatch_size must be at least 1");
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  if (!(options.near_tie >= 0)) throw input_error("near_tie must not be negative");
  if (hardware.subclusters.empty()) throw input_error("a cluster needs at least one subcluster");
  switch (options.warmup) {
    case warmup_rule::h1f1b:
      return detail::plan_with(hardware, costs, detail::h1f1b_algebra{options.epsilon}, options);
    case warmup_rule::exact:
      return detail::plan_with(hardware, costs, detail::exact_algebra{}, options);
    case warmup_rule::one_f_one_b:
      return detail::plan_with(hardware, costs, detail::fixed_step_algebra{1}, options);
    case warmup_rule::eager:
      return detail::plan_with(hardware, costs, detail::fixed_step_algebra{2}, options);
  }
  throw input_error("unknown warm-up rule");
}

}  // namespace hetsched
