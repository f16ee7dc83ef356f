// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Rules for the warm-up counts N_i of the 1F1B family: how many forwards stage i starts before its first backward.
enum class warmup_rule { one_f_one_b, eager, h1f1b, exact };

/// HARP's tolerance: a transfer of at most this share of the period is not worth another microbatch in flight.
inline constexpr double default_epsilon = 0.1;

/// No stage starts more forwards than this before its first backward.
inline constexpr int most_warmup = 1 << 28;

/// The schedule's name in files and commands: 1f1b, eager_1f1b, h1f1b, exact_1f1b.
[[nodiscard]] constexpr std::string_view schedule_name(warmup_rule rule) {
  switch (rule) {
    case warmup_rule::one_f_one_b:
      return "1f1b";
    case warmup_rule::eager:
      return "eager_1f1b";
    case warmup_rule::h1f1b:
      return "h1f1b";
    case warmup_rule::exact:
      return "exact_1f1b";
  }
  return "";
}

/// max(max t_i, max o_i), o_i how long transfers occupy boundary i: no schedule of the 1F1B family has a shorter period, and
/// enough warm-up reaches it.
[[nodiscard]] double best_period(const pipeline& p);

/// Forwards that a stage starts beyond those of the next one under H-1F1B: 1 if the transfer takes at most epsilon * period,
/// else ceil(1 + 2 * transfer / period), at most most_warmup.
/// Requires: transfer_s >= 0, period_s > 0 unless transfer_s is 0.
/// Source: HARP, equation 2.
[[nodiscard]] int h1f1b_step(double transfer_s, double period_s, double epsilon = default_epsilon);

/// A stage's least warm-up count, and what the stage before it needs to know of it.
struct warmup_step {
  int warmup = 1;
  double carry = 0;
};

/// One step of the exact least warm-up (docs: "least warm-up"), from the last stage up:
///   x = (t + round trip) / period + carry of the next stage, N = max(1, ceil x), carry = max(N - 1 + t / period, x).
/// The last stage has round_trip_s = 0 and next_carry = 0. Rounding of x by up to 1e-9 is not taken for another microbatch.
/// Requires: period_s > 0, compute_s <= period_s.
[[nodiscard]] inline warmup_step exact_step(double compute_s, double round_trip_s, double period_s, double next_carry) {
  const double x = (compute_s + round_trip_s) / period_s + next_carry;
  const double n = std::clamp<double>(std::ceil(x * (1 - tolerance::sums)), 1, most_warmup);
  return {static_cast<int>(n), std::max(n - 1 + compute_s / period_s, x)};
}

/// N_i = S - i (0-based i).
[[nodiscard]] inline std::vector<int> one_f_one_b_warmups(int stages) {
  std::vector<int> n(static_cast<std::size_t>(stages));
  for (int i = 0; i < stages; ++i) n[static_cast<std::size_t>(i)] = stages - i;
  return n;
}

/// N_i = 2 (S - i) - 1 (0-based i): Eager-1F1B.
[[nodiscard]] inline std::vector<int> eager_warmups(int stages) {
  std::vector<int> n(static_cast<std::size_t>(stages));
  for (int i = 0; i < stages; ++i) n[static_cast<std::size_t>(i)] = 2 * (stages - i) - 1;
  return n;
}

/// N_S = 1, N_i = N_{i+1} + h1f1b_step.
/// Requires: period_s >= best_period(p).
/// Source: HARP, equation 1.
[[nodiscard]] std::vector<int> h1f1b_warmups(const pipeline& p, double period_s, double epsilon = default_epsilon);

/// Fewest forwards in flight that reach `period_s`: the largest cycle ratio of the pipeline's timed event graph is at most
/// period_s with these counts, and above it with any one of them smaller.
/// Requires: period_s >= best_period(p).
/// Complexity: O(S) for S stages.
[[nodiscard]] std::vector<int> exact_warmups(const pipeline& p, double period_s);

/// Warm-up counts of a pipeline under a rule, for its best period.
[[nodiscard]] std::vector<int> warmup_counts(warmup_rule rule, const pipeline& p, double epsilon = default_epsilon);

/// The warm-up counts of a schedule: forwards that each rank lists before its first backward.
/// Complexity: O(actions).
[[nodiscard]] std::vector<int> warmup_counts(const schedule& order);

/// The counts lowered to what memory allows: at most cap[i] on stage i, and never more than the stage before it.
/// Requires: counts and caps of equal size, every cap >= 1.
[[nodiscard]] std::vector<int> capped_warmups(std::vector<int> counts, const std::vector<int>& caps);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/warmup.ipp>
#endif
