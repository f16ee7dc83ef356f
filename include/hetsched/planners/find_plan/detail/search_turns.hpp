// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/detail/offered.hpp>
#include <hetsched/planners/detail/quickly_placed.hpp>
#include <hetsched/planners/first_plan.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/planners/plan_request.hpp>
#include <hetsched/planners/table.hpp>
#include <hetsched/search/microbatch.hpp>

namespace hetsched::detail {

/// The microbatch sizes that a request leaves open and that have costs.
[[nodiscard]] inline std::vector<int> sizes_with_costs(const plan_request& request) {
  auto all = request.microbatch_size > 0 ? std::vector{request.microbatch_size} : microbatch_sizes(request.global_batch);
  std::erase_if(all, [&](int size) { return request.lacks && !request.lacks(size).empty(); });
  return all;
}

/// How a request's plans are judged.
[[nodiscard]] inline evaluate_options judging(const plan_request& request) {
  return {.flops_per_sample = request.flops_per_sample, .arithmetic = request.arithmetic, .epsilon = request.how.epsilon};
}

/// The schedule that stages are to run: the one that is asked for, else one of the target's; none: the planner's.
[[nodiscard]] inline std::optional<schedule_id> schedule_of(const plan_request& request) {
  if (!request.schedule.empty()) return schedule_named(request.schedule);
  if (!request.target || request.target->schedules.empty()) return {};
  const auto own = id_of(request.how.warmup);
  return allows(*request.target, own) ? own : request.target->schedules.front();
}

/// Whether layers share parameters, and subclusters are several: where the first and the last layer do, it may save more than
/// anything else to hold both on one of them.
[[nodiscard]] inline bool shares_parameters(const cluster& hardware, const costs_by_size& costs_for,
                                            const plan_request& request) {
  const auto sizes = sizes_with_costs(request);
  if (sizes.empty() || hardware.subclusters.size() < 2) return false;
  const auto costs = costs_for(sizes.front());
  for (int k = 0; k < static_cast<int>(hardware.subclusters.size()); ++k)
    for (const auto& where : costs.placements({k, 1, 1}))
      if (!costs.copies(where).empty()) return true;
  return false;
}

inline constexpr double sums_below = 1.03;  // of an iteration, by which planners' sums may be above it

/// Turns of other planners before the default one's search, each for its share of a time budget.
class search_turns {
 public:
  /// All outlive this.
  search_turns(const cluster& hardware, const costs_by_size& costs, const plan_request& request, const planner_entry& planner)
      : hardware_(hardware),
        costs_(costs),
        request_(request),
        planner_(planner),
        choice_(request.how),
        well_looked_at_(hardware.device_count() <= looked_at_well),
        shares_(request.spent && hardware.device_count() <= looked_at_in_turns && shares_parameters(hardware, costs, request)),
        evenly_(shares_ && hardware.device_count() > quickly_placed) {
    choice_.schedule.clear();
    choice_.known.clear();
    const interop_options one{.warmup = request_.how.warmup, .epsilon = request_.how.epsilon, .prove = false};
    const hetauto_exact_options uniform{.warmup = one.warmup, .epsilon = one.epsilon, .prove = false};
    const hexiscale_options groups{.seed = request_.how.seed, .warmup = one.warmup, .epsilon = one.epsilon};
    const parallel_pipelines_options copied{.warmup = one.warmup, .epsilon = one.epsilon, .search = pipelines_search::copies};
    partitions_ = [groups](auto& book, const auto& problem) { return hexiscale(book, problem, groups); };
    rows_ = [one](auto& book, const auto& problem) { return interop_dp(book, problem, one); };
    alike_ = [uniform](auto& book, const auto& problem) { return hetauto_exact(book, problem, uniform); };
    copies_ = [copied](auto& book, const auto& problem) { return parallel_pipelines(book, problem, copied); };
    singles_ = [this](auto& book, const auto& problem) {
      return place_stages(hardware_, book.costs(), problem, {.prove = false});
    };
    whole_ = [this](auto& book, const auto& problem) {
      choice_.similar = best_ ? with_microbatch_size(*best_, problem.microbatch_size).value_or(std::vector<pipeline_plan>{})
                              : std::vector<pipeline_plan>{};
      return planner_.make(hardware_, book.costs(), problem, choice_);
    };
  }
  search_turns(const search_turns&) = delete;
  search_turns& operator=(const search_turns&) = delete;

