// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/builders/zero_bubble.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>
#include <hetsched/schedule/search/detail/list_schedule.hpp>
#include <hetsched/schedule/search/detail/order_bound.hpp>
#include <hetsched/schedule/search/detail/order_search.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/stage_map.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched::detail {

/// Sums of shares of an activation round differently from the whole: by less than this share.
inline constexpr double memory_rounding = tolerance::sums;

HETSCHED_INLINE order_problem make_order_problem(const pipeline& p, int microbatches, const auto_options& options) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  if (p.stages() > 500'000'000 / microbatches) throw input_error("stages x microbatches is more than 500 million");
  if (!options.memory_capacity.empty() && options.memory_capacity.size() != p.forward_s.size())
    throw input_error("memory_capacity needs one entry per stage, or none");
  for (const double c : options.memory_capacity)
    if (c != c) throw input_error("memory_capacity is not a number");
  if (!(options.weight_backward_share >= 0 && options.weight_backward_share <= 1))
    throw input_error("weight_backward_share is not in [0, 1]");
  order_problem problem;
  problem.microbatches = microbatches;
  problem.split = options.split_backward &&
                  std::any_of(p.weight_backward_s.begin(), p.weight_backward_s.end(), [](double w) { return w > 0; });
  constexpr order_problem::way unused;
  const auto way = [](double seconds, double occupied_s) { return order_problem::way{occupied_s, seconds - occupied_s}; };
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = as_size(i);
    const double activation = p.activation_bytes.empty() ? 1 : p.activation_bytes[k];
    const double weight_s = problem.split ? p.weight_backward_s[k] : 0;
    const double left = problem.split ? activation * options.weight_backward_share : 0;
    problem.stages.push_back({.cost = {p.forward_s[k], p.backward_s[k] - weight_s, weight_s},
                              .down = i + 1 < p.stages() ? way(p.activation_s(i), p.activation_occupied_s(i)) : unused,
                              .up = i > 0 ? way(p.gradient_s(i - 1), p.gradient_occupied_s(i - 1)) : unused,
                              .keeps = {activation, left - activation, -left},
                              .capacity = options.memory_capacity.empty() ? std::numeric_limits<double>::max()
                                                                          : options.memory_capacity[k] * (1 + memory_rounding)});
  }
  double all_s = 0;
  for (const auto& s : problem.stages)
    all_s += microbatches *
             (s.cost[0] + s.cost[1] + s.cost[2] + s.down.occupied_s + s.down.latency_s + s.up.occupied_s + s.up.latency_s);
  if (!(all_s < never_s)) throw input_error("all actions together take 1e300 s or more");
  return problem;
}

/// The words of a schedule of one stage per rank whose kinds each come in the order of microbatches. A whole backward becomes
/// an input gradient with its weight gradient at once.
[[nodiscard]] inline step_words words_of(const order_problem& problem, const schedule& order) {
  step_words result;
  result.reserve(problem.size() * as_size(problem.steps()));
  for (std::size_t i = 0; i < problem.size(); ++i)
    for (const auto& a : order.lanes[i].actions) {
      if (a.kind == action_kind::forward) result.push_back(step_kind::forward);
      if (makes_gradient(a.kind)) result.push_back(step_kind::input);
      if (problem.split && (a.kind == action_kind::backward || a.kind == action_kind::backward_weight))
        result.push_back(step_kind::weight);
    }
  return result;
}

[[nodiscard]] inline std::vector<double> peaks(const order_problem& problem, const step_words& order) {
  std::vector<double> result;
  const auto steps = as_size(problem.steps());
  for (std::size_t i = 0; i < problem.size(); ++i) {
    // Counted, not summed up: the same counts give the same memory, however they came about.
    double peak = 0;
    double done[3] = {0, 0, 0};
    const auto& keeps = problem.stages[i].keeps;
    for (std::size_t n = i * steps; n < (i + 1) * steps; ++n) {
      ++at(done, order[n]);
      peak = std::max(peak, done[0] * keeps[0] + done[1] * keeps[1] + done[2] * keeps[2]);
    }
    result.push_back(peak);
  }
  return result;
}

