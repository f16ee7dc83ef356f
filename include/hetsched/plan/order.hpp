// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched {

/// Whether the warm-up counts of a pipeline's stages alone tell its order.
[[nodiscard]] inline bool has_warmups(const schedule_plan& s) { return !s.actions && has_warmups(s.name); }

/// The warm-up counts of a schedule that they tell: the stages' own where they are set, else those of the rule.
/// `bare`: to_pipeline(line).
/// Throws: input_error for a pipeline without stages, and unless has_warmups(line.schedule.name) and `bare` has as many stages.
[[nodiscard]] std::vector<int> family_warmups(const pipeline_plan& line, const pipeline& bare, double epsilon = default_epsilon);

/// The order in which a pipeline's ranks work, and what is known of it.
struct pipeline_order {
  schedule order;
  double lower_bound_s = 0;  ///< of auto, which knows the memory
};

/// Rebuilds the schedule of a pipeline whose costs are filled in: its actions; else by its name, with the stages' warm-ups where
/// they are set and the schedule has any. "auto" is searched for within `capacities`, the bytes that each stage has for
/// activations; `progress` as auto_options have it.
/// Returns: a refusal if auto finds no room.
/// Throws: input_error for a name that is not known, actions of other ranks or microbatches, and as build_schedule.
[[nodiscard]] outcome<pipeline_order> order_of(const pipeline_plan& line, const std::vector<double>& capacities,
                                               double epsilon = default_epsilon,
                                               function_ref<bool(double, double)> progress = {});

/// Gives a pipeline a schedule: its warm-ups, and its actions if name and warm-ups would not rebuild it exactly.
/// Throws: input_error for a schedule of other ranks than the pipeline has stages, and as warmup_counts.
void set_order(pipeline_plan& line, std::string name, schedule order);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/order.ipp>
#endif
