// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched {

HETSCHED_INLINE double best_period(const pipeline& p) {
  double period = 0;
  for (int i = 0; i < p.stages(); ++i) period = std::max(period, p.compute_s(i));
  for (int i = 0; i + 1 < p.stages(); ++i) period = std::max(period, p.occupied_s(i));
  return period;
}

HETSCHED_INLINE int h1f1b_step(double transfer_s, double period_s, double epsilon) {
  if (transfer_s == 0 || transfer_s <= epsilon * period_s) return 1;
  for (int step = 2; step <= 3; ++step)
    if (2 * transfer_s <= (step - 1) * period_s) return step;
  // A transfer that occupies its ports for little may take many periods. <cmath> takes long to compile.
  return static_cast<int>(std::min<double>(most_warmup, 1 + std::ceil(2 * transfer_s / period_s)));
}

HETSCHED_INLINE std::vector<int> h1f1b_warmups(const pipeline& p, double period_s, double epsilon) {
  std::vector<int> n(static_cast<std::size_t>(p.stages()), 1);
  for (int i = p.stages() - 2; i >= 0; --i) {
    const auto k = static_cast<std::size_t>(i);
    n[k] = std::min(most_warmup, n[k + 1] + h1f1b_step(p.slower_way_s(i), period_s, epsilon));
  }
  return n;
}

HETSCHED_INLINE std::vector<int> exact_warmups(const pipeline& p, double period_s) {
  std::vector<int> n(static_cast<std::size_t>(p.stages()), 1);
  if (!(period_s > 0)) return n;
  double carry = 0;
  int i = p.stages();
  for (auto count = n.rbegin(); count != n.rend(); ++count) {
    --i;
    const double round_trip = i + 1 < p.stages() ? p.round_trip_s(i) : 0.0;
    const auto step = exact_step(p.compute_s(i), round_trip, period_s, carry);
    *count = step.warmup;
    carry = step.carry;
  }
  return n;
}

HETSCHED_INLINE std::vector<int> warmup_counts(warmup_rule rule, const pipeline& p, double epsilon) {
  switch (rule) {
    case warmup_rule::one_f_one_b:
      return one_f_one_b_warmups(p.stages());
    case warmup_rule::eager:
      return eager_warmups(p.stages());
    case warmup_rule::h1f1b:
      return h1f1b_warmups(p, best_period(p), epsilon);
    case warmup_rule::exact:
      return exact_warmups(p, best_period(p));
  }
  return {};
}

HETSCHED_INLINE std::vector<int> warmup_counts(const schedule& order) {
  std::vector<int> counts;
  for (int r = 0; r < order.ranks; ++r) {
    int count = 0;
    for (const auto& a : order.lanes[static_cast<std::size_t>(r)].actions) {
      if (makes_gradient(a.kind)) break;
      count += a.kind == action_kind::forward;
    }
    counts.push_back(count);
  }
  return counts;
}

HETSCHED_INLINE std::vector<int> capped_warmups(std::vector<int> counts, const std::vector<int>& caps) {
  HETSCHED_EXPECTS(counts.size() == caps.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = std::min(counts[i], caps[i]);
    if (i > 0) counts[i] = std::min(counts[i], counts[i - 1]);
  }
  return counts;
}

}  // namespace hetsched