[[nodiscard]] inline bool fits(const order_problem& problem, const step_words& order) {
  const auto peak = peaks(problem, order);
  for (std::size_t i = 0; i < peak.size(); ++i)
    if (peak[i] > problem.stages[i].capacity) return false;
  return true;
}

[[nodiscard]] inline schedule schedule_of(const order_problem& problem, const step_words& order) {
  const int ranks = static_cast<int>(problem.size());
  auto result = make_schedule(ranks, problem.microbatches, line_map(ranks));
  const auto steps = as_size(problem.steps());
  for (std::size_t i = 0; i < problem.size(); ++i) {
    int done[3] = {0, 0, 0};
    for (std::size_t n = i * steps; n < (i + 1) * steps; ++n) {
      const auto a = order[n];
      const auto kind = a == step_kind::forward  ? action_kind::forward
                        : a == step_kind::weight ? action_kind::backward_weight
                        : problem.split          ? action_kind::backward_input
                                                 : action_kind::backward;
      result.lanes[i].actions.push_back({.kind = kind, .stage = static_cast<int>(i), .microbatch = at(done, a)++});
    }
  }
  return result;
}

/// Sound words, the best first, none twice.
class start_list {
 public:
  void add(double makespan_s, const step_words& order) {
    const auto at =
        std::lower_bound(starts_.begin(), starts_.end(), makespan_s, [](const auto& s, double m) { return s.first < m; });
    for (auto same = at; same != starts_.end() && same->first == makespan_s; ++same)
      if (same->second == order) return;
    if (at - starts_.begin() >= most) return;
    starts_.emplace(at, makespan_s, order);
    if (starts_.size() > most) starts_.pop_back();
  }
  [[nodiscard]] std::vector<std::pair<double, step_words>>& best() { return starts_; }

 private:
  static constexpr std::ptrdiff_t most = 5;
  std::vector<std::pair<double, step_words>> starts_;
};

/// The builders of one stage per rank, as far as they fit in memory.
inline void add_builders(const order_problem& problem, const pipeline& p, order_search& search, start_list& starts) {
  const auto add = [&](const schedule& built) {
    const auto order = words_of(problem, built);
    if (fits(problem, order)) starts.add(search.makespan(order), order);
  };
  const int m = problem.microbatches;
  std::vector<int> caps;
  for (std::size_t i = 0; i < problem.size(); ++i) caps.push_back(problem.fitting(i));
  add(gpipe(p.stages(), m));
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
    add(one_f_one_b(warmup_counts(rule, p), m));
  add(one_f_one_b(capped_warmups(exact_warmups_within(p, caps), caps), m));
  if (!problem.split) return;
  add(zb_h1(p.stages(), m));
  add(zb_h2(p.stages(), m));
}

/// List schedules whose rules differ in what they strive for; which ones pay was measured on random pipelines.
inline void add_list_schedules(const order_problem& problem, const pipeline& p, double bound_s, start_list& starts) {
  const auto exact = exact_warmups(p, best_period(p)), eager = eager_warmups(p.stages());
  auto more = exact, half = exact;
  for (std::size_t i = 0; i < more.size(); ++i) {
    more[i] = (3 * exact[i] + 1) / 2;
    half[i] = (problem.fitting(i) + p.stages() - static_cast<int>(i) + 1) / 2;
  }
  list_scheduler scheduler(problem);
  step_words order;
  for (const auto& rule : {list_rule{exact, 0.3, true, true}, list_rule{eager, 0.6, false, true}, list_rule{exact, 0, true, true},
                           list_rule{exact, 1, true, true}, list_rule{eager, 0.3, false, false}, list_rule{more, 1, false, false},
                           list_rule{more, 0.3, true, true}, list_rule{half, 0, true, false}}) {
    const double makespan_s = scheduler.run(rule, order);
    if (makespan_s < never_s) starts.add(makespan_s, order);
    if (makespan_s <= bound_s * (1 + tolerance::rounding)) return;
  }
}

