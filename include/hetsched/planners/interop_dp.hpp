// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/pack_devices.hpp>
#include <hetsched/plan/problem.hpp>
#include <hetsched/planners/interop_dp/least_period.hpp>
#include <hetsched/planners/interop_dp/search.hpp>
#include <hetsched/planners/interop_dp/shortage.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct interop_options {
  warmup_rule warmup = warmup_rule::h1f1b;
  double epsilon = default_epsilon;  ///< H-1F1B's tolerance
  subcluster_order order = subcluster_order::automatic;
  /// Among the plans met, and those that differ from the best of them in single stages' degrees or ways of saving memory, the
  /// prediction decides if the objective is within this share of the optimum.
  double near_tie = 0.002;
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
                  const planning_problem& asked, double near_tie)
      : problem_(problem),
        table_(table),
        route_(std::move(route)),
        algebra_(algebra),
        asked_(asked),
        near_tie_(near_tie),
        steady_(asked.microbatches - 1),
        search_(problem_, table_, route_, algebra_, asked_.microbatches, asked_.use_all_devices, asked_.parallel) {}

  // Returns the plans met near the optimum, best objective first. First with a budget just above the lower bound, then with
  // larger ones: a walk that finds nothing raises the bound to its budget, and a small budget keeps the work small.
  [[nodiscard]] std::vector<met_plan> run() {
    if (!search_.may_keep(infinity)) return {};
    shortest_ = shortest_period();
    const double lower = bound_ = std::max(search_.rents().latency() + steady_ * shortest_, search_.rents().objective());
    for (double gap = 0.001;; gap = gap < 1 ? 1.5 * gap : infinity) {
      const double budget = std::min(best_, lower * (1 + gap));
      walk(budget);
      if (stopped_ || best_ <= budget || budget == infinity) break;
      bound_ = budget;
    }
    if (!stopped_) bound_ = best_;
    std::erase_if(met_, [&](const met_plan& m) { return m.objective_s > best_ * (1 + near_tie_); });
    std::stable_sort(met_.begin(), met_.end(),
                     [](const met_plan& a, const met_plan& b) { return a.objective_s < b.objective_s; });
    return std::move(met_);
  }

  /// A plan with these stages, at its least period; none if it does not fit in memory or a transfer is impossible.
  [[nodiscard]] std::optional<met_plan> judge(std::vector<interop_stage> stages) const {
    const auto bare = search_pipeline(problem_, table_, stages);
    const auto caps = warmup_caps(problem_, table_, stages, asked_.microbatches);
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
  [[nodiscard]] double bound() const { return bound_; }
  [[nodiscard]] search_evidence evidence(double objective) const {
    return {.objective_value = objective,
            .objective_bound = std::min(bound_, objective),  // they differ by rounding
            .complete = !stopped_,
            .work = {{"evaluations", evaluations_}, {"labels", labels_}}};
  }
  [[nodiscard]] interop_search<Table, Algebra>& search() { return search_; }

 private:
  struct visited {
    double latency_s, period_s;
  };

  [[nodiscard]] bool go_on() {
    if (asked_.progress && !asked_.progress({evaluations_, "programs", best_, bound_})) stopped_ = true;
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
    ++evaluations_;
    labels_ += search_.labels();
    std::optional<visited> least;
    for (auto& s : found) {
      const auto bare = search_pipeline(problem_, table_, s.stages);
      const auto caps = warmup_caps(problem_, table_, s.stages, asked_.microbatches);
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
  const planning_problem& asked_;
  double near_tie_;
  double steady_;  // M - 1: how often the period counts
  interop_search<Table, Algebra> search_;
  double shortest_ = 0;  // no plan has a shorter period
  double best_ = infinity;
  double bound_ = 0;
  bool stopped_ = false;
  std::int64_t evaluations_ = 0, labels_ = 0;
  std::vector<met_plan> met_;
};

template <class Table, class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> plan_with(const cluster& hardware, const Costs& costs, interop_problem& problem, Algebra algebra,
                                      const planning_problem& asked, const interop_options& options) {
  const Table table(hardware, costs, problem);
  mark_dominated(problem, table);
  interop_planner<Table, Algebra> planner(problem, table, make_route(hardware, options.order, asked.use_all_devices), algebra,
                                          asked, options.near_tie);
  const auto met = planner.run();
  if (met.empty()) {
    if (planner.stopped())
      return refusal{refusal::kind::stopped, "the search was stopped before it found a plan; none has an objective below " +
                                                 std::to_string(planner.bound()) + " s"};
    return refusal{refusal::kind::infeasible,
                   explain_shortage(hardware, problem, table, planner.search(), algebra, asked.use_all_devices)};
  }
  std::optional<plan> best;
  std::vector<interop_stage> chosen;
  const double limit = met.front().objective_s * (1 + options.near_tie);
  const auto consider = [&](const auto& candidate) {
    plan p{.planner = "interop_dp",
           .pipelines = {{.microbatches = asked.microbatches, .microbatch_size = asked.microbatch_size}}};
    auto& line = p.pipelines.front();
    line.schedule.name = schedule_name(options.warmup);
    std::vector<submesh> shapes;
    for (const auto& s : candidate.stages) shapes.push_back(problem.placements[static_cast<std::size_t>(s.placement)].where.mesh);
    const auto groups = pack_devices(shapes);
    for (std::size_t i = 0; i < candidate.stages.size(); ++i) {
      const auto& where = problem.placements[static_cast<std::size_t>(candidate.stages[i].placement)].where;
      line.stages.push_back({.layers = candidate.stages[i].layers,
                             .devices = {groups[i]},
                             .degrees = where.degrees,
                             .recompute = where.recompute,
                             .zero = where.zero,
                             .warmup = std::min(candidate.warmups[i], asked.microbatches)});
    }
    p.evidence = planner.evidence(candidate.objective_s);
    auto judged =
        evaluate(hardware, costs, std::move(p),
                 {.flops_per_sample = asked.flops_per_sample, .arithmetic = asked.arithmetic, .epsilon = options.epsilon});
    if (!judged || (best && judged->plan.predicted.iteration_s >= best->predicted.iteration_s)) return;
    best = std::move(judged->plan);
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
  return *std::move(best);
}

template <class Algebra, stage_cost_model Costs>
[[nodiscard]] outcome<plan> plan_with(const cluster& hardware, const Costs& costs, Algebra algebra, const planning_problem& asked,
                                      const interop_options& options) {
  auto problem = make_interop_problem(hardware, costs);
  if (problem.placements.empty())
    return refusal{refusal::kind::infeasible, "the cost model offers no placement on any submesh of this cluster"};
  if constexpr (additive_cost_model<Costs>)
    return plan_with<additive_table>(hardware, costs, problem, algebra, asked, options);
  else
    return plan_with<interval_table>(hardware, costs, problem, algebra, asked, options);
}

}  // namespace detail

/// Cuts a model into the stages of one pipeline over a heterogeneous cluster, each stage on a submesh of one subcluster: over all
/// contiguous cuts, submeshes, degrees, ways of saving memory and orders of the subclusters, and over the period, the least
///     sum (t_i + 2 c_i) + (M - 1) * period
/// such that no stage or transfer takes longer than the period and the warm-ups that the period needs fit in memory. Dynamic
/// programming with Pareto labels (latency, warm-up) per period, and a walk over the periods that can win; afterwards evaluate
/// decides among near-ties.
/// Returns: the plan, as evaluate fills it in, with its proof; else what is short, by how much and where.
/// Throws: input_error for options or costs out of range.
/// Complexity: per period O(states * placements) for additive models and H-1F1B, L times that else; other models also take
/// O(P L^2) memory and calls of stage.
/// Determinism: the plan depends on the arguments only, not on problem.parallel.
/// Source: HARP sec. 5, Eq. 12-19, with the period free; docs/planner.md.
/// Example:
///     const analytic_cost_model costs(hardware, make_chain(gpt({.layers = 24, .hidden = 2048, .heads = 16})));
///     const auto found = interop_dp(hardware, costs, {.microbatches = 64});
///     if (!found) std::puts(found.why_not().reason.c_str());
template <stage_cost_model Costs>
[[nodiscard]] outcome<plan> interop_dp(const cluster& hardware, const Costs& costs, const planning_problem& problem,
                                       const interop_options& options = {}) {
  validate(hardware, problem);
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  if (!(options.near_tie >= 0)) throw input_error("near_tie must not be negative");
  switch (options.warmup) {
    case warmup_rule::h1f1b:
      return detail::plan_with(hardware, costs, detail::h1f1b_algebra{options.epsilon}, problem, options);
    case warmup_rule::exact:
      return detail::plan_with(hardware, costs, detail::exact_algebra{}, problem, options);
    case warmup_rule::one_f_one_b:
      return detail::plan_with(hardware, costs, detail::fixed_step_algebra{1}, problem, options);
    case warmup_rule::eager:
      return detail::plan_with(hardware, costs, detail::fixed_step_algebra{2}, problem, options);
  }
  throw input_error("unknown warm-up rule");
}

}  // namespace hetsched