  /// Whether other planners have turns before the search, which comes late to what they find in little time.
  [[nodiscard]] bool suit() const {
    constexpr int many_devices = 1024;
    const auto rule = id_of(request_.how.warmup);
    return request_.spent && planner_.name == planners().front().name && hardware_.device_count() > 1 &&
           hardware_.device_count() <= many_devices && schedule_of(request_).value_or(rule) == rule &&
           request_.objective == plan_objective::iteration && !(request_.deadline_s < infinity) && !request_.use_all_devices &&
           !request_.target;
  }

  /// Searches of other planners, each for its share of the time, of the microbatch sizes that suit the best plan so far; between
  /// them that plan is improved by small changes, which none of them makes of another's.
  void take() {
    if (hardware_.device_count() <= quickly_placed) return take_among_few();
    const double before = request_.spent();
    const auto tables = first_looks();
    // With so little time that few sizes are known, the search looks at the others.
    if (!tables) {
      first_cut_ = true;
      return;
    }
    limit_to(20 * (request_.spent() - before));
    if (shares_) take_turn(0.25, rows_);
    // Of one kind, equal stages are as good as copies of unlike ones.
    take_turn_of_all(well_looked_at_ ? 0.12 : hardware_.subclusters.size() == 1 ? 0.05 : 0.1, copies_);
    try_first_plan();
    take_turn(well_looked_at_ ? 0.12 : 0.1, partitions_);
    improve(little);
    // hetauto_exact looks at all sets of subclusters.
    const bool many_sets = hardware_.subclusters.size() > 4;
    const auto& first = many_sets ? rows_ : alike_;
    if (!well_looked_at_) take_turn(0.4, first);
    const auto sizes = sizes_with_costs(request_);
    const bool additive = !sizes.empty() && book_of(sizes.front()).costs().additive();
    // It takes tables and costs of all sizes.
    constexpr double of_tree = 0.1;
    const bool all_have_costs = request_.microbatch_size > 0 || sizes.size() == microbatch_sizes(request_.global_batch).size();
    if (all_have_costs && additive && *tables * static_cast<double>(sizes.size()) < of_tree) {
      take_tree_turn(of_tree);
      improve(little);
    }
    if (well_looked_at_) take_turn(0.18, first);
    improve(little);
    take_turn(0.12, many_sets ? alike_ : rows_);
    // Whether single devices are near the best is soon known.
    const bool one_each = well_looked_at_ && additive && request_.how.warmup == warmup_rule::exact;
    if (one_each && take_turn(0.03, singles_) < 1.5 * least()) take_turn(0.12, singles_);
    improve(0.1);
    if (well_looked_at_) take_turn(0.1, whole_);
  }

  /// The best plan so far; none before there is one.
  [[nodiscard]] const std::optional<plan>& best() const { return best_; }
  /// Whether first_plan had too little time among them.
  [[nodiscard]] bool first_cut() const { return first_cut_; }
  /// What a size's costs say.
  [[nodiscard]] price_book& book_of(int size) { return books_.try_emplace(size, hardware_, costs_(size)).first->second; }

  /// Drops what was priced.
  void forget_prices() { books_.clear(); }

  /// A plan that was found elsewhere; a refusal is nothing.
  void keep(outcome<plan> found) {
    if (!found) return;
    found->planner = planner_.name;
    found->setting = request_.setting;
    if (request_.met) request_.met(*found);
    if (!best_ || objective_of(*found) < objective_of(*best_)) best_ = *std::move(found);
  }

 private:
  using search_of = std::function<outcome<plan>(price_book&, const planning_problem&)>;

  static constexpr int looked_at_in_turns = 32;  // devices: of more, a search of rows of stages takes longer than its turn
  static constexpr int looked_at_well = 128;     // devices
  static constexpr double little = 0.04;

  // Where what comes first takes little of the budget, the search itself has enough of it.
  void limit_to(double share) { of_budget_ = std::min(1.0, share); }

  [[nodiscard]] bool go_on() const { return !request_.go_on || request_.go_on(); }
  [[nodiscard]] double least() const { return best_ ? objective_of(*best_) : infinity; }

  void try_first_plan() {
    const double before = request_.spent();
    auto hurried = request_;
    hurried.go_on = [&] { return request_.spent() < before + (best_ ? little * of_budget_ : 0.25) && go_on(); };
    if (auto found = first_plan(hardware_, costs_, hurried, planner_)) {
      const int size = found->pipelines.front().microbatch_size;
      keep_met(size, std::move(found));
    }
    first_cut_ = !hurried.go_on();
  }