HETSCHED_INLINE bool splits_backwards(const schedule& order) {
  return std::any_of(order.lanes.begin(), order.lanes.end(), [](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(),
                       [](const action& a) { return a.kind == action_kind::backward_weight; });
  });
}

/// The builders with several virtual stages per rank, as far as they admit these counts and fit in memory: the first that is
/// faster than what was found takes its place.
inline void try_cut_stages(const pipeline& p, int microbatches, const auto_options& options, auto_result& best) {
  for (const auto& candidate : named_schedules()) {
    if (!candidate.cuts_stages) continue;
    schedule order;
    try {
      order = candidate.build(p, microbatches, {});
    } catch (const input_error&) {
      continue;  // an odd number of ranks for two directions, say
    }
    if (!options.split_backward && splits_backwards(order)) continue;
    auto costs = make_workload(p, order);
    for (auto& w : costs.work) w.weight_backward_bytes = w.activation_bytes * options.weight_backward_share;
    auto played = simulate(costs, order, {.timeline = false});
    bool fits = true;
    for (std::size_t i = 0; i < options.memory_capacity.size(); ++i)
      fits = fits && played.peak_memory_bytes[i] <= options.memory_capacity[i] * (1 + memory_rounding);
    if (!fits || played.makespan_s >= best.makespan_s) continue;
    const double bound_s = std::min(makespan_lower_bound(costs, order), played.makespan_s);
    best = {std::move(order), played.makespan_s, bound_s, std::move(played.peak_memory_bytes)};
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE outcome<auto_result> auto_schedule(const pipeline& p, int microbatches, const auto_options& options) {
  const auto problem = detail::make_order_problem(p, microbatches, options);
  for (std::size_t i = 0; i < problem.size(); ++i) {
    const auto& s = problem.stages[i];
    if (s.keeps[0] > s.capacity)
      return refusal{.why = refusal::kind::infeasible,
                     .reason = "stage " + std::to_string(i) + " does not hold one microbatch: its activation takes " +
                               detail::amount_text(s.keeps[0]) + ", its memory is " +
                               detail::amount_text(options.memory_capacity[i])};
  }
  const double bound_s = detail::order_bound(problem).seconds();
  detail::start_list starts;
  detail::add_list_schedules(problem, p, bound_s, starts);
  detail::order_search search(problem);
  detail::add_builders(problem, p, search, starts);

  auto& found = starts.best();
  if (found.front().first > bound_s * (1 + tolerance::rounding)) {
    // A round is linear in the steps; small pipelines, where a single step counts more, get more of them.
    const double steps = static_cast<double>(problem.size()) * problem.steps();
    const int rounds = options.rounds > 0 ? options.rounds : static_cast<int>(std::clamp(20e6 / (steps * steps), 100.0, 4000.0));
    const int tries = rounds >= 500 ? static_cast<int>(found.size()) : 1;
    bool stopped = false;
    double best_s = found.front().first;
    const auto go_on = [&](double now_s) {
      best_s = std::min(best_s, now_s);
      stopped = stopped || (options.progress && !options.progress(best_s, bound_s));
      return !stopped;
    };
    for (int k = 0; k < tries && !stopped; ++k) {
      auto& [makespan_s, order] = at(found, k);
      makespan_s = search.improve(order, bound_s, rounds / tries, go_on);
      if (makespan_s <= bound_s * (1 + tolerance::rounding)) break;
    }
  }
  const auto& [makespan_s, order] =
      *std::min_element(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  auto_result best{.order = detail::schedule_of(problem, order),
                   .makespan_s = makespan_s,
                   .lower_bound_s = std::min(bound_s, makespan_s),  // rounding
                   .peak_memory = detail::peaks(problem, order)};
  if (options.cut_stages) detail::try_cut_stages(p, microbatches, options, best);
  return best;
}

}  // namespace hetsched
