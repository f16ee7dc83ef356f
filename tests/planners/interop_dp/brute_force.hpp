// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>

namespace hetsched::test {

inline constexpr double never = std::numeric_limits<double>::infinity();

/// Times and warm-up limits of the stages of one plan: what decides its objective.
struct bare_plan {
  std::vector<double> compute;          // S
  std::vector<transfer_cost> transfer;  // S - 1
  std::vector<int> caps;                // most microbatches that memory holds; INT_MAX where it holds all of them
  std::vector<double> forward, update;  // S

  [[nodiscard]] double latency() const {
    double sum = std::accumulate(compute.begin(), compute.end(), 0.0);
    for (const auto& c : transfer) sum += c.forward_s + c.backward_s;
    return sum;
  }
  /// What updates add at the end: stages end before the first one by the backwards and half the round trips in between.
  [[nodiscard]] double end() const {
    double most = 0, before = 0;
    for (std::size_t i = 0; i < compute.size(); ++i) {
      most = std::max(most, update[i] - before);
      before += compute[i] - forward[i];
      if (i < transfer.size()) before += std::max(transfer[i].forward_s, transfer[i].backward_s);
    }
    return most;
  }
  [[nodiscard]] double slowest() const {
    double most = 0;
    for (const double t : compute) most = std::max(most, t);
    for (const auto& c : transfer)
      most = std::max({most, c.forward_occupied_s.value_or(c.forward_s), c.backward_occupied_s.value_or(c.backward_s)});
    return most;
  }
};

/// Bytes that a device of `memory` holds beside what is in flight and temporary, and what each byte of these takes of it,
/// straight from the parts of memory_of: runtime and buffers, lost fragments, and the margin on all.
struct room {
  double bytes = 0, scale = 1;
  room(double memory, const memory_overheads& more)
      : bytes(memory / (1 + more.margin) - static_cast<double>(more.runtime_bytes + more.buffer_bytes)),
        scale(1 + more.fragmentation) {}

