// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/planners/any_schedule.hpp>
#include <hetsched/planners/baselines.hpp>
#include <hetsched/planners/detail/offered.hpp>
#include <hetsched/planners/detail/quickly_placed.hpp>
#include <hetsched/planners/find_plan.hpp>
#include <hetsched/planners/find_plan/detail/new_orders.hpp>
#include <hetsched/planners/find_plan/detail/search_turns.hpp>
#include <hetsched/planners/find_plan/detail/sends_of.hpp>
#include <hetsched/planners/first_plan.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/work_bound.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/parallel_pipelines/detail/worth.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/search/frontier.hpp>
#include <hetsched/search/microbatch.hpp>
#include <hetsched/search/mixed_costs.hpp>
#include <hetsched/search/taper.hpp>
#include <hetsched/search/within_target.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<plan> plan_under_schedule(const cluster& hardware, const costs_by_size& costs, plan p,
                                                  const std::string& schedule, const evaluate_options& options,
                                                  bool on_any_devices) {
  for (auto& line : p.pipelines) {
    line.schedule = {.name = schedule};
    for (auto& s : line.stages) s.warmup = 0;
  }
  std::optional<plan> best;
  const auto consider = [&](plan candidate) -> outcome<evaluation> {
    outcome<evaluation> judged = refusal{refusal::kind::infeasible, {}};
    try {
      judged = evaluate(hardware, costs, std::move(candidate), options);
    } catch (const input_error& wrong) {  // as of a schedule that is made for an even number of ranks
      return refusal{refusal::kind::infeasible, wrong.what()};
    }
    if (judged && judged->shortage.empty() && (!best || objective_of(judged->plan) < 0.999 * objective_of(*best)))
      best = judged->plan;
    return judged;
  };
  // An order is searched for only where devices that part backwards, too, could be done in time.
  const auto is_late = [&](const plan& candidate) {
    if (!best || schedule != auto_schedule_name) return false;
    auto family = candidate;
    for (auto& line : family.pipelines) line.schedule = {.name = std::string(name_of(schedule_id::one_f_one_b))};
    const auto priced = evaluate(hardware, costs, std::move(family), options);
    if (!priced) return true;
    return std::any_of(priced->plan.pipelines.begin(), priced->plan.pipelines.end(), [&](const auto& line) {
      return split_backward_lower_bound(to_pipeline(line), line.microbatches) > objective_of(*best);
    });
  };
  const auto planned = consider(p);
  const auto go_on = [&] { return !options.progress || options.progress(objective_of(best ? *best : p), 0); };
  detail::price_books books(hardware, costs);
  for (auto& candidate : detail::recut(books, planned ? planned->plan : p, go_on))
    if (go_on() && !is_late(candidate)) (void)consider(std::move(candidate));
  const int size = p.pipelines.front().microbatch_size, samples = static_cast<int>(sample_count(p));
  if (on_any_devices && samples % size == 0 && go_on()) {
    // A schedule that splits backwards may be faster than the bound of whole ones: a third of the way back, as a rule.
    constexpr double split = 1.5;
    std::vector<any_schedule_options> ways;
    for (const double haste : detail::hastes)
      for (const int in_flight : {1, static_cast<int>(p.pipelines.front().stages.size())})
        ways.push_back({.microbatches = samples / size,
                        .haste = haste,
                        .in_flight = in_flight,
                        .below_s = best ? split * haste * objective_of(*best) : 0});
    if (const auto found = any_schedule_pipelines(books.of(size), ways, go_on))
      for (const auto& line : *found) {
        if (!line || !go_on()) continue;
        auto candidate = p;
        candidate.pipelines.assign(1, line->line);
        candidate.pipelines[0].microbatch_size = size;
        candidate.pipelines[0].schedule = {.name = schedule};
        if (!is_late(candidate)) (void)consider(std::move(candidate));
      }
  }
  if (best) return *std::move(best);
  if (!planned && planned.why_not().why == refusal::kind::stopped) return planned.why_not();
  return refusal{refusal::kind::infeasible,
                 "under schedule " + schedule + ", " + (planned ? planned->shortage : planned.why_not().reason)};
}

namespace detail {

/// What an iteration takes at the least, whatever pipelines a target's choices have: what the work of all layers is worth.
[[nodiscard]] inline double least_iteration_within(const cluster& hardware, const costs_by_size& costs,
                                                   const plan_request& request) {
  double least_s = infinity;
  for (const int size : microbatch_sizes(request.global_batch)) {
    if (request.microbatch_size > 0 && size != request.microbatch_size) continue;
    if (request.lacks && !request.lacks(size).empty()) continue;
    for (const auto& choice :
         choices(hardware, costs(size), *request.target, request.global_batch / size, find_precision(request.setting.precision)))
      least_s = std::min(least_s, choice.least_s);
  }
  return least_s < infinity ? least_s : 0;
}

/// Whether that is a planner to compare with, whose refusals prove nothing.
[[nodiscard]] inline bool is_baseline(const planner_entry& planner) {
  const auto names = [&](std::span<const planner_entry> table) {
    return std::any_of(table.begin(), table.end(), [&](const auto& entry) { return entry.name == planner.name; });
  };
  return names(planners_and_baselines()) && !names(planners());
}

/// The first planner of the table, or the first that makes one pipeline if there is one.
[[nodiscard]] inline const planner_entry& first_of(std::span<const planner_entry> table, bool one_pipeline) {
  const auto one =
      std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.one_pipeline || !one_pipeline; });
  return one == table.end() ? table.front() : *one;
}

[[nodiscard]] inline bool takes_one_pipeline(const plan_request& request) {
  return request.target && !request.target->several_pipelines;
}

/// Of schedules for which bounds are proved.
[[nodiscard]] inline bool leaves_backwards_whole(schedule_id schedule) {
  return has_warmups(schedule) || schedule == schedule_id::gpipe;
}

/// Costs for a schedule that keeps a fixed number of microbatches in flight on every stage: their activations count as weights.
struct costs_of_held : any_cost_model {
  int microbatches;
  costs_of_held(any_cost_model costs, int count) : any_cost_model(std::move(costs)), microbatches(count) {}
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    return held(any_cost_model::layer(index, where), where);
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    return held(any_cost_model::stage(layers, where), where);
  }

 private:
  [[nodiscard]] stage_cost held(stage_cost c, const placement& where) const {
    const auto all = static_cast<double>(checked_mul(std::exchange(c.activation_bytes, 0), microbatches));
    c.weight_bytes = checked_add(c.weight_bytes, static_cast<bytes_t>(std::ceil(all * (1 + overheads(where).fragmentation))));
    return c;
  }
};

/// What a search has proven, of a plan that it has not found.
inline void tell_of_better(plan& p) {
  auto& told = *p.evidence;
  told.objective_value = objective_of(p);
  told.objective_bound = std::min(told.objective_bound, told.objective_value);
  told.complete = told.complete && told.objective_bound >= told.objective_value * (1 - tolerance::sums);
}

/// The search of find_plan.
class plan_finder {
 public:
  plan_finder(const cluster& hardware, const costs_by_size& costs, const plan_request& request, const planner_entry& planner)
      : hardware_(hardware),
        costs_(costs),
        request_(request),
        planner_(planner),
        choice_(request.how),
        schedule_(schedule_of(request)),
        turns_(hardware, costs, request, planner) {
    choice_.schedule = schedule_ ? name_of(*schedule_) : "";
    choice_.known.clear();
    choice_.similar.clear();
    choice_.prices = nullptr;
  }

  [[nodiscard]] outcome<plan> run() {
    auto found = orders_last() ? under_orders() : of_many_devices();
    if (found && tries_orders()) found = with_better_order(*std::move(found));
    auto one = on_one_device();
    if (!one || (found && objective_of(*found) <= objective_of(*one))) return found;
    if (found && found->evidence) {
      auto& told = one->evidence.emplace(*found->evidence);
      told.objective_value = objective_of(*one);
      told.objective_bound = std::min(told.objective_bound, told.objective_value);
    }
    if (request_.met) request_.met(*one);
    return *std::move(one);
  }

