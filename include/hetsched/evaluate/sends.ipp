// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/detail/neighbours.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

namespace detail {

inline void require_way_to_send(send_mode sends) {
  if (static_cast<std::size_t>(sends) >= send_modes.size()) throw input_error("there is no such way to send");
}

}  // namespace detail

HETSCHED_INLINE double iteration_under(const evaluation& judged, send_mode sends) {
  detail::require_evaluated(judged.plan);
  detail::require_way_to_send(sends);
  if (sends == send_mode::asynchronous) return judged.plan.predicted.iteration_s;
  auto played = judged.pipelines;
  detail::expect_size(played.size(), judged.plan.pipelines.size(), "pipelines that were played", "one for each of the plan's");
  for (std::size_t l = 0; l < judged.plan.pipelines.size(); ++l) {
    const auto& line = judged.plan.pipelines[l];
    detail::expect_size(played[l].stages.size(), line.stages.size(), "stages that were played", "one for each of the plan's");
    std::vector<double> room;
    for (const auto& s : line.stages) room.push_back(activation_room(s));
    const auto found = order_of(line, room);
    if (!found) throw input_error(found.why_not().reason);
    auto order = add_transfers(found->order);
    if (sends == send_mode::grouped) order = group_transfers(std::move(order));
    const auto ends = simulate(to_pipeline(line), order, {.semantics = send_semantics::rendezvous, .timeline = false}).rank_end_s;
    for (std::size_t i = 0; i < ends.size(); ++i) played[l].stages[i].end_s = ends[i];
  }
  return detail::finish_iteration(judged.plan, played);
}

namespace detail {

/// The search of fastest_with_sends.
class send_search {
 public:
  send_search(const cluster& hardware, const costs_by_size& costs_for, send_mode trainer, const sends_options& options)
      : hardware_(hardware), costs_for_(costs_for), trainer_(trainer), options_(options) {}

  /// Requires: plans.
  [[nodiscard]] outcome<sent_plan> run(std::vector<plan> plans) {
    const auto setting = plans.front().setting;
    const auto evidence = plans.front().evidence;
    const auto pipelines = plans.front().pipelines;
    for (auto& p : plans) static_cast<void>(take(std::move(p)));
    if (best_.iteration_s == infinity)
      return first_refusal_ ? *std::move(first_refusal_)
                            : refusal{refusal::kind::infeasible, "no plan ends its iteration in time, with its sends"};
    improve();
    best_.plan.setting = setting;
    best_.plan.evidence = evidence;
    if (evidence && !(best_.plan.pipelines == pipelines)) {
      const auto& own = best_.plan.predicted;
      best_.plan.evidence->objective_value = value_of(own, own.iteration_s);
      // A neighbour may be outside of the space that the bound is of.
      best_.plan.evidence->objective_bound = std::min(evidence->objective_bound, best_.plan.evidence->objective_value);
    }
    // What was proven of the first plan's iteration is so of one that is as short with its sends.
    if (evidence) best_.plan.evidence->complete = evidence->complete && least_ <= beside_ * (1 + tolerance::sums);
    return std::move(best_);
  }

 private:
  // A device costs as long as it is rented.
  [[nodiscard]] double value_of(const prediction& p, double seconds) const {
    if (options_.objective == plan_objective::iteration) return seconds;
    return p.iteration_s > 0 ? p.cost_per_sample.value_or(infinity) * (seconds / p.iteration_s) : 0;
  }

  // Looks at a plan; returns whether it is the best so far, or the search is at its end.
  [[nodiscard]] bool take(plan p) {
    // Without one that counts, the plans that it began with are all looked at.
    stopped_ = stopped_ || (best_.plans > 0 && best_.plans >= options_.most_plans) ||
               (best_.iteration_s < infinity && options_.go_on && !options_.go_on(best_.plans, best_.iteration_s));
    if (stopped_) return true;
    ++best_.plans;
    const bool first = best_.plans == 1;
    auto judged = evaluate(hardware_, costs_for_, std::move(p), options_.how);
    if (!judged || !judged->shortage.empty()) {
      if (!first_refusal_) first_refusal_ = judged ? refusal{refusal::kind::infeasible, judged->shortage} : judged.why_not();
      return false;
    }
    const auto& own = judged->plan.predicted;
    const auto better = [&](double value) { return value < least_ * (1 - tolerance::sums); };
    if (first) beside_ = value_of(own, own.iteration_s);
    if (!better(value_of(own, own.iteration_s))) return false;  // sends only add to it
    const double seconds = iteration_under(*judged, sends_under(judged->plan, trainer_));
    if (first) best_.first_s = seconds;
    if (seconds > options_.deadline_s || !better(value_of(own, seconds))) return false;
    // As it was judged: before, it may lack what its stages share.
    if (!first && options_.runs && !options_.runs(judged->plan)) return false;
    least_ = value_of(own, seconds);
    best_.plan = std::move(judged->plan);
    best_.iteration_s = seconds;
    return true;
  }

  // Other warm-ups and wider stages help most; single layers and microbatches take the most looks.
  void improve() {
    const auto look = [&](plan p) { return take(std::move(p)); };
    const auto any_wider = [&](const plan& now) {
      return (options_.rules && any_rule(now, look)) || any_regrouped(hardware_, costs_for_, now, look);
    };
    for (bool better = true; better && !stopped_;) {
      while (!stopped_ && any_wider(plan(best_.plan))) {
      }
      better = false;
      while (!stopped_ && any_neighbour(plan(best_.plan), look)) better = true;
    }
  }

  const cluster& hardware_;
  const costs_by_size& costs_for_;
  send_mode trainer_;
  const sends_options& options_;
  sent_plan best_{.plan = {}, .iteration_s = infinity};
  std::optional<refusal> first_refusal_;
  bool stopped_ = false;
  double beside_ = 0;        // the first plan's objective with transfers beside computing
  double least_ = infinity;  // that of the best one with its sends
};

}  // namespace detail

HETSCHED_INLINE outcome<sent_plan> fastest_with_sends(const cluster& hardware, const costs_by_size& costs_for,
                                                      std::vector<plan> plans, send_mode trainer, const sends_options& options) {
  detail::require_way_to_send(trainer);
  if (plans.empty()) throw input_error("a search of sends needs plans to begin with");
  detail::expect_training(options.objective);
  return detail::send_search(hardware, costs_for, trainer, options).run(std::move(plans));
}

HETSCHED_INLINE send_mode sends_under(const plan& p, send_mode trainer) {
  detail::require_way_to_send(trainer);
  bool sent = false;
  for (const auto& line : p.pipelines) {
    sent = sent || line.stages.size() > 1;
    const auto& own = line.schedule.actions;
    const bool listed =
        own && std::any_of(own->lanes.begin(), own->lanes.end(), [](const lane& l) {
          return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) { return is_transfer(a.kind); });
        });
    const auto* known = detail::find_builder(id_of(line.schedule));
    const bool cut = own ? own->stages > own->ranks : known && known->cuts_stages;
    if (listed || cut) return send_mode::asynchronous;
  }
  return sent ? trainer : send_mode::asynchronous;
}

}  // namespace hetsched
