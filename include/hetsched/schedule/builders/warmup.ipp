// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched::detail::unchecked {

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

}  // namespace hetsched::detail::unchecked

namespace hetsched::detail {

HETSCHED_INLINE pipeline pipeline_of(std::span<const double> compute_s, std::span<const double> transfer_s) {
  expect_count(static_cast<std::int64_t>(compute_s.size()), "the number of stages", 1, most_stages);
  expect_size(transfer_s.size(), compute_s.size() - 1, "transfer_s", "one per boundary between stages");
  expect_naturals(compute_s, "compute_s");
  expect_naturals(transfer_s, "transfer_s");
  return {.forward_s = {compute_s.begin(), compute_s.end()},
          .backward_s = std::vector<double>(compute_s.size()),
          .transfer_s = {transfer_s.begin(), transfer_s.end()}};
}

HETSCHED_INLINE void expect_period(const pipeline& p, double period_s) {
  validate(p);
  const double best = unchecked::best_period(p);
  if (!(period_s >= best))
    throw input_error("the period is " + number_text(period_s) + " s, expected at least the pipeline's best, " +
                      number_text(best) + " s");
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE double best_period(const pipeline& p) {
  validate(p);
  return detail::unchecked::best_period(p);
}

HETSCHED_INLINE int h1f1b_step(double transfer_s, double period_s, double epsilon) {
  detail::expect_natural(transfer_s, "transfer_s");
  detail::expect_natural(epsilon, "epsilon");
  if (period_s != 0 || transfer_s != 0) detail::expect_positive(period_s, "period_s");
  return detail::unchecked::h1f1b_step(transfer_s, period_s, epsilon);
}

HETSCHED_INLINE warmup_step exact_step(double compute_s, double round_trip_s, double period_s, double next_carry) {
  detail::expect_positive(period_s, "period_s");
  detail::expect_natural(compute_s, "compute_s");
  detail::expect_natural(round_trip_s, "round_trip_s");
  detail::expect_natural(next_carry, "next_carry");
  if (compute_s > period_s * (1 + tolerance::sums))  // sums of the same times may differ by rounding
    throw input_error("compute_s is " + detail::number_text(compute_s) + ", expected at most the period, " +
                      detail::number_text(period_s));
  return detail::unchecked::exact_step(compute_s, round_trip_s, period_s, next_carry);
}

HETSCHED_INLINE std::vector<int> h1f1b_warmups(const pipeline& p, double period_s, double epsilon) {
  detail::expect_period(p, period_s);
  detail::expect_natural(epsilon, "epsilon");
  return detail::unchecked::h1f1b_warmups(p, period_s, epsilon);
}

HETSCHED_INLINE std::vector<int> h1f1b_warmups(std::span<const double> compute_s, std::span<const double> transfer_s,
                                               double epsilon) {
  return warmup_counts(warmup_rule::h1f1b, detail::pipeline_of(compute_s, transfer_s), epsilon);
}

HETSCHED_INLINE std::vector<int> exact_warmups(const pipeline& p, double period_s) {
  detail::expect_period(p, period_s);
  return detail::unchecked::exact_warmups(p, period_s);
}

HETSCHED_INLINE std::vector<int> exact_warmups(std::span<const double> compute_s, std::span<const double> transfer_s) {
  return warmup_counts(warmup_rule::exact, detail::pipeline_of(compute_s, transfer_s));
}

HETSCHED_INLINE std::vector<int> warmup_counts(warmup_rule rule, const pipeline& p, double epsilon) {
  validate(p);
  detail::expect_natural(epsilon, "epsilon");
  using namespace detail;
  switch (rule) {
    case warmup_rule::one_f_one_b:
      return one_f_one_b_warmups(p.stages());
    case warmup_rule::eager:
      return eager_warmups(p.stages());
    case warmup_rule::h1f1b:
      return unchecked::h1f1b_warmups(p, unchecked::best_period(p), epsilon);
    case warmup_rule::exact:
      return unchecked::exact_warmups(p, unchecked::best_period(p));
  }
  throw input_error("there is no warm-up rule " + std::to_string(static_cast<int>(rule)));
}

HETSCHED_INLINE std::vector<int> warmup_counts(const schedule& order) {
  detail::expect_count(order.ranks, "the number of ranks", 0, static_cast<std::int64_t>(order.lanes.size()));
  std::vector<int> counts;
  for (int r = 0; r < order.ranks; ++r) {
    int count = 0;
    for (const auto& a : order.lanes[static_cast<std::size_t>(r)].actions) {
      detail::expect_kind(a.kind);
      if (makes_gradient(a.kind)) break;
      count += a.kind == action_kind::forward;
    }
    counts.push_back(count);
  }
  return counts;
}

HETSCHED_INLINE std::vector<int> capped_warmups(std::vector<int> counts, const std::vector<int>& caps) {
  detail::expect_size(caps.size(), counts.size(), "caps", "one per warm-up count");
  for (std::size_t i = 0; i < counts.size(); ++i) {
    detail::expect_count(counts[i], "a warm-up count");
    detail::expect_count(caps[i], "a cap of warm-up counts");
    counts[i] = std::min(counts[i], caps[i]);
    if (i > 0) counts[i] = std::min(counts[i], counts[i - 1]);
  }
  return counts;
}

}  // namespace hetsched
