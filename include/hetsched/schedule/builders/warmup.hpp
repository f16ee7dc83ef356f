// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/schedule_id.hpp>

namespace hetsched {

/// Rules for the warm-up counts N_i of the 1F1B family: how many forwards stage i starts before its first backward.
enum class warmup_rule { one_f_one_b, eager, h1f1b, exact };

/// HARP's tolerance: a transfer of at most this share of the period is not worth another microbatch in flight.
inline constexpr double default_epsilon = 0.1;

/// No stage starts more forwards than this before its first backward.
inline constexpr int most_warmup = 1 << 28;

/// The schedule of a rule.
[[nodiscard]] constexpr schedule_id id_of(warmup_rule rule) {
  switch (rule) {
    case warmup_rule::one_f_one_b:
      return schedule_id::one_f_one_b;
    case warmup_rule::eager:
      return schedule_id::eager_1f1b;
    case warmup_rule::h1f1b:
      return schedule_id::h1f1b;
    case warmup_rule::exact:
      return schedule_id::exact_1f1b;
  }
  return static_cast<schedule_id>(-1);  // without a name
}

/// Its name in files and commands: 1f1b, eager_1f1b, h1f1b, exact_1f1b.
[[nodiscard]] constexpr std::string_view schedule_name(warmup_rule rule) { return name_of(id_of(rule)); }

/// A stage's least warm-up count, and what the stage before it needs to know of it.
struct warmup_step {
  int warmup = 1;
  double carry = 0;
};

namespace detail {

namespace unchecked {

// The functions of the same names below, for loops whose arguments are known to be good.
[[nodiscard]] double best_period(const pipeline& p);
[[nodiscard]] int h1f1b_step(double transfer_s, double period_s, double epsilon);
[[nodiscard]] inline warmup_step exact_step(double compute_s, double round_trip_s, double period_s, double next_carry) {
  const double x = (compute_s + round_trip_s) / period_s + next_carry;
  const double n = std::clamp<double>(std::ceil(x * (1 - tolerance::sums)), 1, most_warmup);
  return {static_cast<int>(n), std::max(n - 1 + compute_s / period_s, x)};
}
[[nodiscard]] std::vector<int> h1f1b_warmups(const pipeline& p, double period_s, double epsilon);
[[nodiscard]] std::vector<int> exact_warmups(const pipeline& p, double period_s);

}  // namespace unchecked
}  // namespace detail

/// max(max t_i, max o_i), o_i how long transfers occupy boundary i: no schedule of the 1F1B family has a shorter period, and
/// enough warm-up reaches it.
/// Throws: input_error for an invalid pipeline.
[[nodiscard]] double best_period(const pipeline& p);

/// Forwards that a stage starts beyond those of the next one under H-1F1B: 1 if the transfer takes at most epsilon * period,
/// else ceil(1 + 2 * transfer / period), at most most_warmup.
/// Throws: input_error unless transfer_s and epsilon are finite and at least 0, and period_s above 0 or all is 0.
/// Source: HARP, equation 2.
[[nodiscard]] int h1f1b_step(double transfer_s, double period_s, double epsilon = default_epsilon);

/// One step of the exact least warm-up (docs: "least warm-up"), from the last stage up:
///   x = (t + round trip) / period + carry of the next stage, N = max(1, ceil x), carry = max(N - 1 + t / period, x).
/// The last stage has round_trip_s = 0 and next_carry = 0. Rounding of x by up to 1e-9 is not taken for another microbatch.
/// Throws: input_error unless all are finite and at least 0, period_s above 0 and compute_s no longer.
[[nodiscard]] warmup_step exact_step(double compute_s, double round_trip_s, double period_s, double next_carry);

/// N_i = S - i (0-based i).
/// Throws: input_error unless 1 <= stages <= most_stages.
[[nodiscard]] inline std::vector<int> one_f_one_b_warmups(int stages) {
  detail::expect_count(stages, "the number of stages", 1, detail::most_stages);
  std::vector<int> n(static_cast<std::size_t>(stages));
  for (int i = 0; i < stages; ++i) n[static_cast<std::size_t>(i)] = stages - i;
  return n;
}

/// N_i = 2 (S - i) - 1 (0-based i): Eager-1F1B.
/// Throws: as one_f_one_b_warmups.
[[nodiscard]] inline std::vector<int> eager_warmups(int stages) {
  detail::expect_count(stages, "the number of stages", 1, detail::most_stages);
  std::vector<int> n(static_cast<std::size_t>(stages));
  for (int i = 0; i < stages; ++i) n[static_cast<std::size_t>(i)] = 2 * (stages - i) - 1;
  return n;
}

/// N_S = 1, N_i = N_{i+1} + h1f1b_step.
/// Throws: input_error for an invalid pipeline, a period below best_period(p) and an epsilon below 0.
/// Source: HARP, equation 1.
[[nodiscard]] std::vector<int> h1f1b_warmups(const pipeline& p, double period_s, double epsilon = default_epsilon);

/// The same at the best period, of arrays: compute_s[i], forward and backward of a microbatch on stage i, and transfer_s[i], the
/// dearer way between stages i and i + 1; seconds. The papers' t and c.
/// Throws: input_error unless there is one transfer fewer than stages, and every time is finite and at least 0.
/// Example:
///   const std::vector<double> t{1, 1, 1}, c{0.5, 0.01};
///   const auto warmups = h1f1b_warmups(t, c);  // 4, 2, 1
[[nodiscard]] std::vector<int> h1f1b_warmups(std::span<const double> compute_s, std::span<const double> transfer_s,
                                             double epsilon = default_epsilon);

/// Fewest forwards in flight that reach `period_s`: the largest cycle ratio of the pipeline's timed event graph is at most
/// period_s with these counts, and above it with any one of them smaller.
/// Throws: input_error for an invalid pipeline and a period below best_period(p).
/// Complexity: O(S) for S stages.
[[nodiscard]] std::vector<int> exact_warmups(const pipeline& p, double period_s);

/// The same at the best period, of arrays as those of h1f1b_warmups; transfer_s takes as long either way.
/// Throws: as h1f1b_warmups of arrays.
[[nodiscard]] std::vector<int> exact_warmups(std::span<const double> compute_s, std::span<const double> transfer_s);

/// Warm-up counts of a pipeline under a rule, for its best period.
/// Throws: input_error for an invalid pipeline and an epsilon below 0.
[[nodiscard]] std::vector<int> warmup_counts(warmup_rule rule, const pipeline& p, double epsilon = default_epsilon);

/// The warm-up counts of a schedule: forwards that each rank lists before its first backward.
/// Throws: input_error for a schedule without a lane for each rank, and for an action of no kind.
/// Complexity: O(actions).
[[nodiscard]] std::vector<int> warmup_counts(const schedule& order);

/// The counts lowered to what memory allows: at most cap[i] on stage i, and never more than the stage before it.
/// Throws: input_error unless counts and caps are of equal size and all at least 1.
[[nodiscard]] std::vector<int> capped_warmups(std::vector<int> counts, const std::vector<int>& caps);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/warmup.ipp>
#endif
