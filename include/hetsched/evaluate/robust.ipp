// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/detail/neighbours.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>

namespace hetsched {

namespace detail {

/// Iterations of an evaluated plan with noise.
class noisy_iterations {
 public:
  explicit noisy_iterations(plan p, double spread, std::uint64_t seed, send_mode trainer)
      : plan_(std::move(p)), spread_(spread), random_(seed), played_(plan_.pipelines.size()) {
    const auto sends = sends_under(plan_, trainer);
    if (sends != send_mode::asynchronous) semantics_ = send_semantics::rendezvous;
    for (const auto& line : plan_.pipelines) {
      auto found = order_of(line, {});
      if (!found) throw input_error("the plan's schedule has no order: " + found.why_not().reason);
      orders_.push_back(std::move(found->order));
      auto& order = orders_.back();
      if (sends != send_mode::asynchronous) order = add_transfers(order);
      if (sends == send_mode::grouped) order = group_transfers(std::move(order));
      work_.push_back(make_workload(to_pipeline(line), orders_.back()));
      for (const auto& s : line.stages) updates_.push_back(s.update_s);
    }
    for (const auto& order : orders_) graphs_.push_back(make_event_graph(order));  // which point to the orders
  }
  noisy_iterations(const noisy_iterations&) = delete;
  noisy_iterations& operator=(const noisy_iterations&) = delete;

  /// Seconds of the next one.
  [[nodiscard]] double next() {
    std::size_t stage = 0;
    for (std::size_t l = 0; l < orders_.size(); ++l) {
      std::vector<double> ranks(as_size(orders_[l].ranks)), wires(work_[l].wires.size());
      for (auto* factors : {&ranks, &wires})
        for (double& f : *factors) f = noise_factor(random_, spread_);
      const auto noisy = detail::unchecked::with_factors(work_[l], orders_[l], ranks, wires);
      const auto run = event_run(graphs_[l], noisy, semantics_, false);
      played_[l].stages.resize(ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i, ++stage) {
        played_[l].stages[i].end_s = run.rank_end_s[i];
        plan_.pipelines[l].stages[i].update_s = updates_[stage] * ranks[i];
      }
    }
    return finish_iteration(plan_, played_);
  }