  /// The first plan that the whole search meets, for which request.wait_for_first has the patience.
  [[nodiscard]] outcome<plan> first_of_all() const {
    std::atomic<bool> any = false;
    auto patient = request_;
    patient.go_on = [&] { return !any && request_.wait_for_first(); };
    patient.met = [&](const plan& p) {
      any = true;
      if (request_.met) request_.met(p);
    };
    return plan_finder(hardware_, costs_, patient, planner_).searched();
  }

 private:
  // Whether plans of the planner's own orders are searched for first, and then played under the schedule that is asked for. One
  // that holds all microbatches suits other sizes.
  [[nodiscard]] bool orders_last() const {
    if (!schedule_ || schedule_ == id_of(request_.how.warmup) || schedule_ == schedule_id::gpipe ||
        schedule_ == schedule_id::looped_bfs)
      return false;
    return !request_.target && !request_.mixed_stages && !is_baseline(planner_) &&
           !(planner_.of_batch && has_warmups(*schedule_)) && request_.objective == plan_objective::iteration;
  }

  // The best of what a search of the planner's own orders ends with at each size, under the schedule.
  [[nodiscard]] outcome<plan> under_orders() {
    auto own = request_;
    own.schedule.clear();
    const auto kind = bound_kind(*schedule_);
    own.how.splits = kind == order_bound_kind::split || kind == order_bound_kind::busy;
    std::vector<plan> met;
    own.met = [&](const plan& p) { met.push_back(p); };
    plan_finder finder(hardware_, costs_, own, planner_);
    const auto found = finder.of_many_devices();
    if (!found) return found;
    auto [best, lacks] = best_under_schedule(*found, met);
    // A schedule that holds more microbatches, one for each stage, say, may have room on other stages.
    auto held = static_cast<int>(found->pipelines.front().stages.size());
    constexpr int tries = 3;
    for (int k = 0; k < tries && lacks && go_on(); ++k) {
      const costs_by_size roomy = [this, held](int size) {
        return any_cost_model::owner_of(costs_of_held{costs_(size), std::min(held, request_.global_batch / size)});
      };
      met.clear();
      const auto other = plan_finder(hardware_, roomy, own, planner_).of_many_devices();
      if (!other) break;
      auto fits = best_under_schedule(*other, met).first;
      const bool fit = fits.has_value();
      if (fit && (!best || objective_of(*fits) < objective_of(*best))) best = std::move(fits);
      // Fewer stages hold fewer; some schedules hold two for each.
      const int stages = static_cast<int>(other->pipelines.front().stages.size()), next = fit ? stages : 2 * stages;
      if (next == held || (best && next > held)) break;
      held = next;
    }
    if (best) best = with_better_cuts(*std::move(best));
    if (!best && !go_on()) {
      auto patient = request_;
      patient.go_on = {};
      best = first_plan(hardware_, costs_, patient, planner_);
      if (!best) return refusal{refusal::kind::stopped, "the search was stopped before it found a plan"};
    }
    if (best && found->evidence) tell_of_orders(*best, *found->evidence, finder.least_work());
    return best;
  }

  // The best of the plans that a search has met under the schedule, and whether the best of its own lacks memory there. Orders
  // are searched for the best plan of each size only; other schedules are soon played, until one plan fits.
  [[nodiscard]] std::pair<outcome<plan>, bool> best_under_schedule(const plan& found, std::vector<plan> met) const {
    const bool orders = schedule_ == schedule_id::searched;  // which takes time
    const std::size_t most = orders ? 1 : 5;                 // of each size
    const double longest = orders ? 1.25 * objective_of(found) : infinity;
    std::stable_sort(met.begin(), met.end(), [](const plan& a, const plan& b) { return objective_of(a) < objective_of(b); });
    met.insert(met.begin(), found);
    std::vector<plan> some;
    std::vector<plan> others;  // of which there are better ones
    std::map<int, std::size_t> count;
    for (auto& p : met) {
      auto& of_size = count[p.pipelines.front().microbatch_size];
      if (objective_of(p) > longest ||
          std::any_of(some.begin(), some.end(), [&](const plan& other) { return other.pipelines == p.pipelines; }))
        continue;
      (++of_size > most ? others : some).push_back(std::move(p));
    }
    const auto first_other = some.size();
    if (!orders) std::move(others.begin(), others.end(), std::back_inserter(some));
    outcome<plan> best = refusal{refusal::kind::infeasible, {}};
    bool lacks = false;
    for (std::size_t k = 0; k < some.size(); ++k) {
      if (best ? k >= first_other || !go_on() : k > 0 && orders && !go_on()) break;
      auto judged = under_schedule(hardware_, costs_, some[k], judging(request_));
      if (judged && request_.met) request_.met(*judged);
      if (k == 0) lacks = !judged;
      if (judged ? !best || objective_of(*judged) < objective_of(*best) : k == 0) best = std::move(judged);
    }
    return {std::move(best), lacks};
  }

  // On few devices, the plan with cuts moved by a layer or two, as long as that is faster: the best cuts of 1F1B are not those of
  // another schedule.
  [[nodiscard]] plan with_better_cuts(plan best) const {
    constexpr int most_tries = 200;
    constexpr double worth = 0.001;
    if (hardware_.device_count() > quickly_placed) return best;
    const double before = objective_of(best);
    int tries = 0;
    for (bool better = true; better;) {
      better = false;
      for (std::size_t l = 0; l < best.pipelines.size(); ++l)
        for (std::size_t i = 0; i + 1 < best.pipelines[l].stages.size(); ++i)
          for (const int step : {1, -1, 2, -2}) {
            auto moved = best;
            auto& line = moved.pipelines[l];
            auto &here = line.stages[i].layers, &next = line.stages[i + 1].layers;
            next.first = here.last += step;
            if (here.size() < 1 || next.size() < 1) continue;
            if (++tries > most_tries || !go_on()) return told_of_cuts(std::move(best), before);
            line.boundaries.clear();
            line.schedule.actions.reset();
            for (auto& s : line.stages) s.warmup = 0;
            auto judged = evaluate(hardware_, costs_, std::move(moved), judging(request_));
            if (!judged || !judged->shortage.empty() || objective_of(judged->plan) >= (1 - worth) * objective_of(best)) continue;
            judged->plan.evidence = best.evidence;
            best = std::move(judged->plan);
            better = true;
          }
    }
    return told_of_cuts(std::move(best), before);
  }
  [[nodiscard]] plan told_of_cuts(plan p, double before) const {
    if (objective_of(p) < before && request_.met) request_.met(p);
    return p;
  }

  // What the search of other orders has proven of a plan under the schedule.
  void tell_of_orders(plan& best, const search_evidence& of_search, double least_work_s) {
    auto& told = best.evidence.emplace(of_search);
    auto kind = bound_kind(*schedule_);
    // Most planners' bounds know no split backwards.
    if (kind == order_bound_kind::split && planner_.name != planners()[0].name && planner_.name != planners()[1].name)
      kind = order_bound_kind::busy;
    if (kind == order_bound_kind::busy || kind == order_bound_kind::nothing) {
      told.objective_bound = kind == order_bound_kind::busy ? std::max(least_busy_s(), least_work_s) : 0;
      told.space = "one pipeline or more, on any devices in any order";
    }
    told.stopped = !go_on();
    if (kind != order_bound_kind::whole) told.sum_bound = 0;  // of a rule that the plan does not keep to
    tell_of_better(best);
    told.complete = told.objective_bound >= told.objective_value * (1 - parallel_pipelines_options{}.gap);
  }

  // What no plan is below under any schedule: devices that never stand idle.
  [[nodiscard]] double least_busy_s() {
    double least = infinity;
    const auto soon = [&] { return go_on(); };
    for (const int size : sizes_with_costs(request_))
      least = std::min(least, work_bound(turns_.book_of(size), request_.global_batch / size, soon, false));
    return least < infinity ? least : 0;
  }

  // The plan that was found, and those of each size that are nearly as good.
  [[nodiscard]] std::vector<plan> best_of_sizes(const plan& found) const {
    constexpr double near = 1.25;
    std::vector<plan> some;
    for (const auto& [size, p] : of_sizes_)
      if (objective_of(p) < near * objective_of(found) && p.pipelines != found.pipelines) some.push_back(p);
    std::stable_sort(some.begin(), some.end(), [](const plan& a, const plan& b) { return objective_of(a) < objective_of(b); });
    some.insert(some.begin(), found);
    return some;
  }