  [[nodiscard]] bool holds(const stage_cost& c, int in_flight) const {
    const auto moving = static_cast<double>(in_flight * c.activation_bytes + c.temporary_bytes);
    return static_cast<double>(c.weight_bytes) + moving * scale <= bytes;
  }
  /// Most microbatches in flight, INT_MAX where all fit; 0 where none does.
  [[nodiscard]] int cap(const stage_cost& c, int microbatches) const {
    if (holds(c, microbatches)) return std::numeric_limits<int>::max();
    int most = 0;
    while (holds(c, most + 1)) ++most;
    return most;
  }
};

/// The rule's counts at a period, straight from its definition.
inline std::vector<int> counts_at(warmup_rule rule, const bare_plan& p, double period, double epsilon) {
  const int stages = static_cast<int>(p.compute.size());
  std::vector<int> n(p.compute.size(), 1);
  double carry = 0;
  for (int i = stages - 1; i >= 0; --i) {
    const auto k = static_cast<std::size_t>(i);
    const auto transfer = i + 1 < stages ? p.transfer[k] : transfer_cost{};
    switch (rule) {
      case warmup_rule::one_f_one_b:
        n[k] = stages - i;
        break;
      case warmup_rule::eager:
        n[k] = 2 * (stages - i) - 1;
        break;
      case warmup_rule::h1f1b:
        n[k] = i + 1 < stages
                   ? n[k + 1] + detail::unchecked::h1f1b_step(std::max(transfer.forward_s, transfer.backward_s), period, epsilon)
                   : 1;
        break;
      case warmup_rule::exact: {
        const auto step =
            period > 0 ? detail::unchecked::exact_step(p.compute[k], transfer.forward_s + transfer.backward_s, period, carry)
                       : warmup_step{};
        n[k] = step.warmup;
        carry = step.carry;
      }
    }
  }
  return n;
}

/// Least period of given stages under a rule, within their memory; none if no period will do.
inline std::optional<double> least_period_of(warmup_rule rule, const bare_plan& p, int microbatches, double epsilon) {
  double low = p.slowest();
  if (!(low < never)) return std::nullopt;
  const auto fits = [&](double period) {
    const auto n = counts_at(rule, p, period, epsilon);
    for (std::size_t i = 0; i < n.size(); ++i)
      if (std::min(n[i], microbatches) > p.caps[i]) return false;
    return true;
  };
  if (rule == warmup_rule::one_f_one_b || rule == warmup_rule::eager) {
    if (!fits(low)) return std::nullopt;
    const auto n = counts_at(rule, p, low, epsilon);
    for (std::size_t i = 0; i < n.size(); ++i) {
      double cycle = p.compute[i];
      for (std::size_t j = i + 1; j < n.size(); ++j) {
        cycle += p.transfer[j - 1].forward_s + p.transfer[j - 1].backward_s + p.compute[j];
        low = std::max(low, cycle / (n[i] - n[j] + 1));
      }
    }
    return low;
  }
  if (fits(low)) return low;
  if (rule == warmup_rule::h1f1b) {
    std::vector<double> breakpoints;
    for (const auto& both : p.transfer) {
      const double c = std::max(both.forward_s, both.backward_s);
      // Every microbatch more or less; more than all there are do not matter.
      for (int k = 1; k <= microbatches && 2 * c / k > low; ++k) breakpoints.push_back(2 * c / k * (k < 3 ? 1 : 1 + 1e-13));
      if (epsilon > 0) breakpoints.push_back(c / epsilon * (1 + 1e-13));  // past rounding
    }
    std::sort(breakpoints.begin(), breakpoints.end());
    for (const double period : breakpoints)
      if (period > low && fits(period)) return period;
    return std::nullopt;
  }
  double high = std::max(low, p.latency());
  if (!fits(high)) return std::nullopt;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

/// Least seconds of an iteration of these stages: with the rule's counts at a period, each stage's update when it is done.
inline double iteration_of(warmup_rule rule, const bare_plan& p, double period, int microbatches, double epsilon) {
  auto counts = counts_at(rule, p, period, epsilon);
  pipeline times;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = std::min(counts[i], microbatches);
    times.forward_s.push_back(p.forward[i]);
    times.backward_s.push_back(p.compute[i] - p.forward[i]);
    if (i + 1 == counts.size()) break;
    times.transfer_s.push_back(p.transfer[i].forward_s);
    times.gradient_transfer_s.push_back(p.transfer[i].backward_s);
    times.transfer_occupied_s.push_back(p.transfer[i].forward_occupied_s.value_or(p.transfer[i].forward_s));
    times.gradient_transfer_occupied_s.push_back(p.transfer[i].backward_occupied_s.value_or(p.transfer[i].backward_s));
  }
  const auto ends = stage_ends(times, counts, microbatches);
  double last = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) last = std::max(last, ends[i] + p.update[i]);
  return last;
}

struct brute_force_options {
  warmup_rule rule = warmup_rule::h1f1b;
  int microbatches = 1;
  double epsilon = 0.1;
  bool use_all = false;
  double memory_factor = 1;                    // of every device; infinity: memory does not matter
  std::optional<std::vector<int>> order = {};  // the only order of subclusters, first stage first; else all of them
  bool uniform = false;                        // the stages of a subcluster have one placement
  bool comes_back = false;                     // a pipeline may come back to a subcluster
};

