// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/find_plan.hpp>
#include <hetsched/planners/find_plan/detail/sends_of.hpp>
#include <hetsched/planners/what_if.hpp>

namespace hetsched {

namespace detail {

/// Whether a plan has work for any of the last devices of a subcluster.
[[nodiscard]] inline bool uses(const plan& p, const cluster& hardware, const lost_devices& lost) {
  const int left = at(hardware.subclusters, lost.subcluster).device_count() - lost.count;
  for (const auto& line : p.pipelines)
    for (const auto& stage : line.stages)
      for (const auto& g : stage.devices)
        if (g.mesh.subcluster == lost.subcluster && g.first_device + std::int64_t{g.mesh.nodes} * g.mesh.devices_per_node > left)
          return true;
  return false;
}

/// A plan in the place of what a search found, of which only the evidence stays.
[[nodiscard]] inline plan in_place_of(const plan* found, plan better) {
  better.evidence = found ? found->evidence : std::nullopt;
  if (auto& told = better.evidence) {
    told->objective_value = objective_of(better);
    told->objective_bound = std::min(told->objective_bound, told->objective_value);
    told->complete = false;
  }
  return better;
}

}  // namespace detail

HETSCHED_INLINE void share_plans(const cluster& hardware, std::span<const lost_devices> losses, what_if_plans& plans,
                                 const std::function<double(const plan&)>& worth) {
  if (plans.left.size() != losses.size()) throw input_error("what-if plans need an outcome for each loss, and have others");
  for (const auto& lost : losses) (void)without_devices(hardware, lost);
  struct candidate {
    plan p;
    double worth;
  };
  std::vector<candidate> found;
  const auto add = [&](const plan& p) { found.push_back({p, worth ? worth(p) : objective_of(p)}); };
  add(plans.all);
  for (const auto& other : plans.left)
    if (other) add(*other);
  // The best plan of those for a place, unless what is there is as good; null then.
  const auto better = [&](double own, auto&& suits) {
    const candidate* best = nullptr;
    for (const auto& c : found)
      if (c.worth < (best ? best->worth : own) && suits(c.p)) best = &c;
    return best;
  };
  std::size_t next = 0;
  if (const auto* const best = better(found[next++].worth, [](const plan&) { return true; }))
    plans.all = detail::in_place_of(&plans.all, best->p);
  for (std::size_t k = 0; k < losses.size(); ++k) {
    auto& own = plans.left[k];
    const double own_worth = own ? found[next++].worth : infinity;
    if (const auto* const best = better(own_worth, [&](const plan& p) { return !detail::uses(p, hardware, losses[k]); }))
      own = detail::in_place_of(own ? &*own : nullptr, best->p);
  }
}

HETSCHED_INLINE outcome<what_if_plans> find_what_if_plans(const cluster& hardware, std::span<const lost_devices> losses,
                                                          const priced_model& model, const plan_request& request) {
  for (const auto& lost : losses) (void)without_devices(hardware, lost);
  auto all = find_plan(hardware, model, request);
  if (!all) return all.why_not();
  what_if_plans plans{.all = *std::move(all)};
  for (const auto& lost : losses) plans.left.push_back(find_plan_without(hardware, lost, model, request));
  if (request.use_all_devices || request.device_bias > 0) return plans;
  const auto whole = request_for(hardware, model, request);
  const auto sends = detail::sends_of(whole);
  if (request.objective != plan_objective::iteration || sends == send_mode::asynchronous) {
    share_plans(hardware, losses, plans);
    return plans;
  }
  share_plans(hardware, losses, plans,
              [&, costs = whole.costs_on(hardware)](const plan& p) { return detail::sent_s(hardware, costs, whole, p, sends); });
  return plans;
}

}  // namespace hetsched