  // Whether plans may run another order than the planner's where that is better: nobody has asked for one.
  [[nodiscard]] bool tries_orders() const {
    const bool asynchronous = sends_of(request_) == send_mode::asynchronous;
    return request_.schedule.empty() && request_.how.warmup == warmup_rule::exact && asynchronous &&
           planner_.name == planners().front().name && request_.objective == plan_objective::iteration &&
           !request_.mixed_stages && (!request_.target || allows(*request_.target, schedule_id::searched));
  }

  // The plan, or one of nearly the same iteration with layers cut anew, in an order that is shorter by `worth`: any order of
  // whole backwards is within what bounds speak of, but fewer programs run one than run 1F1B.
  [[nodiscard]] plan with_better_order(plan found) {
    constexpr double near = 1.03, worth = 0.005;
    if (found.evidence && found.evidence->objective_bound >= (1 - worth) * objective_of(found)) return found;
    auto how = judging(request_);
    const auto soon = [&] { return go_on(); };
    const auto in_time = [&](double, double) { return go_on(); };
    how.progress = in_time;
    std::optional<plan> best;
    price_books books(hardware_, costs_);
    for (const auto& p : best_of_sizes(found)) {
      if (objective_of(p) > near * objective_of(found)) break;
      auto cuts = recut(books, p, soon);
      cuts.insert(cuts.begin(), p);
      for (const auto& candidate : cuts) {
        if (!go_on()) break;
        auto judged = with_whole_orders(hardware_, costs_, candidate, (1 - worth) * objective_of(best ? *best : found), how);
        if (!judged) continue;
        if (request_.target && !gaps(*judged, *request_.target, hardware_).empty()) continue;
        best = std::move(judged);
      }
    }
    if (!best) return found;
    best->evidence = found.evidence;
    best->setting = request_.setting;
    if (best->evidence) tell_of_better(*best);
    if (request_.met) request_.met(*best);
    return *std::move(best);
  }

  // Planners know the memory of devices that work with others; one that works by itself has more. The best plan on one device
  // that needs more than they know of; none if there is none.
  [[nodiscard]] std::optional<plan> on_one_device() const {
    std::optional<plan> best;
    const int devices = hardware_.device_count();
    if (request_.use_all_devices && devices > 1) return best;
    for (const int size :
         request_.microbatch_size > 0 ? std::vector{request_.microbatch_size} : microbatch_sizes(request_.global_batch)) {
      if (request_.lacks && !request_.lacks(size).empty()) continue;
      const auto costs = costs_(size);
      const layer_range all{0, costs.layer_count()};
      bool any = false;
      for (int k = 0; k < static_cast<int>(hardware_.subclusters.size()); ++k)
        for (const auto& where : costs.placements({k, 1, 1})) {
          const auto more = costs.overheads(where);
          if (alone(more) == more) continue;
          const auto held = costs.stage(all, where);
          const auto capacity = at(hardware_.subclusters, k).device.memory_bytes;
          if (memory_of(held, alone(more), 1).total() > capacity) continue;
          any = true;
          if (memory_of(held, more, 1).total() <= capacity) continue;
          auto judged = judged_alone(where, all, size);
          if (judged && (!best || objective_of(*judged) < objective_of(*best))) best = std::move(judged);
        }
      if (!any) break;  // nor with larger ones
    }
    if (best)
      best->evidence = search_evidence{.objective_value = objective_of(*best),
                                       .objective_bound = devices == 1 ? objective_of(*best) : 0,
                                       .complete = devices == 1,
                                       .space = "all layers on one device"};
    return best;
  }

  [[nodiscard]] std::optional<plan> judged_alone(const placement& where, layer_range all, int size) const {
    pipeline_plan line{.microbatches = request_.global_batch / size, .microbatch_size = size};
    line.schedule.name = name_of(schedule_.value_or(id_of(request_.how.warmup)));
    line.stages.push_back({.layers = all,
                           .devices = {{where.mesh, 0}},
                           .degrees = where.degrees,
                           .recompute = where.recompute,
                           .zero = where.zero});
    plan p;
    p.planner = planner_.name;
    p.objective = request_.objective;
    p.setting = request_.setting;
    p.pipelines.push_back(std::move(line));
    if (request_.target && !gaps(p, *request_.target, hardware_).empty()) return {};
    outcome<evaluation> judged = refusal{refusal::kind::infeasible, {}};
    try {
      judged = evaluate(hardware_, costs_, std::move(p), judging(request_));
    } catch (const input_error&) {  // of a schedule for more ranks
      return {};
    }
    if (!judged || !judged->shortage.empty() || judged->plan.predicted.iteration_s > request_.deadline_s) return {};
    judged->plan.setting = request_.setting;
    return std::move(judged->plan);
  }

  // Whether what a first look at a size asks is kept for its search. Of costs that are no sums of layers, and of many
  // subclusters, that is much for each size.
  [[nodiscard]] bool keeps_prices() {
    constexpr std::size_t few = 16;
    if (hardware_.subclusters.size() > few) return false;
    const auto sizes = sizes_with_costs(request_);
    return !sizes.empty() && turns_.book_of(sizes.front()).additive();
  }

  [[nodiscard]] outcome<plan> of_many_devices() {
    bound_work();
    if (turns_.suit() && go_on()) turns_.take();
    if (!keeps_prices()) turns_.forget_prices();
    auto found = searched();
    if (turns_.best() && turns_.first_cut() && !go_on()) {
      auto patient = request_;
      patient.go_on = {};
      turns_.keep(first_plan(hardware_, costs_, patient, planner_));
    }
    if (turns_.best()) return better_of(std::move(found));
    if (go_on() || (!found && found.why_not().why != refusal::kind::stopped) ||
        (found && found->evidence && found->evidence->complete))
      return found;
    // What was ended early may be worse than what takes no time.
    if (found && request_.target) return found;
    auto patient = request_;
    patient.go_on = {};
    auto soon = request_.target ? first_within_target() : first_plan(hardware_, costs_, patient, planner_);
    if (!found && !soon) return soon;
    if (!soon || (found && objective_of(*found) <= objective_of(*soon))) return found;
    soon->evidence->stopped = true;
    tell_work(*soon->evidence, objective_of(*soon));
    if (found && found->evidence) {
      soon->evidence->objective_bound = std::min(found->evidence->objective_bound, objective_of(*soon));
      soon->evidence->space = found->evidence->space;
    }
    if (request_.met) request_.met(*soon);
    return soon;
  }

  /// What the search found, or what it began with, if that is better, with what is known of all plans.
  [[nodiscard]] outcome<plan> better_of(outcome<plan> found) {
    auto best = *turns_.best();
    if (found && objective_of(*found) <= objective_of(best)) return found;
    search_evidence told;
    tell_work(told, objective_of(best));
    if (found && found->evidence) told = *found->evidence;
    told.objective_value = objective_of(best);
    told.objective_bound = std::min(told.objective_bound, told.objective_value);
    told.complete = told.complete && told.objective_bound >= told.objective_value * (1 - tolerance::sums);
    told.stopped = !go_on();
    best.evidence = std::move(told);
    return best;
  }

  /// What no plan of a size is below, by its work; 0 where that is not known.
  [[nodiscard]] double work_of(int size) const {
    const auto known = work_.find(size);
    return known == work_.end() ? 0 : known->second;
  }
  /// What no plan of any size is below.
  [[nodiscard]] double least_work() const {
    double least = infinity;
    for (const int size : sizes_with_costs(request_)) least = std::min(least, work_of(size));
    return least < infinity ? least : 0;
  }
  void tell_work(search_evidence& told, double value) const {
    told.objective_bound = std::min(least_work(), value);
    if (told.objective_bound > 0) told.space = "one pipeline or more, on any devices in any order";
  }
  /// Searches that are ended have looked at some sizes only: of the others that much is known, if it takes little of the time.
  void bound_work() {
    constexpr int soon_told = 1024;  // devices of which it takes a hundredth of a search that nothing ends
    if (!request_.go_on || (!request_.spent && hardware_.device_count() > soon_told) ||
        planner_.name != planners().front().name || request_.objective != plan_objective::iteration || request_.mixed_stages ||
        request_.target || (schedule_ && !leaves_backwards_whole(*schedule_)))
      return;
    constexpr double share = 0.1;  // of a time budget; turns use what is looked up
    const double end = request_.spent ? request_.spent() + share : 0;
    const auto soon = [&] { return (!request_.spent || request_.spent() < end) && go_on(); };
    for (const int size : sizes_with_costs(request_)) {
      if (!soon()) break;
      work_[size] = work_bound(turns_.book_of(size), request_.global_batch / size, soon, !request_.how.splits);
    }
  }

