// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>

#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

namespace hetsched::detail {

/// Seconds over a boundary per microbatch: the dearer way, both ways, and until the next microbatch can follow, which is all that
/// a period has to hold.
struct transfer_price {
  double slower_way = 0, round_trip = 0, occupied = 0;
  friend constexpr bool operator==(const transfer_price&, const transfer_price&) = default;
};

/// What a partial plan must remember of its warm-ups so that stages can be put in front of it: those of its first stage. A
/// default one stands for no stages.
struct warmup_state {
  int warmup = 0;
  /// Of exact warm-ups, the carry that decides all counts upstream. Of fixed steps, the slack: the largest (cycle / period -
  /// microbatches on it) of the cycles that start at the first stage; the period is kept as long as it does not rise above 0.
  double carry = 0;
};

/// How a warm-up rule counts, chosen at run time.
class warmup_algebra {
 public:
  /// Throws: input_error for a rule that is none, and for an epsilon outside [0, 1].
  explicit warmup_algebra(warmup_rule rule, double epsilon = default_epsilon) : rule_(rule), epsilon_(epsilon) {
    if (!(epsilon >= 0 && epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
    if (rule != warmup_rule::h1f1b && rule != warmup_rule::exact && rule != warmup_rule::one_f_one_b &&
        rule != warmup_rule::eager)
      throw input_error("unknown warm-up rule");
  }

  [[nodiscard]] warmup_rule rule() const { return rule_; }
  [[nodiscard]] double epsilon() const { return epsilon_; }
  [[nodiscard]] bool is_exact() const { return rule_ == warmup_rule::exact; }
  /// Whether the count is all that a state is: H-1F1B (HARP Eq. 1).
  [[nodiscard]] bool by_count() const { return rule_ == warmup_rule::h1f1b; }
  /// What a stage adds to the count: 1F1B 1, Eager-1F1B 2. Requires: one of these rules.
  [[nodiscard]] int step() const { return rule_ == warmup_rule::eager ? 2 : 1; }
  /// Microbatches in flight on any stage but the last, at least.
  [[nodiscard]] int fewest_upstream() const { return is_exact() ? 1 : 2; }

  /// Puts a stage of compute time `compute` in front of what `next` tells, over a transfer (0 at the end of the pipeline); false
  /// if the period cannot be kept. `out` tells of the new stage.
  [[nodiscard]] bool extend(double compute, const transfer_price& transfer, warmup_state next, double period,
                            warmup_state& out) const {
    if (rule_ == warmup_rule::exact) {
      const auto step = unchecked::exact_step(compute, transfer.round_trip, period, next.carry);
      out = {step.warmup, step.carry};
      return true;
    }
    if (rule_ == warmup_rule::h1f1b) {
      out.warmup = std::min(most_warmup,
                            next.warmup + (next.warmup == 0 ? 1 : unchecked::h1f1b_step(transfer.slower_way, period, epsilon_)));
      return true;
    }
    const double own = compute / period - 1;
    if (next.warmup == 0) {
      out = {1, own};
      return true;
    }
    out = {next.warmup + step(), std::max(own, (compute + transfer.round_trip) / period + next.carry - step())};
    return out.carry <= tolerance::rounding;
  }

  /// Whether whatever b can be extended to within memory, a can, too.
  [[nodiscard]] bool no_worse(warmup_state a, warmup_state b) const {
    if (rule_ == warmup_rule::exact) return a.carry <= b.carry;
    return a.warmup <= b.warmup && (rule_ == warmup_rule::h1f1b || a.carry <= b.carry);
  }

 private:
  warmup_rule rule_;
  double epsilon_;
};

}  // namespace hetsched::detail
