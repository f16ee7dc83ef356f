// SPDX-License-Identifier: Apache-2.0
// Of what numbers is what lies between layers.
#pragma once

#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/plan/plan.hpp>

#include <gpt/config.hpp>
#include <train/training.hpp>

namespace train {

/// Whether a plan counts on two bytes for each number between its stages, bf16: what is computed under autocast is wide there.
[[nodiscard]] inline bool has_half_boundaries(const hetsched::plan_setting& s) {
  return s.precision == "bf16" && !(s.stack && s.stack->autocast);
}

/// Throws: input_error for a model whose rows of bf16 numbers are no whole number of floats.
inline void require_half_boundaries(const gpt::config& m) {
  if (m.hidden % 2 != 0)
    throw hetsched::input_error("--boundaries bf16 needs an even --hidden, found " + std::to_string(m.hidden));
}

/// Whether bf16 numbers are to lie between layers: as asked for, or else as the plan says, if there is one and a row has an even
/// number of them.
[[nodiscard]] inline bool wants_half_boundaries(const job& j) {
  if (j.given.boundaries) return *j.given.boundaries == "bf16";
  return j.config.hidden % 2 == 0 && j.plan && has_half_boundaries(j.plan->plan.setting);
}

}  // namespace train