  [[nodiscard]] outcome<plan> searched() {
    const int one_size = request_.microbatch_size;
    // Of more devices first plans say less, and searches of small microbatches are short.
    const int devices = hardware_.device_count();
    const double alike = devices > quickly_placed && devices <= quickly_begun ? 1.08 : 1;
    if (planner_.of_batch && one_size == 0 && !request_.mixed_stages && !request_.target &&
        (request_.schedule.empty() || has_warmups(request_.schedule))) {
      auto found = of_batch();
      if (found && found->evidence) found->evidence->stopped = !go_on();
      if (found && request_.met) request_.met(*found);
      if (found || found.why_not().why == refusal::kind::stopped) return found;
      // Else the search of each size tells more.
    }
    auto found = one_size > 0 ? of_size({.microbatch_size = one_size, .microbatches = request_.global_batch / one_size})
                              : best_microbatch_size(
                                    request_.global_batch, [&](const size_request& asked) { return of_size(asked); },
                                    [&] { return go_on(); }, [&](int size) { return work_of(size); }, alike);
    hurry_ = false;
    for (const int size : given_up_) found = with_size_that_was_given_up(std::move(found), size);
    if (!found && !refusals_.empty()) return most_telling_refusal();  // says more than a size without costs
    if (found && found->evidence) found->evidence->stopped = !go_on();
    return found;
  }

  // Whether within_target has more than one problem to search, or costs of its own.
  [[nodiscard]] static bool leaves_choices(const plan_target& t) {
    const bool any_devices = t.precisions.size() == plan_target{}.precisions.size() && !t.one_precision && t.fp16_experts &&
                             !t.joined_by_nccl && !t.hosts_in_a_row;
    return !any_devices || !t.equal.empty() || !t.zero_alone.empty() || t.cuts != target_cuts::layers;
  }

  [[nodiscard]] bool go_on() const { return !request_.go_on || request_.go_on(); }
  void tell(const find_progress& where) const {
    if (request_.progress) request_.progress(where);
  }

  // By a planner that decides about microbatches by itself.
  [[nodiscard]] outcome<plan> of_batch() const {
    auto problem = problem_of(request_, 1);
    problem.progress = [&](const search_progress& state) {
      tell({.search = state});
      return go_on();
    };
    auto found = planner_.of_batch(hardware_, costs_, request_.global_batch, problem, choice_);
    if (found) found->setting = request_.setting;
    return found;
  }

  [[nodiscard]] outcome<plan> of_size(const size_request& asked) {
    const int size = asked.microbatch_size;
    // What another schedule makes of a plan, and a cheap plan that is in time, takes the whole search.
    const bool soon = hurry_ && asked.first_plan && request_.schedule.empty() &&
                      request_.objective == plan_objective::iteration && !request_.mixed_stages;
    if (const auto known = whole_.find(size); known != whole_.end()) return known->second;
    if (request_.lacks)
      if (auto why = request_.lacks(size); !why.empty()) return refusal{refusal::kind::infeasible, std::move(why)};
    auto problem = problem_of(request_, size);
    problem.beat = asked.beat;
    problem.enough = asked.enough;
    problem.progress = [&](const search_progress& state) {
      tell({.search = state, .microbatch_size = size, .before = best_before_});
      return !soon && go_on();
    };
    auto choice = choice_;
    choice.others_s = best_before_;
    // Plans of other choices are no start for a target's, nor are those whose layers it sees joined.
    if (const auto& t = request_.target; !t || !leaves_choices(*t)) {
      if (const auto known = first_look_.find(size); known != first_look_.end()) choice.known = known->second;
      const auto* best = asked.best;
      if (const auto& begun = turns_.best(); begun && (!best || objective_of(*begun) < objective_of(*best))) best = &*begun;
      if (best) choice.similar = with_microbatch_size(*best, size).value_or(std::vector<pipeline_plan>{});
    }
    if (!request_.target && keeps_prices()) choice.prices = &turns_.book_of(size);
    const auto how = judging(request_);
    const auto make = [&](const cluster& hardware, const costs_by_size& costs, const planning_problem& own) {
      return planned(hardware, costs, own, choice, how, soon, planner_.make);
    };
    auto found = request_.target ? within_target(hardware_, costs_, *request_.target, problem, make,
                                                 {.setting = request_.setting, .judging = how, .proves = !is_baseline(planner_)})
                                 : make(hardware_, costs_, problem);
    if (takes_one_pipeline(request_) && !request_.mixed_stages && planner_.name == first_of(planners(), true).name) {
      if (!soon) found = with_other_planners(std::move(found), problem, how);
      if (request_.target->equal_pipelines) found = with_equal_pipelines(std::move(found), problem, how);
    }
    if (schedule_) found = no_worse_than_known(std::move(found), size);
    if (found) {
      found->setting = request_.setting;
      best_before_ = std::min(best_before_, objective_of(*found));
      const auto [known, first] = of_sizes_.try_emplace(size, *found);
      if (!first && objective_of(*found) < objective_of(known->second)) known->second = *found;
      if (request_.met) request_.met(*found);
    } else {
      if (soon && found.why_not().why == refusal::kind::stopped && go_on()) {
        given_up_.push_back(size);  // the other sizes have their turn first
        return refusal{refusal::kind::infeasible, found.why_not().reason};
      }
      refusals_[size] = found.why_not();
    }
    if (asked.first_plan && !soon) whole_.emplace(size, found);
    return found;
  }

  // What a size's search found, or what it found before: what is better by the planner's own orders may be worse under another
  // schedule, or lack memory there.
  [[nodiscard]] outcome<plan> no_worse_than_known(outcome<plan> found, int size) const {
    const auto known = of_sizes_.find(size);
    if (known == of_sizes_.end() || (found && objective_of(*found) <= objective_of(known->second))) return found;
    auto best = known->second;
    if (found && found->evidence) {
      best.evidence = found->evidence;
      tell_of_better(best);
    }
    return best;
  }

  using maker = decltype(planner_entry::make);

  // The best of a plan of one pipeline, of single devices and of equal parts, where there are few devices to search.
  [[nodiscard]] outcome<plan> with_other_planners(outcome<plan> found, planning_problem problem, const evaluate_options& how) {
    if (problem.objective != plan_objective::iteration || hardware_.device_count() > quickly_placed) return found;
    if (found && found->evidence && found->evidence->complete) return found;
    constexpr maker singles = [](const auto& hardware, const auto& costs, const auto& own, const auto&) -> outcome<plan> {
      if (!costs.additive()) return refusal{refusal::kind::not_applicable, "costs are no sums of layers"};
      return place_stages(hardware, costs, own, {.prove = false});
    };
    constexpr maker alike = [](const auto& hardware, const auto& costs, const auto& own, const auto& choice) {
      return hetauto_exact(hardware, costs, own, {.warmup = choice.warmup, .epsilon = choice.epsilon, .prove = false});
    };
    for (const auto other_planner : {singles, alike}) {
      if (!go_on()) break;
      // It has a rule of its own, which only a schedule that is asked for takes the place of.
      if (other_planner == singles && !schedule_ && choice_.warmup != warmup_rule::exact) continue;
      problem.beat = std::min(problem.beat, sums_below * std::min(best_before_, found ? objective_of(*found) : infinity));
      const auto make = [&](const cluster& hardware, const costs_by_size& costs, const planning_problem& own) {
        return planned(hardware, costs, own, choice_, how, false, other_planner);
      };
      auto other = within_target(hardware_, costs_, *request_.target, problem, make,
                                 {.setting = request_.setting, .judging = how, .proves = false});
      if (!other) continue;
      other->planner = planner_.name;
      if (!found) return other;
      if (!(objective_of(*other) < objective_of(*found))) continue;
      if (found->evidence) {  // of a space that has the other's
        other->evidence = found->evidence;
        tell_of_better(*other);
      }
      found = std::move(other);
    }
    return found;
  }

