// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/search/detail/order_bound.hpp>
#include <hetsched/schedule/search/min_memory.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<int> family_warmups(const pipeline_plan& line, const pipeline& bare, double epsilon) {
  detail::expect_count(static_cast<std::int64_t>(line.stages.size()), "the number of stages");
  detail::expect_size(bare.forward_s.size(), line.stages.size(), "forward_s", "one per stage");
  const auto id = id_of(line.schedule);
  if (!id || !has_warmups(*id)) throw input_error("warm-up counts do not tell the schedule \"" + line.schedule.name + "\"");
  if (line.stages.front().warmup > 0) return warmups(line);
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
    if (id == id_of(rule)) return warmup_counts(rule, bare, epsilon);
  return virtual_1f1b_warmups(subcluster_boundaries(line));
}

HETSCHED_INLINE outcome<pipeline_order> order_of(const pipeline_plan& line, const std::vector<double>& capacities, double epsilon,
                                                 function_ref<bool(double, double)> progress) {
  const auto& [name, actions] = line.schedule;
  const auto id = id_of(line.schedule);
  if (actions) {
    if (actions->ranks != static_cast<int>(line.stages.size()) || actions->microbatches != line.microbatches)
      throw input_error("the actions of schedule " + name + " are for " + std::to_string(actions->ranks) + " stages and " +
                        std::to_string(actions->microbatches) + " microbatches, the pipeline has " +
                        std::to_string(line.stages.size()) + " and " + std::to_string(line.microbatches));
    if (is_forward_only(*actions)) throw input_error("the actions of schedule " + name + " have no backwards");
    if (id != schedule_id::searched || !one_stage_per_rank(*actions)) return pipeline_order{.order = *actions};
    detail::validate_actions(*actions);
    const auto problem = detail::make_order_problem(to_pipeline(line), line.microbatches, {.memory_capacity = capacities});
    return pipeline_order{.order = *actions, .lower_bound_s = detail::order_bound(problem).seconds()};
  }
  const auto bare = to_pipeline(line);
  if (id == schedule_id::searched) {
    auto found = auto_with_little_memory(bare, line.microbatches, {.memory_capacity = capacities, .progress = progress});
    if (!found) return found.why_not();
    return pipeline_order{.order = std::move(found->order), .lower_bound_s = found->lower_bound_s};
  }
  if (id && has_warmups(*id)) return pipeline_order{.order = one_f_one_b(family_warmups(line, bare, epsilon), line.microbatches)};
  return pipeline_order{.order = build_schedule(name, bare, line.microbatches, {.epsilon = epsilon})};
}

HETSCHED_INLINE void set_order(pipeline_plan& line, std::string name, schedule order) {
  const auto counts = warmup_counts(order);
  detail::expect_size(counts.size(), line.stages.size(), "the schedule's warm-up counts", "one per stage");
  for (std::size_t i = 0; i < line.stages.size(); ++i) line.stages[i].warmup = counts[i];
  line.schedule = {.name = std::move(name), .actions = {}};
  bool rebuilt = false;
  if (id_of(line.schedule) != schedule_id::searched) {
    try {
      const auto again = order_of(line, {});
      rebuilt = again && again->order == order;
    } catch (const input_error&) {  // a name of the caller's own
    }
  }
  if (!rebuilt) line.schedule.actions = std::move(order);
}

}  // namespace hetsched