  /// As take, where devices are few, of which single ones are soon placed.
  void take_among_few() {
    constexpr double of_looks = 0.1, times_looks = 150;  // looks take next to nothing
    const auto sizes = sizes_with_costs(request_);
    if (sizes.empty()) return;
    const bool one_each = book_of(sizes.front()).costs().additive() && request_.how.warmup == warmup_rule::exact;
    const double before = request_.spent();
    for (const int size : sizes)
      if (request_.spent() < before + of_looks && go_on()) first_look(size, before + of_looks, one_each ? singles_ : rows_);
    limit_to(times_looks * (request_.spent() - before));
    try_first_plan();
    if (one_each) take_turn(0.3, singles_);
    take_turn(0.05, alike_);
    take_turn(0.3, rows_);
    take_turn(0.05, partitions_);
    improve(0.05);
  }

  /// What a search finds at once. Returns its iteration.
  double first_look(int size, double last, const search_of& search) {
    auto problem = problem_of(request_, size);
    problem.progress = [](const search_progress&) { return false; };
    problem.go_on = [&] { return request_.spent() < last && go_on(); };
    return keep_met(size, search(book_of(size), problem));
  }

  /// First looks tell the sizes apart; where they become worse and worse, larger ones hardly help. Partitions take no tables:
  /// where one is soon made, all sizes have one first, and rows are looked at in the order of these. Returns what the first look
  /// at rows took, with its tables; nothing if the time was too short for some sizes.
  [[nodiscard]] std::optional<double> first_looks() {
    const double quick = 0.025;
    auto order = sizes_with_costs(request_);
    double tables = infinity, best_s = infinity;
    int worse = 0;
    std::size_t known = 0;
    const auto judge = [&](double own_s) {
      worse = own_s > hardly() * best_s ? worse + 1 : 0;
      best_s = std::min(best_s, own_s);
    };
    const double start = request_.spent();
    bool soon = false;
    for (const int size : order) {
      if (worse == 2 || request_.spent() > start + 0.2 || !go_on()) break;
      if (size != order.front() && !soon) break;
      const double before = request_.spent();
      judge(first_look(size, soon ? start + 0.2 : start + quick, partitions_));
      if (size == order.front()) soon = request_.spent() - before < quick;
    }
    if (soon) std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return met_of(a) < met_of(b); });
    worse = 0;
    best_s = infinity;
    const double begun = request_.spent();
    for (const int size : order) {
      const double before = request_.spent();
      if (worse == 2 || before > begun + 0.2 || !go_on()) break;
      double own_s = first_look(size, begun + 0.4, rows_);
      if (!(tables < infinity)) tables = request_.spent() - before;
      if (!soon) own_s = std::min(own_s, first_look(size, begun + 0.4, partitions_));
      judge(own_s);
      ++known;
    }
    constexpr std::size_t some = 3;
    if (!soon && known < std::min(some, order.size()) && worse < 2) return {};
    return tables;
  }

  /// Returns the least iteration that the search has found.
  double take_turn(double share, const search_of& search) {
    share *= of_budget_;
    const double end = request_.spent() + share;
    double least_s = infinity;
    const auto sizes = good_sizes();
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const int size = sizes[k];
      const double left = end - request_.spent();
      if ((left < 0.1 * share && !evenly_) || !go_on()) break;
      // Half is left for the next ones, and as much for each where first looks say little.
      const double own_end = end - left * (evenly_ ? 1 - 1.0 / static_cast<double>(sizes.size() - k) : 0.5);
      auto problem = problem_of(request_, size);
      problem.go_on = [&] { return request_.spent() < own_end && go_on(); };
      if (best_) problem.beat = sums_below * objective_of(*best_);
      least_s = std::min(least_s, keep_met(size, search(book_of(size), problem)));
    }
    return least_s;
  }

  /// Of sizes from the smallest on, each with half of what is left, until two in a row are much worse.
  void take_turn_of_all(double share, const search_of& search) {
    share *= of_budget_;
    const double end = request_.spent() + share;
    int worse = 0;
    for (const int size : sizes_with_costs(request_)) {
      const double left = end - request_.spent();
      if (worse == 2 || left < 0.1 * share || !go_on()) break;
      const double own_end = end - 0.5 * left;
      auto problem = problem_of(request_, size);
      problem.go_on = [&] { return request_.spent() < own_end && go_on(); };
      if (best_) problem.beat = sums_below * objective_of(*best_);
      const double own_s = keep_met(size, search(book_of(size), problem));
      worse = own_s > hardly() * least() ? worse + 1 : 0;
    }
  }

  /// HetAuto's search of all sizes at once, under its own warm-ups and the rule that is asked for.
  void take_tree_turn(double share) {
    const double end = request_.spent() + share * of_budget_;
    const int size = request_.microbatch_size;
    auto problem = problem_of(request_, std::max(1, size));
    problem.go_on = [&] { return request_.spent() < end && go_on(); };
    problem.progress = [&](const search_progress&) { return problem.go_on(); };
    hetauto_options options;
    options.search.seed = request_.how.seed;
    const auto found = size > 0 ? hetauto(hardware_, costs_(size), problem, options)
                                : hetauto_of_batch(hardware_, costs_, request_.global_batch, problem, options);
    if (!found) return;
    for (const bool own_warmups : {true, false}) {
      auto other = *found;
      other.gradient_sync.clear();
      for (auto& line : other.pipelines) {
        line.schedule = {.name = std::string(schedule_name(request_.how.warmup))};
        for (auto& s : line.stages) s.warmup = own_warmups && request_.how.warmup == warmup_rule::exact ? s.warmup : 0;
      }
      auto judged = evaluate(hardware_, costs_, std::move(other), judging(request_));
      if (!judged || !judged->shortage.empty()) continue;
      const int own = judged->plan.pipelines.front().microbatch_size;
      keep_met(own, std::move(judged->plan));
    }
  }

  /// The best plan so far, by small changes, unless these were tried.
  void improve(double share) {
    if (!best_ || least() == improved_s_) return;
    improved_s_ = least();
    const int size = best_->pipelines.front().microbatch_size;
    const double end = request_.spent() + share * of_budget_;
    auto problem = problem_of(request_, size);
    problem.go_on = [&] { return request_.spent() < end && go_on(); };
    keep_met(size, parallel_pipelines(book_of(size), problem,
                                      {.warmup = request_.how.warmup,
                                       .epsilon = request_.how.epsilon,
                                       .hopeless = infinity,
                                       .start = {best_->pipelines},
                                       .search = pipelines_search::changes}));
    if (problem.go_on()) improved_s_ = least();
  }

  [[nodiscard]] double& met_of(int size) { return met_.try_emplace(size, infinity).first->second; }
  /// Returns: the objective of the plan; infinity for a refusal.
  double keep_met(int size, outcome<plan> found) {
    if (!found) return infinity;
    const double value = objective_of(*found);
    met_of(size) = std::min(met_of(size), value);
    keep(std::move(found));
    return value;
  }
  /// The sizes at which the best plan so far, or one that was met, is hardly worse, the best one first. Without a plan: all.
  [[nodiscard]] std::vector<int> good_sizes() {
    std::vector<std::pair<double, int>> order;
    const auto from = best_;
    for (const int size : sizes_with_costs(request_)) {
      if (!go_on()) break;
      auto& met = met_of(size);
      if (from)
        if (auto lines = with_microbatch_size(*from, size); lines && offered(book_of(size).costs(), *lines)) {
          auto moved = *from;
          moved.pipelines = *std::move(lines);
          moved.gradient_sync.clear();
          auto judged = evaluate(hardware_, costs_, std::move(moved), judging(request_));
          if (judged && judged->shortage.empty()) {
            met = std::min(met, objective_of(judged->plan));
            keep(std::move(judged->plan));
          }
        }
      order.emplace_back(met, size);
    }
    std::sort(order.begin(), order.end());
    std::vector<int> good;
    for (const auto& [value, size] : order)
      if (!best_ || value <= hardly() * objective_of(*best_)) good.push_back(size);
    return good;
  }
  /// Of parameters that layers share, first looks say less: what it saves to hold both on one subcluster is seen by later ones.
  [[nodiscard]] double hardly() const { return shares_ ? 1.6 : 1.2; }

  const cluster& hardware_;
  const costs_by_size& costs_;
  const plan_request& request_;
  const planner_entry& planner_;
  planner_choice choice_;
  bool well_looked_at_;  // devices
  bool shares_;          // see shares_parameters; where there is a time budget
  bool evenly_;          // whether a turn's sizes have equal times
  search_of partitions_, rows_, alike_, copies_, singles_, whole_;
  std::optional<plan> best_;
  std::map<int, double> met_;        // the least iteration that was met, of a size
  std::map<int, price_book> books_;  // of a size
  double improved_s_ = infinity;     // of a plan of which small changes have been tried
  double of_budget_ = 1;             // the share of the budget that turns share out
  bool first_cut_ = false;
};

}  // namespace hetsched::detail