/// All plans, one by one. Stages that may share a node do so where they would if those of a subcluster lay side by side from the
/// last one on.
template <class Costs>
class all_plans {
 public:
  all_plans(const cluster& hardware, const Costs& costs, brute_force_options options) : options_(std::move(options)) {
    layers_ = cost_of::layer_count(costs);
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      const auto& s = hardware.subclusters[k];
      const int position = static_cast<int>(k);
      per_node_.push_back(s.devices_per_node);
      std::vector<submesh> shapes;
      for (int m = 1; m < s.devices_per_node; m *= 2)
        if (s.nodes == 1 || s.devices_per_node % m == 0) shapes.push_back({position, 1, m});
      for (int n = 1; n <= s.nodes; ++n) shapes.push_back({position, n, s.devices_per_node});
      for (const auto& shape : shapes)
        for (const placement& p : cost_of::placements(costs, shape)) {
          choice c{
              p, {static_cast<double>(s.device.memory_bytes) * options_.memory_factor, cost_of::overheads(costs, p)}, {}, {}};
          for (int a = 0; a < layers_; ++a)
            for (int b = a + 1; b <= layers_; ++b) {
              c.stage.push_back(cost_of::stage(costs, {a, b}, p));
              c.update.push_back(cost_of::update(costs, layer_range{a, b}, p));
            }
          choices_.push_back(std::move(c));
        }
    }
    for (const auto& from : choices_)
      for (const auto& to : choices_)
        for (int b = 0; b + 1 < layers_; ++b) {
          apart_.push_back(cost_of::transfer(costs, b, from.where, to.where, proximity::other_node));
          near_.push_back(cost_of::transfer(costs, b, from.where, to.where, proximity::same_node));
        }
    left_ = std::vector<int>(hardware.subclusters.size());
    for (std::size_t k = 0; k < left_.size(); ++k) left_[k] = hardware.subclusters[k].device_count();
  }

  /// `keep`: whether to go on with these first stages, whose transfers are the cheapest possible; `judge`: of whole plans.
  template <class Keep, class Judge>
  void each(Keep keep, Judge judge) {
    grow(0, keep, judge);
  }

  /// Devices of each subcluster that the plan at hand leaves.
  [[nodiscard]] const std::vector<int>& left() const { return left_; }

 private:
  struct choice {
    placement where;
    room memory;
    std::vector<stage_cost> stage;  // (0, 1), (0, 2) ... (1, 2) ...
    std::vector<double> update;
  };

  template <class Keep, class Judge>
  void grow(int first, Keep& keep, Judge& judge) {
    if (first == layers_) {
      if (options_.use_all && std::any_of(left_.begin(), left_.end(), [](int n) { return n > 0; })) return;
      return judge(with_neighbours());
    }
    for (std::size_t next = 0; next < choices_.size(); ++next) {
      const auto& mesh = choices_[next].where.mesh;
      const auto k = static_cast<std::size_t>(mesh.subcluster);
      if (left_[k] < mesh.device_count()) continue;
      const bool enters = visited_.empty() || visited_.back() != mesh.subcluster;
      if (enters) {
        if (!options_.comes_back && std::find(visited_.begin(), visited_.end(), mesh.subcluster) != visited_.end()) continue;
        visited_.push_back(mesh.subcluster);
      } else if (options_.uniform && stages_.back() != next) {
        continue;
      }
      left_[k] -= mesh.device_count();
      if (!enters || in_order()) place(first, next, keep, judge);
      left_[k] += mesh.device_count();
      if (enters) visited_.pop_back();
    }
  }

  [[nodiscard]] std::size_t pair(std::size_t from, std::size_t to, int first) const {
    return (from * choices_.size() + to) * static_cast<std::size_t>(layers_ - 1) + static_cast<std::size_t>(first - 1);
  }

  template <class Keep, class Judge>
  void place(int first, std::size_t next, Keep& keep, Judge& judge) {
    const auto& chosen = choices_[next];
    const auto transfers = plan_.transfer.size();
    if (!stages_.empty()) {
      const auto at = pair(stages_.back(), next, first);
      const auto &a = apart_[at], &b = near_[at];
      transfer_cost least(std::min(a.forward_s, b.forward_s), std::min(a.backward_s, b.backward_s));
      least.forward_occupied_s = least.backward_occupied_s = std::min(a.occupied_s(), b.occupied_s());
      plan_.transfer.push_back(least);
    }
    stages_.push_back(next);
    cuts_.push_back(first);
    std::size_t cell = 0;
    for (int a = 0; a < first; ++a) cell += static_cast<std::size_t>(layers_ - a);
    for (int last = first + 1; last <= layers_; ++last, ++cell) {
      const auto& cost = chosen.stage[cell];
      const int cap = chosen.memory.cap(cost, options_.microbatches);
      if (cap < 1) continue;
      plan_.compute.push_back(cost.total_s());
      plan_.forward.push_back(cost.forward_s);
      plan_.update.push_back(chosen.update[cell]);
      plan_.caps.push_back(cap);
      if (plan_.slowest() < never && keep(std::as_const(plan_))) grow(last, keep, judge);
      plan_.compute.pop_back();
      plan_.forward.pop_back();
      plan_.update.pop_back();
      plan_.caps.pop_back();
    }
    stages_.pop_back();
    cuts_.pop_back();
    plan_.transfer.resize(transfers);
  }

  // The plan with the prices of neighbours: devices of a subcluster are taken from the last stage on.
  [[nodiscard]] bare_plan with_neighbours() const {
    auto whole = plan_;
    std::vector<int> used(left_.size());
    for (std::size_t i = stages_.size(); i-- > 0;) {
      const auto& mesh = choices_[stages_[i]].where.mesh;
      const auto k = static_cast<std::size_t>(mesh.subcluster);
      if (i + 1 < stages_.size()) {
        const auto& next = choices_[stages_[i + 1]].where.mesh;
        bool share = next.subcluster == mesh.subcluster && mesh.nodes == 1 && next.nodes == 1;
        if (share) {
          // Positions used - next .. used - 1 are the next stage's, used .. used + own - 1 this one's.
          const int begin = used[k] - next.device_count(), end = used[k] + mesh.device_count() - 1;
          share = begin / per_node_[k] == end / per_node_[k];
        }
        whole.transfer[i] = (share ? near_ : apart_)[pair(stages_[i], stages_[i + 1], cuts_[i + 1])];
      }
      used[k] += mesh.device_count();
    }
    return whole;
  }

  // Whether the subclusters in use come in the demanded order; some may be left out.
  [[nodiscard]] bool in_order() const {
    if (!options_.order) return true;
    auto at = options_.order->begin();
    for (const int v : visited_) {
      at = std::find(at, options_.order->end(), v);
      if (at == options_.order->end()) return false;
    }
    return true;
  }

  brute_force_options options_;
  int layers_ = 0;
  std::vector<int> per_node_;
  std::vector<choice> choices_;
  std::vector<transfer_cost> apart_, near_;
  std::vector<int> left_, visited_;
  std::vector<std::size_t> stages_;  // of plan_: choices
  std::vector<int> cuts_;            // first layers
  bare_plan plan_;
};

