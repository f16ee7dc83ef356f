// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/search.hpp>
#include <hetsched/schedule/builders/period.hpp>

namespace hetsched::detail {

/// The bare times of stages as the search sees them; compute time counts as forward.
[[nodiscard]] inline pipeline search_pipeline(const interop_problem& problem, const stage_prices& table,
                                              const std::vector<interop_stage>& stages) {
  pipeline p;
  std::vector<int> used(problem.devices.size());  // devices of each subcluster, by the stages from here on
  std::vector<int> used_behind(stages.size());
  for (std::size_t i = stages.size(); i-- > 0;) {
    const auto& placed = at(problem.placements, stages[i].placement);
    auto& taken = at(used, placed.subcluster);
    used_behind[i] = taken;
    taken += placed.devices;
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    p.forward_s.push_back(table.time(s.placement, s.layers.first, s.layers.last));
    p.backward_s.push_back(0);
    if (i + 1 == stages.size()) break;
    const auto& price = problem.price(s.placement, stages[i + 1].placement, used_behind[i], s.layers.last);
    p.transfer_s.push_back(price.slower_way);
    p.gradient_transfer_s.push_back(price.round_trip - price.slower_way);
    p.transfer_occupied_s.push_back(price.occupied);
  }
  if (p.transfer_s == p.gradient_transfer_s) p.gradient_transfer_s.clear();
  if (p.transfer_s == p.transfer_occupied_s)
    p.transfer_occupied_s.clear();
  else if (!p.gradient_transfer_s.empty())
    for (std::size_t i = 0; i < p.transfer_s.size(); ++i)
      p.gradient_transfer_occupied_s.push_back(std::min(p.transfer_occupied_s[i], p.gradient_transfer_s[i]));
  return p;
}

[[nodiscard]] inline std::vector<int> warmups_for(const warmup_algebra& rule, const pipeline& p, double period) {
  if (rule.is_exact()) return unchecked::exact_warmups(p, period);
  if (rule.by_count()) return unchecked::h1f1b_warmups(p, period, rule.epsilon());
  return rule.step() == 1 ? one_f_one_b_warmups(p.stages()) : eager_warmups(p.stages());
}

[[nodiscard]] inline bool are_within(const std::vector<int>& counts, const std::vector<int>& caps) {
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > caps[i]) return false;
  return true;
}

[[nodiscard]] inline double least_h1f1b_period(const warmup_algebra& rule, const pipeline& p, const std::vector<int>& caps,
                                               double feasible) {
  // The counts change only where a transfer is epsilon, 1/2, 2/2, 3/2 ... of the period: they fall there, and cannot fit between.
  // Steps of more microbatches than any stage has room for do not fit, and where all fit they do not matter.
  const auto fits = [&](double period) { return are_within(warmups_for(rule, p, period), caps); };
  const double shortest = unchecked::best_period(p);
  if (fits(shortest)) return shortest;
  int most_steps = 0;
  for (const int cap : caps)
    if (cap < std::numeric_limits<int>::max()) most_steps = std::max(most_steps, cap);
  std::vector<double> breakpoints;
  const auto add = [&](double c, double at, int step) {
    while (at < infinity && unchecked::h1f1b_step(c, at, rule.epsilon()) > step) at = std::nextafter(at, infinity);  // rounding
    if (at > shortest && at < feasible) breakpoints.push_back(at);
  };
  for (const double c : p.transfer_s) {
    add(c, c / rule.epsilon(), 1);
    for (int halves = 1; halves <= most_steps && 2 * c > halves * shortest; ++halves) add(c, 2 * c / halves, halves + 1);
  }
  std::sort(breakpoints.begin(), breakpoints.end());
  for (const double period : breakpoints)
    if (fits(period)) return period;
  return feasible;
}

[[nodiscard]] inline double least_exact_period(const pipeline& p, const std::vector<int>& caps, double feasible) {
  // As exact_warmups has them, stage by stage: this is asked often.
  const auto fits = [&](double period) {
    warmup_step step;
    for (int i = p.stages(); i-- > 0;) {
      if (period > 0)
        step = unchecked::exact_step(p.compute_s(i), i + 1 < p.stages() ? p.round_trip_s(i) : 0.0, period, step.carry);
      if (step.warmup > at(caps, i)) return false;
    }
    return true;
  };
  double low = unchecked::best_period(p);
  if (fits(low)) return low;
  double high = 0;  // the whole round trip: one microbatch in flight is enough
  for (int i = 0; i < p.stages(); ++i) high += p.compute_s(i) + (i + 1 < p.stages() ? p.round_trip_s(i) : 0.0);
  for (high = std::min(high, feasible);;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (fits(middle) ? high : low) = middle;
  }
}

/// Least period of given stages whose warm-ups fit `caps`; those of fixed steps are what they are. Requires: `feasible` is such a
/// period.
[[nodiscard]] inline double least_period(const warmup_algebra& rule, const pipeline& p, const std::vector<int>& caps,
                                         double feasible) {
  if (rule.is_exact()) return least_exact_period(p, caps, feasible);
  return rule.by_count() ? least_h1f1b_period(rule, p, caps, feasible) : period(p, warmups_for(rule, p, 0));
}

/// Most microbatches that each stage's memory holds; unlimited where all of them fit, 0 where not even the weights do.
[[nodiscard]] inline std::vector<int> warmup_caps(const interop_problem& problem, const stage_prices& table,
                                                  const std::vector<interop_stage>& stages, int microbatches,
                                                  double capacity_factor = 1) {
  std::vector<int> caps;
  for (const auto& s : stages) {
    const double capacity = at(problem.placements, s.placement).capacity * capacity_factor;
    const auto held = [&](int n) { return table.memory(s.placement, s.layers.first, s.layers.last, n); };
    int cap = std::numeric_limits<int>::max();
    if (held(microbatches) > capacity)
      cap = held(0) > capacity ? 0 : static_cast<int>((capacity - held(0)) / (held(1) - held(0)));
    caps.push_back(cap);
  }
  return caps;
}

}  // namespace hetsched::detail
