// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/plan_request.hpp>
#include <hetsched/planners/priced_model.hpp>

namespace hetsched {

/// A plan with all devices, and plans without some of them.
struct what_if_plans {
  plan all = {};
  std::vector<outcome<plan>> left = {};  ///< for each loss in turn, as of find_plan_without
};

/// The plans of find_plan and, for each loss by itself, of find_plan_without, made to agree by share_plans: losing devices gains
/// nothing. They are compared by their objective, iterations with the sends that they are chosen by. Plans that must use all
/// devices, and those for devices that may be faster or slower, stay as they were found. All searches ask request.go_on, one
/// after the other: of a time budget that it keeps, the first ones leave nothing to the others; whoever wants the whole of it for
/// each calls find_plan, find_plan_without and share_plans. Returns: else why there is no plan with all devices. Throws: as
/// find_plan and find_plan_without. Example:
///     const lost_devices losses[] = {{.subcluster = 0, .count = 1}, {.subcluster = 0, .count = 4}};
///     const auto found = find_what_if_plans(hardware, losses, model, {.global_batch = 256});
///     if (found && found->left[1]) std::printf("%g s for %g s\n", objective_of(*found->left[1]), objective_of(found->all));
[[nodiscard]] outcome<what_if_plans> find_what_if_plans(const cluster& hardware, std::span<const lost_devices> losses,
                                                        const priced_model& model, const plan_request& request);

/// A plan without some devices is also one with them, and one that has no work for the last devices of a subcluster is one
/// without these: searches that end before they have proved anything may have found the better one for others. Puts into each
/// place the best of the plans that can be there. Where that is not the plan of the place's own search, it has the evidence of
/// that search, as incomplete; or no evidence, if that search was refused. `worth`: what plans are compared by, of which the
/// smallest is the best; asked once for each plan. Not given: objective_of.
/// Requires: plans of one request, which may leave devices idle, told by the whole cluster.
/// Throws: input_error unless there is an outcome for each loss; as without_devices, and as `worth`.
void share_plans(const cluster& hardware, std::span<const lost_devices> losses, what_if_plans& plans,
                 const std::function<double(const plan&)>& worth = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/what_if.ipp>
#endif