/// Least latency and M - 1 periods over all plans, with what updates add if they count; infinity if there is none. Only plans
/// whose first stages alone already cost more than the best plan so far are not followed to their end.
template <class Costs>
[[nodiscard]] double brute_force_objective(const cluster& hardware, const Costs& costs, const brute_force_options& o,
                                           bool updates = false) {
  double best = never;
  all_plans<Costs>(hardware, costs, o)
      .each([&](const bare_plan& p) { return p.slowest() < never && p.latency() + (o.microbatches - 1) * p.slowest() < best; },
            [&](const bare_plan& p) {
              if (const auto period = least_period_of(o.rule, p, o.microbatches, o.epsilon))
                best = std::min(best, p.latency() + (o.microbatches - 1) * *period + (updates ? p.end() : 0));
            });
  return best;
}

/// Least iteration over all plans at their least periods.
template <class Costs>
[[nodiscard]] double brute_force_iteration(const cluster& hardware, const Costs& costs, const brute_force_options& o) {
  double best = never;
  all_plans<Costs>(hardware, costs, o)
      .each([&](const bare_plan& p) { return std::max(p.latency(), o.microbatches * p.slowest()) < best; },
            [&](const bare_plan& p) {
              if (const auto period = least_period_of(o.rule, p, o.microbatches, o.epsilon))
                best = std::min(best, iteration_of(o.rule, p, *period, o.microbatches, o.epsilon));
            });
  return best;
}

/// Least latency over all plans whose stages and transfers take at most `period`, with one microbatch in flight everywhere.
template <class Costs>
[[nodiscard]] double brute_force_latency(const cluster& hardware, const Costs& costs, double period, bool use_all = false) {
  double best = never;
  all_plans<Costs>(hardware, costs, {.use_all = use_all})
      .each([&](const bare_plan& p) { return p.slowest() <= period && p.latency() < best; },
            [&](const bare_plan& p) {
              if (p.slowest() <= period) best = std::min(best, p.latency());
            });
  return best;
}

}  // namespace hetsched::test