  // The better of a plan of one pipeline and of the best one of several that are cut alike, which a size is asked for once.
  [[nodiscard]] outcome<plan> with_equal_pipelines(outcome<plan> found, planning_problem problem, const evaluate_options& how) {
    if (problem.objective != plan_objective::iteration || !copied_.insert(problem.microbatch_size).second) return found;
    problem.beat = std::min(problem.beat, best_before_);
    if (found) problem.beat = std::min(problem.beat, objective_of(*found));
    problem.progress = [&](const search_progress&) { return go_on(); };
    const bool named = schedule_ && schedule_ != schedule_id::searched;
    const baseline_options options{.schedule = std::string(name_of(named ? *schedule_ : id_of(request_.how.warmup))),
                                   .epsilon = request_.how.epsilon};
    const auto make = [&](const cluster& hardware, const costs_by_size& costs, const planning_problem& own) -> outcome<plan> {
      auto other = equal_pipelines(hardware, costs(own.microbatch_size), own, options);
      if (other && schedule_ && !runs_already(*other) && schedule_ != schedule_id::one_f_one_b)
        other = under_schedule(hardware, costs, *std::move(other), how);
      return other;
    };
    auto other = within_target(hardware_, costs_, *request_.target, problem, make,
                               {.setting = request_.setting, .judging = how, .proves = false});
    if (!other || (found && !(objective_of(*other) < objective_of(*found)))) return found;
    // What work takes on all devices bounds copies, too; of one pipeline more may be known.
    search_evidence evidence = other->evidence.value_or(search_evidence{});
    if (found && found->evidence) {
      evidence.work = found->evidence->work;
      evidence.objective_bound = std::min(evidence.objective_bound, found->evidence->objective_bound);
      evidence.stopped = found->evidence->stopped;
    }
    evidence.objective_value = objective_of(*other);
    evidence.objective_bound = std::min(evidence.objective_bound, evidence.objective_value);
    evidence.complete = false;
    evidence.sum_bound = 0;
    evidence.space = "one pipeline, or copies of one";
    other->evidence = std::move(evidence);
    return other;
  }

  // By a planner, under the schedule that is asked for.
  [[nodiscard]] outcome<plan> planned(const cluster& hardware, const costs_by_size& costs, const planning_problem& problem,
                                      planner_choice choice, const evaluate_options& how, bool soon, maker make) {
    const int size = problem.microbatch_size;
    auto found = make(hardware, costs(size), problem, choice);
    if (found && soon) first_look_[size] = found->pipelines;
    choice.prices = nullptr;
    if (request_.mixed_stages) {
      choice.known.clear();
      choice.similar.clear();  // both are of the cluster as it is, not as planners see it
      found = with_mixed_stages(hardware, costs, problem, how, std::move(found),
                                [&](const cluster& seen, const any_cost_model& mixed, const planning_problem& asked_again) {
                                  return make(seen, mixed, asked_again, choice);
                                });
    }
    if (found && schedule_ && !runs_already(*found)) {
      const auto evidence = found->evidence;
      found = under_schedule(hardware, costs, *std::move(found), how);
      // A schedule that holds more microbatches may have room on other stages.
      if (!found && found.why_not().why == refusal::kind::infeasible && !request_.mixed_stages && !soon && go_on()) {
        choice.known.clear();
        choice.similar.clear();
        const auto all_held = any_cost_model::owner_of(costs_of_held{costs(size), problem.microbatches});
        auto other = make(hardware, all_held, problem, choice);
        if (other) other = under_schedule(hardware, costs, *std::move(other), how);
        if (other) {
          other->evidence = evidence;
          found = std::move(other);
        }
      }
      if (found && found->evidence) tell_of_schedule(*found);
    }
    return found;
  }

  // The first plan of any choice.
  [[nodiscard]] outcome<plan> first_within_target() const {
    auto request = request_;
    request.schedule = choice_.schedule;
    request.target.reset();
    outcome<plan> found = refusal{refusal::kind::stopped, "the search was stopped before it found a plan"};
    int size = request_.microbatch_size;
    for (const int other : microbatch_sizes(request_.global_batch))
      if (size == 0 && (!request_.lacks || request_.lacks(other).empty())) size = other;
    if (size == 0) return found;  // no size has costs
    const auto& t = *request_.target;
    auto all = choices(hardware_, costs_(size), t, request_.global_batch / size, find_precision(request_.setting.precision));
    for (std::size_t next = 0; next < all.size(); ++next) {
      const auto choice = all[next];
      if (request.use_all_devices && !choice.nodes.empty()) continue;
      const auto own = [&](int asked) { return target_costs(costs_(asked), t, choice); };
      auto first = first_plan(hardware_of(choice, hardware_), own, request, planner_);
      if (first) {
        const auto view = own(first->pipelines.front().microbatch_size);
        first = with_own_layers(hardware_, costs_, view, *std::move(first), judging(request_));
      }
      if (!first) {
        if (!found) found = std::move(first);
        continue;
      }
      first->setting = request_.setting;
      if (gaps(*first, t, hardware_).empty()) return first;
      if (t.hosts_in_a_row && choice.stage_devices == 0)
        for (auto& other : with_equal_stages(choice, hardware_)) all.push_back(std::move(other));
    }
    return found;
  }

  // That nothing is feasible says more than that a search ended; but where the caller has stopped one, more time may be the way
  // out. Of equals that of the smallest size.
  [[nodiscard]] refusal most_telling_refusal() const {
    using enum refusal::kind;
    auto order = std::array{infeasible, not_applicable, stopped};
    if (!go_on()) std::swap(order.front(), order.back());
    for (const auto kind : order)
      for (const auto& [size, why] : refusals_)
        if (why.why == kind) return why;
    return refusals_.begin()->second;
  }

  // Where nobody asks for a schedule, a target's plans have any that it runs: baselines go back to 1F1B where theirs has no room.
  [[nodiscard]] bool runs_already(const plan& p) const {
    const bool any = request_.schedule.empty() && request_.target && is_baseline(planner_);
    return std::all_of(p.pipelines.begin(), p.pipelines.end(), [&](const auto& line) {
      return id_of(line.schedule) == schedule_ || (any && allows(*request_.target, line.schedule.name));
    });
  }

  // Bounds speak of schedules that leave forwards and backwards of a stage whole; of others, what devices do is known.
  void tell_of_schedule(plan& p) {
    const bool busy = bound_kind(*schedule_) != order_bound_kind::nothing && !request_.mixed_stages &&
                      request_.objective == plan_objective::iteration;
    if (!leaves_backwards_whole(*schedule_)) {
      const int size = p.pipelines.front().microbatch_size;
      const auto soon = [&] { return go_on(); };
      p.evidence->objective_bound = busy ? work_bound(turns_.book_of(size), request_.global_batch / size, soon, false) : 0;
    }
    tell_of_better(p);
  }

  [[nodiscard]] outcome<plan> under_schedule(const cluster& hardware, const costs_by_size& costs, plan p,
                                             evaluate_options how) const {
    const int size = p.pipelines.front().microbatch_size;
    const auto tell_schedule = [&](double best_s, double bound_s) {
      tell({.search = {.incumbent = best_s, .bound = bound_s}, .microbatch_size = size, .schedule = choice_.schedule});
      return go_on();
    };
    how.progress = tell_schedule;
    return plan_under_schedule(hardware, costs, std::move(p), choice_.schedule, how,
                               !request_.use_all_devices && request_.objective == plan_objective::iteration);
  }

  // A first look at a size may end without an answer: then it is searched when all others have been.
  [[nodiscard]] outcome<plan> with_size_that_was_given_up(outcome<plan> found, int size) {
    const plan* best = found ? &*found : nullptr;
    auto again = of_size({.microbatch_size = size,
                          .microbatches = request_.global_batch / size,
                          .beat = best ? objective_of(*best) : infinity,
                          .best = best});
    if (!again && again.why_not().why != refusal::kind::stopped) return found;
    // What is known of all sizes together.
    std::optional<search_evidence> both;
    if (found && found->evidence && again && again->evidence) {
      both = found->evidence;
      both->objective_bound = std::min(both->objective_bound, std::max(again->evidence->objective_bound, work_of(size)));
      both->complete = both->complete && (again->evidence->complete || again->evidence->objective_bound >= objective_of(*found));
    } else if (found && found->evidence) {
      both = found->evidence;
      both->objective_bound = std::min(both->objective_bound, work_of(size));
      both->complete = false;
    } else if (again && again->evidence && found.why_not().why == refusal::kind::stopped) {
      both = again->evidence;
      both->objective_bound = std::min(both->objective_bound, least_work());  // of sizes that nobody looked at
      both->complete = false;
    }
    if (again && (!found || objective_of(*again) < objective_of(*found))) found = std::move(again);
    if (found && both) {
      both->objective_value = objective_of(*found);
      found->evidence = both;
    }
    return found ? std::move(found) : std::move(again);
  }

