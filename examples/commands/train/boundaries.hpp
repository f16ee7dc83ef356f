// SPDX-License-Identifier: Apache-2.0
// Of what numbers is what lies between layers.
#pragma once

#include <optional>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/plan/plan.hpp>

#include <gpt/config.hpp>
#include <train/model.hpp>
#include <train/training.hpp>

namespace train {

/// Throws: input_error for a --boundaries that ranks on this --device, or of this model, do not hand on.
inline void require_boundaries(const std::optional<std::string>& asked, const std::string& device, const model_arguments& given,
                               const gpt::config& m) {
  if (!asked) return;
  const auto needs = "--boundaries " + *asked + " needs ";
  if (given.precision == "fp64") throw hetsched::input_error(needs + "--precision fp32");
  if (*asked == "fp32") return;
  if (device == "cpu")
    throw hetsched::input_error(needs + "--device cuda; a host beside GPUs is named in one --device of all, such as cuda:0,cpu");
  if (m.hidden % 2 != 0) throw hetsched::input_error(needs + "an even --hidden, found " + std::to_string(m.hidden));
}

/// Whether a plan by formulas counts on bf16 between its stages. Profiles tell bytes of their own; and under autocast sums stay
/// wide, whatever the formulas say.
[[nodiscard]] inline bool has_half_boundaries(const hetsched::plan_setting& s) {
  return s.precision == "bf16" && s.costs != "profile" && !(s.stack && s.stack->autocast);
}

/// Whether bf16 numbers are to lie between layers: as asked for, or else as the plan says, if there is one.
[[nodiscard]] inline bool wants_half_boundaries(const job& j) {
  if (j.given.boundaries) return *j.given.boundaries == "bf16";
  return j.plan && has_half_boundaries(j.plan->plan.setting);
}

}  // namespace train