 private:
  plan plan_;
  double spread_;
  send_semantics semantics_ = send_semantics::buffered;
  random_source random_;
  std::vector<pipeline_evaluation> played_;
  std::vector<schedule> orders_;
  std::vector<workload> work_;
  std::vector<double> updates_;  // without noise, of all stages
  std::vector<event_graph> graphs_;
};

/// The quantile of a plan, if it is below `enough`; else something that is not. Plays no more iterations than that takes.
[[nodiscard]] inline double quantile_below(const plan& p, const robust_options& options, double enough) {
  noisy_iterations noise(p, options.spread, options.seed, options.sends);
  const auto needed = static_cast<int>(std::max(std::ceil(options.share * options.samples - tolerance::sums), 1.0));
  std::vector<double> seconds;
  for (int i = 0, above = 0; i < options.samples; ++i) {
    seconds.push_back(noise.next());
    above += seconds.back() >= enough;
    if (above > options.samples - needed) return infinity;
  }
  std::sort(seconds.begin(), seconds.end());
  return quantile(seconds, options.share);
}

}  // namespace detail

HETSCHED_INLINE std::vector<double> iterations_under_jitter(const plan& p, double spread, int samples, std::uint64_t seed,
                                                            send_mode trainer) {
  detail::require_evaluated(p);
  detail::expect_natural(spread, "spread");
  detail::expect_count(samples, "samples", 0);
  detail::noisy_iterations noise(p, spread, seed, trainer);
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(noise.next());
  return seconds;
}

HETSCHED_INLINE outcome<robust_plan> most_robust_plan(const cluster& hardware, const costs_by_size& costs_for,
                                                      std::vector<plan> plans, const robust_options& options) {
  if (plans.empty() || !(options.share > 0 && options.share <= 1) || !(options.spread >= 0 && options.spread < infinity) ||
      options.samples < 1)
    throw input_error("a robust plan needs plans to begin with, a share in (0, 1], a spread of at least 0 and a sample");
  robust_plan best{.plan = {}, .searched_s = infinity};
  std::optional<plan> fastest;
  double fastest_s = infinity;  // with its sends, and without noise
  std::optional<refusal> first_refusal;
  bool stopped = false, moved = false;
  const auto take = [&](plan p) {
    stopped = stopped || (best.plans > 0 && options.go_on && !options.go_on(best.plans, best.searched_s));
    if (stopped) return true;
    ++best.plans;
    auto judged = evaluate(hardware, costs_for, std::move(p), options.how);
    if (!judged || !judged->shortage.empty()) {
      if (!first_refusal) first_refusal = judged ? refusal{refusal::kind::infeasible, judged->shortage} : judged.why_not();
      return false;
    }
    const double bare_s = moved ? 0 : iteration_under(*judged, sends_under(judged->plan, options.sends));
    if (!moved && (!fastest || bare_s < fastest_s)) fastest = judged->plan, fastest_s = bare_s;
    const double seconds = detail::quantile_below(judged->plan, options, best.searched_s);
    if (!(seconds < best.searched_s * (1 - tolerance::sums))) return false;
    best.plan = std::move(judged->plan);
    best.searched_s = seconds;
    return true;
  };
  for (auto& p : plans) static_cast<void>(take(std::move(p)));
  if (!fastest) return *std::move(first_refusal);
  auto first = best.plan;
  moved = true;
  while (!stopped) {
    const auto now = best.plan;
    if (!detail::any_neighbour(now, take)) break;
  }
  if (best.plan.evidence && !(best.plan.pipelines == first.pipelines)) {
    best.plan.evidence->objective_value = best.plan.predicted.iteration_s;
    best.plan.evidence->complete = false;
  }
  const auto judge = [&](const plan& p) {
    auto seconds = iterations_under_jitter(p, options.spread, 4 * options.samples, options.seed + 1, options.sends);
    std::sort(seconds.begin(), seconds.end());
    return quantile(seconds, options.share);
  };
  best.fastest_s = judge(*fastest);
  best.quantile_s = judge(best.plan);
  const double first_s = first.pipelines == fastest->pipelines ? best.fastest_s : judge(first);
  if (first_s < best.quantile_s) best.quantile_s = first_s, best.plan = std::move(first);
  if (best.fastest_s < best.quantile_s) best.quantile_s = best.fastest_s, best.plan = *std::move(fastest);
  return best;
}

HETSCHED_INLINE std::vector<speed_case> speed_cases(const cluster& hardware, double bias) {
  validate(hardware);
  if (!(bias > 0 && bias < 1)) throw input_error("a bias of devices' speeds must be between 0 and 1");
  std::vector<std::string> kinds;
  for (const auto& s : hardware.subclusters)
    if (std::find(kinds.begin(), kinds.end(), s.device.name) == kinds.end()) kinds.push_back(s.device.name);
  std::vector<std::vector<double>> factors{std::vector<double>(kinds.size(), 1.0)};  // of each kind, by case
  for (std::size_t k = 0; k < kinds.size(); ++k)
    for (const double f : {1 - bias, 1 + bias}) {
      factors.push_back(factors.front());
      factors.back()[k] = f;
    }
  if (kinds.size() > 1 && kinds.size() <= 4)
    for (unsigned corner = 0; corner < 1u << kinds.size(); ++corner) {
      factors.push_back(factors.front());
      for (std::size_t k = 0; k < kinds.size(); ++k) factors.back()[k] = (corner >> k & 1u) != 0 ? 1 + bias : 1 - bias;
    }
  std::vector<speed_case> cases;
  for (const auto& f : factors) {
    auto turned = hardware;
    std::vector<double> speed;
    for (auto& s : turned.subclusters) {
      speed.push_back(f[as_size(static_cast<int>(std::find(kinds.begin(), kinds.end(), s.device.name) - kinds.begin()))]);
      s.device.speed *= speed.back();
    }
    std::string alone;
    for (std::size_t k = 0; k < kinds.size(); ++k)
      if (f[k] != 1) alone = alone.empty() && std::count(f.begin(), f.end(), 1.0) + 1 == std::ssize(f) ? kinds[k] : "";
    cases.push_back({std::move(alone), std::move(speed), std::move(turned)});
  }
  return cases;
}

HETSCHED_INLINE outcome<unbiased_plan> least_regret_plan(std::span<const speed_case> cases, const costs_on_cluster& costs_on,
                                                         std::vector<plan> plans, const regret_options& options) {
  if (plans.empty() || cases.empty()) throw input_error("a plan of least regret needs plans to begin with, and cases");
  // A plan, and its iteration in each case.
  struct looked_at {
    hetsched::plan plan;
    std::vector<double> seconds;
  };
  std::vector<costs_by_size> costs;
  for (const auto& c : cases) costs.push_back(costs_on(c.hardware));
  std::optional<refusal> first_refusal;
  int count = 0;
  bool stopped = false;
  const auto look_at = [&](plan p, auto&& enough) -> std::optional<looked_at> {
    ++count;
    p.evidence.reset();
    looked_at found;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      auto judged = evaluate(cases[c].hardware, costs[c], p, options.how);
      if (!judged || !judged->shortage.empty()) {
        if (!first_refusal) first_refusal = judged ? refusal{refusal::kind::infeasible, judged->shortage} : judged.why_not();
        return std::nullopt;
      }
      found.seconds.push_back(iteration_under(*judged, sends_under(judged->plan, options.sends)));
      if (found.seconds.size() == 1) found.plan = std::move(judged->plan);
      if (enough(found)) return std::nullopt;
    }
    return found;
  };
  std::vector<looked_at> all;
  double best_loss = infinity;
  const auto go_on = [&] {
    stopped = stopped || (count > 0 && options.go_on && !options.go_on(count, best_loss));
    return !stopped;
  };
  for (auto& p : plans) {
    const auto known = [&](const looked_at& now) {
      return now.seconds.size() == 1 && std::any_of(all.begin(), all.end(), [&](const looked_at& other) {
               return other.plan.pipelines == now.plan.pipelines;
             });
    };
    if (!all.empty() && !go_on()) break;
    if (auto found = look_at(std::move(p), known)) all.push_back(*std::move(found));
  }
  if (all.empty()) return *std::move(first_refusal);
  auto least = all.front().seconds;  // of each case
  for (const auto& l : all)
    for (std::size_t c = 0; c < least.size(); ++c) least[c] = std::min(least[c], l.seconds[c]);
  const auto loss_of = [&](const std::vector<double>& seconds) {
    double worst = -infinity;
    for (std::size_t c = 0; c < seconds.size(); ++c) worst = std::max(worst, seconds[c] / least[c] - 1);
    return worst;
  };
  const auto fastest = std::min_element(
      all.begin(), all.end(), [](const looked_at& a, const looked_at& b) { return a.seconds.front() < b.seconds.front(); });
  auto best = *fastest;  // of equals the fastest
  best_loss = loss_of(best.seconds);
  const auto better = [&](const std::vector<double>& seconds) { return loss_of(seconds) < best_loss - tolerance::sums; };
  for (const auto& l : all)
    if (better(l.seconds)) best = l, best_loss = loss_of(l.seconds);
  for (bool moved = options.moves; moved && !stopped;) {
    const auto now = best.plan;
    moved = detail::any_neighbour(now, [&](plan p) {
      if (!go_on()) return true;
      auto found = look_at(std::move(p), [&](const looked_at& l) { return !better(l.seconds); });
      if (!found) return false;
      best = *std::move(found);
      best_loss = loss_of(best.seconds);
      return true;
    });
  }
  for (std::size_t c = 0; c < least.size(); ++c) least[c] = std::min(least[c], best.seconds[c]);
  unbiased_plan found{.plan = std::move(best.plan),
                      .worst_loss = loss_of(best.seconds),
                      .fastest_loss = loss_of(fastest->seconds),
                      .worst_s = *std::max_element(best.seconds.begin(), best.seconds.end()),
                      .losses = {},
                      .doubts = {},
                      .plans = count};
  std::map<std::string, double> gains;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    found.losses.push_back(best.seconds[c] / least[c] - 1);
    if (cases[c].device.empty()) continue;
    auto& gain = gains[cases[c].device];
    gain = std::max(gain, 1 - least[c] / best.seconds[c]);
  }
  for (const auto& [device, gain] : gains) found.doubts.push_back({device, gain});
  std::stable_sort(found.doubts.begin(), found.doubts.end(),
                   [](const speed_doubt& a, const speed_doubt& b) { return a.gain > b.gain; });
  return found;
}

}  // namespace hetsched