  const cluster& hardware_;
  const costs_by_size& costs_;
  const plan_request& request_;
  const planner_entry& planner_;
  planner_choice choice_;
  std::optional<schedule_id> schedule_;  // that stages are to run; none: the planner's
  search_turns turns_;
  double best_before_ = infinity;
  std::map<int, refusal> refusals_;     // by the planner, of each size the last one
  std::map<int, outcome<plan>> whole_;  // sizes that were searched to the end at once
  std::map<int, std::vector<pipeline_plan>> first_look_;
  std::map<int, double> work_;    // what no plan of a size is below
  std::map<int, plan> of_sizes_;  // the best of each
  bool hurry_ = true;             // first looks may end without an answer
  std::set<int> copied_;          // sizes for which pipelines cut alike were searched
  std::vector<int> given_up_;     // sizes where one has
};

inline void validate(const plan_request& request) {
  if (request.global_batch < 1) throw input_error("the global batch must be at least 1");
  if (request.microbatch_size < 0 || (request.microbatch_size > 0 && request.global_batch % request.microbatch_size != 0))
    throw input_error("microbatches of " + std::to_string(request.microbatch_size) +
                      " samples do not divide the global batch of " + std::to_string(request.global_batch));
  if (request.schedule.empty() || find_schedule_id(request.schedule)) return;
  throw input_error("there is no schedule " + request.schedule);
}

// A request for a target with what the target leaves no choice of. Throws: input_error for what does not go with it.
[[nodiscard]] inline plan_request for_target(plan_request request, const planner_entry& planner) {
  const auto& t = *request.target;
  validate(t);
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw input_error("target " + t.name + " " + what);
  };
  require(t.several_pipelines || planner.one_pipeline || (t.equal_pipelines && planner.equal_pipelines),
          "runs one pipeline, and planner " + std::string(planner.name) + " makes several");
  require(t.uneven_shares || !request.mixed_stages, "shares the work of a stage equally: mixed stages do not");
  require(t.cuts == target_cuts::layers || request.setting.granularity != "sublayer",
          "cuts between blocks, and costs are of their parts (granularity sublayer)");
  require(request.schedule.empty() || allows(t, request.schedule),
          "does not run schedule " + request.schedule + "; it runs: " + space_of(t));
  for (const auto rule : {warmup_rule::exact, warmup_rule::h1f1b, warmup_rule::one_f_one_b, warmup_rule::eager})
    if (!allows(t, id_of(request.how.warmup)) && allows(t, id_of(rule))) request.how.warmup = rule;
  if (!t.several_pipelines) request.how.one_order = true;
  const auto schedule = schedule_of(request);
  if (!t.recompute_parted && schedule && parts_backwards(*schedule)) {
    require(std::find(t.recompute.begin(), t.recompute.end(), recomputation::none) != t.recompute.end(),
            "recomputes always, and not where a schedule parts backwards, as " + std::string(name_of(*schedule)));
    request.target->recompute = {recomputation::none};
  }
  request.setting.target = t.name;
  return request;
}

}  // namespace detail

namespace detail {

// Whether the k-th of so many searches may go on that follow the search: of a time budget they have nearly as much as it had.
// Requires: the request outlives it.
[[nodiscard]] inline std::function<bool(std::size_t k)> further_time(const plan_request& request, std::size_t count,
                                                                     double best_s) {
  const double begin = request.spent ? request.spent() : 0, end = std::max(begin, 1.0) + 0.875;
  return [=, &request](std::size_t k) {
    if (request.sends_go_on ? !request.sends_go_on(0, best_s) : request.go_on && !request.go_on()) return false;
    const double until = begin + (end - begin) * static_cast<double>(k + 1) / static_cast<double>(count);
    return !request.spent || request.spent() < until;
  };
}

// Tells request.met what other planners find, which goes by other rules and lies elsewhere than the best plan for transfers
// beside computing: plans of fewer, wider stages, or of more warm-ups. The sizes near that of the best plan first.
inline void ask_others(const cluster& hardware, const costs_by_size& costs, const plan_request& request, const plan& best) {
  auto sizes = request.microbatch_size > 0 ? std::vector{request.microbatch_size} : microbatch_sizes(request.global_batch);
  std::erase_if(sizes, [&](int size) { return request.lacks && !request.lacks(size).empty(); });
  const auto away = [&](int size) { return std::abs(std::log(1.0 * size / best.pipelines.front().microbatch_size)); };
  std::stable_sort(sizes.begin(), sizes.end(), [&](int a, int b) { return away(a) < away(b); });
  constexpr std::array others{"hexiscale", "hetauto", "uniform"};
  const bool all_have_costs = request.microbatch_size == 0 && sizes.size() == microbatch_sizes(request.global_batch).size();
  const auto may_go_on = further_time(request, others.size(), best.predicted.iteration_s);
  for (std::size_t k = 0; k < others.size(); ++k) {
    const auto& other = planner_named(others[k]);
    const auto ask = [&](int size, bool whole_batch, bool soon) {
      auto problem = problem_of(request, size);
      problem.go_on = [&] { return may_go_on(k); };
      if (!problem.go_on()) return;
      problem.progress = [&](const search_progress&) { return !soon && problem.go_on(); };
      auto found = whole_batch ? other.of_batch(hardware, costs, request.global_batch, problem, request.how)
                               : other.make(hardware, costs(size), problem, request.how);
      if (!found) return;
      found->planner = best.planner;
      found->setting = request.setting;
      request.met(*found);
    };
    if (other.of_batch && all_have_costs)
      ask(1, true, false);
    else  // first plans of all sizes, as small microbatches may take all of the time
      for (const bool soon : {true, false})
        for (const int size : sizes) ask(size, false, soon);
  }
}

// What find_plan finds for transfers beside computing.
[[nodiscard]] inline outcome<plan> planned(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                           const planner_entry& planner) {
  // A rule of warm-ups is what planners plan for.
  auto ruled = request;
  if (const auto rule = request.schedule.empty() ? std::nullopt : rule_of(schedule_named(request.schedule)))
    ruled.how.warmup = *rule;
  if (!request.target) return detail::plan_finder(hardware, costs, ruled, planner).run();
  if (request.setting.further_tokens > 0 && !request.target->further_tokens)
    return refusal{refusal::kind::infeasible, request.target->name +
                                                  " can run none: the model's head predicts further tokens than the next "
                                                  "(further_tokens; num_nextn_predict_layers of a config.json)"};
  const auto own = detail::for_target(ruled, planner);
  auto found = detail::plan_finder(hardware, costs, own, planner).run();
  if (!found && found.why_not().why == refusal::kind::stopped && request.wait_for_first)
    found = detail::plan_finder(hardware, costs, own, planner).first_of_all();
  if (found && found->evidence && found->pipelines.size() > 1 && !own.target->several_pipelines) {
    // Copies are searched by a heuristic, and refusals of searches for one pipeline say nothing of them.
    auto& e = *found->evidence;
    e.objective_bound = std::min(e.objective_bound, detail::least_iteration_within(hardware, costs, own));
    e.complete = false;
  }
  if (found && found->evidence) {
    auto& space = found->evidence->space;
    space += (space.empty() ? "plans that " : ", that ") + own.target->name + " runs";
  }
  if (found || found.why_not().why != refusal::kind::infeasible) return found;
  // How much the target's rules cost may be what a user wants to know.
  auto any = ruled;
  any.target.reset();
  any.setting.target.clear();
  const auto free = detail::plan_finder(hardware, costs, any, planner).run();
  const auto& t = *request.target;
  auto text = t.name + " can run none: " + found.why_not().reason;
  if (free) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.4g s", free->predicted.iteration_s);
    const auto in_the_way = gaps(*free, t, hardware);
    text += "; without that: " + std::string(seconds);
    if (!in_the_way.empty()) text += ", but " + to_text(in_the_way.front());
  }
  return refusal{refusal::kind::infeasible, std::move(text)};
}

