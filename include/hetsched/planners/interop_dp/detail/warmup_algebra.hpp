// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched::detail {

/// Seconds over a boundary per microbatch: the dearer way, both ways, and until the next microbatch can follow, which is all that
/// a period has to hold.
struct transfer_price {
  double slower_way = 0, round_trip = 0, occupied = 0;
  friend constexpr bool operator==(const transfer_price&, const transfer_price&) = default;
};

// What a partial plan must remember of its warm-ups so that stages can be put in front of it, one algebra per rule:
//   state                                   of the first stage of a suffix; a default one stands for the empty suffix
//   extend(t, c, state, period, state&)     puts a stage of compute time t in front, over a transfer that costs c (0 at the
//                                           end of the pipeline); false if the period cannot be kept; sets the count of the new
//                                           stage
//   fewest_upstream                         microbatches in flight on any stage but the last, at least
//   no_worse(a, b)                          whatever b can be extended to within memory, a can too

/// H-1F1B (HARP Eq. 1): the count alone.
struct h1f1b_algebra {
  struct state {
    int warmup = 0;
  };
  static constexpr int fewest_upstream = 2;
  double epsilon = default_epsilon;

  [[nodiscard]] bool extend(double, const transfer_price& transfer, state next, double period, state& out) const {
    out.warmup = std::min(most_warmup, next.warmup + (next.warmup == 0 ? 1 : h1f1b_step(transfer.slower_way, period, epsilon)));
    return true;
  }
  [[nodiscard]] static bool no_worse(state a, state b) { return a.warmup <= b.warmup; }
};

/// Exact least warm-up: the carry decides all counts upstream; the count is kept for memory only.
struct exact_algebra {
  struct state {
    int warmup = 0;
    double carry = 0;
  };
  static constexpr int fewest_upstream = 1;

  [[nodiscard]] static bool extend(double compute, const transfer_price& transfer, state next, double period, state& out) {
    const auto step = exact_step(compute, transfer.round_trip, period, next.carry);
    out = {step.warmup, step.carry};
    return true;
  }
  [[nodiscard]] static bool no_worse(state a, state b) { return a.carry <= b.carry; }
};

/// A fixed step per stage (1F1B: 1, Eager-1F1B: 2). `slack` is the largest (cycle / period - microbatches on it) of the cycles
/// that start at the first stage: the period is kept as long as it does not rise above 0.
struct fixed_step_algebra {
  struct state {
    int warmup = 0;
    double slack = 0;
  };
  static constexpr int fewest_upstream = 2;
  int step = 1;

  [[nodiscard]] bool extend(double compute, const transfer_price& transfer, state next, double period, state& out) const {
    const double own = compute / period - 1;
    if (next.warmup == 0) {
      out = {1, own};
      return true;
    }
    out = {next.warmup + step, std::max(own, (compute + transfer.round_trip) / period + next.slack - step)};
    return out.slack <= 1e-12;
  }
  [[nodiscard]] static bool no_worse(state a, state b) { return a.warmup <= b.warmup && a.slack <= b.slack; }
};

/// What f(algebra) returns for the algebra of a rule.
/// Throws: input_error for a rule that is none, and for an epsilon outside [0, 1].
template <class F>
[[nodiscard]] auto with_algebra(warmup_rule rule, double epsilon, F f) {
  if (!(epsilon >= 0 && epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  switch (rule) {
    case warmup_rule::h1f1b:
      return f(h1f1b_algebra{epsilon});
    case warmup_rule::exact:
      return f(exact_algebra{});
    case warmup_rule::one_f_one_b:
      return f(fixed_step_algebra{1});
    case warmup_rule::eager:
      return f(fixed_step_algebra{2});
  }
  throw input_error("unknown warm-up rule");
}

}  // namespace hetsched::detail