// Adds plans of earlier deadlines to those of which the first one is in time only with transfers beside computing, and takes
// late_s with its sends: in steps of which the last is as far as the plan before it is late, until one costs more than another
// does with its sends. Returns: what the last one takes with its sends.
[[nodiscard]] inline double add_earlier(std::vector<plan>& plans, const cluster& hardware, const costs_by_size& costs,
                                        const plan_request& request, const planner_entry& planner, send_mode sends,
                                        double late_s) {
  auto one = request;
  plan last = plans.front();
  double last_s = late_s, least = infinity;
  constexpr std::size_t tries = 3;
  one.wait_for_first = {};
  const auto may_go_on = further_time(request, tries, last.predicted.iteration_s);
  for (std::size_t k = 0; k < tries && last_s < infinity && may_go_on(k); ++k) {
    const double step = std::pow(request.deadline_s / last_s, 1.0 / static_cast<double>(tries - k));
    one.deadline_s = last.predicted.iteration_s * std::min(0.99, step);
    one.go_on = [&] { return may_go_on(k); };
    auto earlier = planned(hardware, costs, one, planner);
    if (!earlier) break;
    last = *std::move(earlier);
    last_s = sent_s(hardware, costs, request, last, sends);
    plans.push_back(last);
    if (last_s <= request.deadline_s) least = std::min(least, objective_of(last) * (last_s / last.predicted.iteration_s));
    if (objective_of(last) >= least * (1 - tolerance::sums)) break;
  }
  return last_s;
}

// Where a search for the cheapest plan within a deadline found none: the fastest one, if that is in time, and what small changes
// make of it.
[[nodiscard]] inline outcome<plan> or_fastest_in_time(const cluster& hardware, const costs_by_size& costs,
                                                      const plan_request& request, const planner_entry& planner,
                                                      outcome<plan> found) {
  if (found || found.why_not().why != refusal::kind::infeasible || !(request.deadline_s < infinity) ||
      (request.go_on && !request.go_on()))
    return found;
  auto fast = request;
  fast.objective = plan_objective::iteration;
  fast.deadline_s = infinity;
  fast.progress = {};  // it would tell seconds among what is money, and plans of another objective
  fast.met = {};
  auto fastest = planned(hardware, costs, fast, planner);
  if (!fastest) return found;
  if (fastest->predicted.iteration_s > request.deadline_s) return too_late(request.deadline_s, fastest->predicted.iteration_s);
  const int size = fastest->pipelines.front().microbatch_size;
  fastest->objective = request.objective;
  fastest->evidence = search_evidence{.objective_value = objective_of(*fastest), .stopped = request.go_on && !request.go_on()};
  // Small changes know the planner's own schedules, and no other rules.
  if (!request.target && !request.mixed_stages && request.schedule.empty()) {
    auto cheaper = parallel_pipelines(hardware, costs(size), problem_of(request, size),
                                      {.warmup = request.how.warmup,
                                       .epsilon = request.how.epsilon,
                                       .hopeless = infinity,
                                       .start = {fastest->pipelines},
                                       .search = pipelines_search::changes});
    if (cheaper && objective_of(*cheaper) < objective_of(*fastest)) {
      cheaper->planner = fastest->planner;
      cheaper->setting = fastest->setting;
      fastest = std::move(cheaper);
    }
  }
  if (request.met) request.met(*fastest);
  return fastest;
}

}  // namespace detail

HETSCHED_INLINE outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                        const planner_entry& planner) {
  detail::validate(request);
  if (request.device_bias != 0) {
    auto found = find_unbiased_plan(hardware, request, planner);
    if (!found) return found.why_not();
    return std::move(found->plan);
  }
  const auto sends = detail::sends_of(request);
  if (sends == send_mode::asynchronous)
    return detail::or_fastest_in_time(hardware, costs, request, planner, detail::planned(hardware, costs, request, planner));
  std::vector<plan> plans;
  auto one = request;
  one.met = [&](const plan& p) {
    plans.push_back(p);
    if (request.met) request.met(p);
  };
  auto found = detail::planned(hardware, costs, one, planner);
  if (!found) return found;
  // What a search of larger parts passes over may be shorter with sends. One that was ended has heard of these.
  const bool usual = planner.name == planners().front().name;
  const bool by_time = request.objective == plan_objective::iteration;
  if (usual && by_time && !request.target && (!request.go_on || request.go_on()))
    static_cast<void>(first_plan(hardware, costs, one, planner));
  const bool free = request.schedule.empty() && request.how.warmup == warmup_rule::exact;
  if (usual && by_time && free && !request.target && !request.mixed_stages) detail::ask_others(hardware, costs, one, *found);
  plans.insert(plans.begin(), *found);  // whose evidence is that of the plan that is chosen
  double last_s = detail::sent_s(hardware, costs, request, *found, sends);
  if (!by_time && last_s > request.deadline_s) last_s = detail::add_earlier(plans, hardware, costs, one, planner, sends, last_s);
  sends_options options{
      .how = {.flops_per_sample = request.flops_per_sample, .arithmetic = request.arithmetic, .epsilon = request.how.epsilon},
      .objective = request.objective,
      .deadline_s = request.deadline_s,
      .rules = free};
  if (request.target) options.runs = [&](const plan& p) { return gaps(p, *request.target, hardware).empty(); };
  options.go_on = request.sends_go_on;
  if (!options.go_on && request.go_on) options.go_on = [&](int, double) { return request.go_on(); };
  const auto chosen = [&] {
    // Neighbours of plans of a kind of their own would be of another.
    if (!usual && !planner.one_pipeline) options.most_plans = static_cast<int>(plans.size());
    return fastest_with_sends(hardware, costs, plans, sends, options);
  };
  auto sent = chosen();
  if (!sent && request.deadline_s < infinity) {
    auto fast = request;
    fast.objective = plan_objective::iteration;
    fast.deadline_s = infinity;
    fast.progress = {};  // it would tell seconds among what is money, and plans of another objective
    fast.met = {};
    if (auto fastest = find_plan(hardware, costs, fast, planner)) {
      last_s = std::min(last_s, detail::sent_s(hardware, costs, request, *fastest, sends));
      fastest->objective = request.objective;
      plans.push_back(*std::move(fastest));
      sent = chosen();
    }
    if (!sent) return detail::too_late(request.deadline_s, last_s);
  }
  if (sent) return std::move(sent->plan);
  return found;
}

HETSCHED_INLINE outcome<unbiased_plan> find_unbiased_plan(const cluster& hardware, const plan_request& request,
                                                          const planner_entry& planner) {
  if (request.objective != plan_objective::iteration)
    throw input_error("a bias of devices is of iterations; the objective is " + std::string(name_of(request.objective)));
  if (!request.costs_on) throw input_error("a bias of devices needs costs on clusters of other speeds: costs_on");
  const auto cases = speed_cases(hardware, request.device_bias);
  auto one = request;
  one.device_bias = 0;
  one.spent = {};
  std::vector<plan> plans, met;  // those that searches end with first: of a search that is ended, only the first one may count
  one.met = [&](const plan& p) {
    met.push_back(p);
    if (request.met) request.met(p);
  };
  std::optional<plan> priced;
  std::size_t searched = 0;
  if (request.spent) {
    // Each case has its share of the time, and so has the search among their plans.
    one.go_on = [&, shares = 1 + static_cast<double>(cases.size())] {
      return (!request.go_on || request.go_on()) && request.spent() <= static_cast<double>(1 + searched) / shares;
    };
    one.sends_go_on = {};  // then it is go_on
  }
  const auto may_go_on = [&] { return !one.go_on || one.go_on(); };
  for (; searched < cases.size() && (searched == 0 || may_go_on()); ++searched) {
    const auto& c = cases[searched];
    auto found = find_plan(c.hardware, request.costs_on(c.hardware), one, planner);
    if (!found && !priced) return found.why_not();
    if (!found) continue;
    plans.push_back(*found);
    if (!priced) priced = *std::move(found);
  }
  plans.insert(plans.end(), met.begin(), met.end());
  // Moves know nothing of what a target runs.
  regret_options options{
      .how = {.flops_per_sample = request.flops_per_sample, .arithmetic = request.arithmetic, .epsilon = request.how.epsilon},
      .moves = !request.target,
      .sends = detail::sends_of(request),
      .go_on = {}};
  options.go_on = [&](int, double) { return may_go_on(); };
  auto best = least_regret_plan(std::span(cases).first(searched), request.costs_on, std::move(plans), options);
  if (!best) return best;
  best->plan.setting = priced->setting;
  best->plan.evidence = priced->evidence;
  if (auto& evidence = best->plan.evidence) {
    evidence->objective_value = best->plan.predicted.iteration_s;
    evidence->complete = evidence->complete && best->plan.pipelines == priced->pipelines;
    evidence->stopped = evidence->stopped || !may_go_on();
  }
  return best;
}

namespace detail {

// A model whose costs are of the request's batch, unless they are of another one.
[[nodiscard]] inline priced_model of_batch(priced_model model, const plan_request& request) {
  if (model.options.batch == 0) model.options.batch = request.global_batch;
  return model;
}

// A plan for what without_devices leaves, told by the whole cluster; as evaluate has it there.
[[nodiscard]] inline plan on_whole_cluster(const cluster& whole, const cluster& left, const lost_devices& lost, plan p,
                                           const plan_request& request) {
  const auto& s = at(whole.subclusters, lost.subcluster);
  const int before_rest = (s.device_count() - lost.count) / s.devices_per_node * s.devices_per_node;
  for (auto& line : p.pipelines)
    for (auto& stage : line.stages)
      for (auto& g : stage.devices) {
        const auto position = whole.find(at(left.subclusters, g.mesh.subcluster).name);
        if (!position) g.first_device += before_rest;  // what is left of a node
        g.mesh.subcluster = position.value_or(lost.subcluster);
      }
  auto judged = evaluate(whole, request.costs_on(whole), p,
                         {.flops_per_sample = request.flops_per_sample, .arithmetic = request.arithmetic});
  if (!judged) return p;
  // The evidence is of the cluster without the devices.
  judged->plan.evidence = p.evidence;
  if (p.evidence) judged->plan.evidence->objective_value = objective_of(judged->plan);
  return std::move(judged->plan);
}

}  // namespace detail

HETSCHED_INLINE plan_request request_for(const cluster& hardware, const priced_model& model, plan_request request) {
  request.arithmetic = model.options.precision;
  request.flops_per_sample = flops_per_sample(model);
  request.setting = setting_of(hardware, model);
  if (request.microbatch_size == 0 && knows_shapes_only(model)) request.microbatch_size = 1;
  const auto shared = std::make_shared<const priced_model>(detail::of_batch(model, request));
  if (!request.costs_on) request.costs_on = [shared](const cluster& turned) { return costs_on(turned, *shared); };
  if (!request.lacks)
    request.lacks = [shared, hardware](int microbatch_size) { return lacking_costs(hardware, *shared, microbatch_size); };
  return request;
}

HETSCHED_INLINE const planner_entry& default_planner(const plan_request& request, const priced_model& model,
                                                     std::span<const planner_entry> table) {
  const bool by_money = request.objective == plan_objective::cost;
  return detail::first_of(table, detail::takes_one_pipeline(request) || (knows_shapes_only(model) && !by_money));
}

HETSCHED_INLINE outcome<plan> find_plan(const cluster& hardware, const priced_model& model, const plan_request& request,
                                        const planner_entry& planner) {
  return find_plan(hardware, costs_on(hardware, detail::of_batch(model, request)), request_for(hardware, model, request),
                   planner);
}

HETSCHED_INLINE outcome<plan> find_plan(const cluster& hardware, const priced_model& model, const plan_request& request) {
  return find_plan(hardware, model, request,
                   request.planner.empty() ? default_planner(request, model) : planner_named(request.planner));
}

HETSCHED_INLINE outcome<plan> find_plan(const cluster& hardware, const transformer& model, plan_request request,
                                        const training_cost_options& options) {
  priced_model priced{.model = model, .options = options};
  if (request.target && request.target->cuts != target_cuts::layers) priced.options.cut = granularity::block;
  return find_plan(hardware, priced, request);
}

HETSCHED_INLINE outcome<plan> find_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request) {
  if (!request.planner.empty()) return find_plan(hardware, costs, request, planner_named(request.planner));
  return find_plan(hardware, costs, request, detail::first_of(planners(), detail::takes_one_pipeline(request)));
}

HETSCHED_INLINE outcome<plan> find_plan_without(const cluster& hardware, const lost_devices& lost, const plan_request& request,
                                                const planner_entry& planner) {
  if (!request.costs_on) throw input_error("a plan without some devices needs costs on clusters of other devices: costs_on");
  const auto left = without_devices(hardware, lost);
  if (left.subclusters.empty()) return refusal{refusal::kind::infeasible, "no devices are left"};
  auto found = find_plan(left, request.costs_on(left), request, planner);
  if (found) *found = detail::on_whole_cluster(hardware, left, lost, *std::move(found), request);
  return found;
}

HETSCHED_INLINE outcome<plan> find_plan_without(const cluster& hardware, const lost_devices& lost, const priced_model& model,
                                                const plan_request& request) {
  return find_plan_without(hardware, lost, request_for(without_devices(hardware, lost), model, request),
                           request.planner.empty() ? default_planner(request, model) : planner_named(request.planner));
}

HETSCHED_INLINE std::vector<plan> find_frontier(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                                const planner_entry& planner, const plan& known) {
  detail::validate(request);
  if (!planner.frontier) throw input_error("planner " + std::string(planner.name) + " knows no money: it has no frontier");
  if (request.target) throw input_error("a frontier of time and money is of all plans, and knows no target");
  std::vector<plan> all{known};
  const auto sizes = request.microbatch_size > 0 ? std::vector{request.microbatch_size} : microbatch_sizes(request.global_batch);
  for (const int size : sizes) {
    if (request.go_on && !request.go_on()) break;
    if (request.lacks && !request.lacks(size).empty()) continue;
    auto problem = problem_of(request, size);
    problem.objective = plan_objective::cost;
    problem.progress = [&](const search_progress& state) {
      if (request.progress) request.progress({.search = state, .microbatch_size = size});
      return !request.go_on || request.go_on();
    };
    if (auto found = planner.frontier(hardware, costs(size), problem, request.how))
      for (auto& p : *found) {
        p.setting = request.setting;
        all.push_back(std::move(p));
      }
  }
  // What is proven beside a plan is of its own size. Of all sizes more is known only where the cheapest plan was searched.
  const double of_all = known.objective == plan_objective::cost && known.evidence ? known.evidence->objective_bound : 0;
  for (auto& p : all)
    if (p.evidence && p.objective == plan_objective::cost && sizes.size() > 1) {
      p.evidence->objective_bound = of_all;
      detail::tell_of_better(p);
    }
  const auto sends = detail::trainer_sends(request);
  if (sends == send_mode::asynchronous) return cheaper_when_slower(std::move(all));
  const auto with_sends = [&](std::vector<plan> plans) {
    std::vector<plan> in_time;
    std::vector<double> seconds;
    for (auto& p : plans) {
      const double own_s = detail::sent_s(hardware, costs, request, p, sends);
      if (own_s > request.deadline_s) continue;
      seconds.push_back(own_s);
      in_time.push_back(std::move(p));
    }
    return cheaper_when_slower(std::move(in_time), seconds);
  };
  // Devices cost as long as they are rented: of the plans that are left, neighbours on their devices may cost less.
  auto left = with_sends(std::move(all));
  auto more = left;
  constexpr int few = 100;
  for (const auto& p : left) {
    const sends_options options{
        .how = {.flops_per_sample = request.flops_per_sample, .arithmetic = request.arithmetic, .epsilon = request.how.epsilon},
        .deadline_s = request.deadline_s,
        .most_plans = few,
        .rules = request.schedule.empty() && request.how.warmup == warmup_rule::exact,
        .go_on = [&](int, double) { return !request.go_on || request.go_on(); }};
    if (auto sent = fastest_with_sends(hardware, costs, {p}, sends, options)) more.push_back(std::move(sent->plan));
  }
  return with_sends(std::move(more));
}

}  // namespace hetsched
