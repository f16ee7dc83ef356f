// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <variant>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io/export/deepspeed.hpp>
#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/export/flagscale.hpp>
#include <hetsched/io/export/megatron.hpp>
#include <hetsched/io/export/torch.hpp>
#include <hetsched/io/export/torchtitan.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched {

namespace detail {

struct export_target {
  std::string_view name, called;  ///< as messages have it
  plan_export (*write)(const placed_plan&);
};

inline constexpr export_target export_table[] = {
    {"megatron", "Megatron-LM", export_megatron},
    {"torch", "torch.distributed.pipelining", export_torch},
    {"torchtitan", "torchtitan", export_torchtitan},
    {"flagscale", "FlagScale", export_flagscale},
    {"deepspeed", "DeepSpeed", export_deepspeed},
    {"csv", "a table",
     [](const placed_plan& placed) {
       return plan_export{.files = {{"schedule.csv", to_csv(placed.order())}, {"ranks.json", ranks_json(placed)}}};
     }},
};

[[noreturn]] inline void refuse(const plan_target& t, const std::string& why) {
  throw inexpressible(t.program + " cannot run this plan: " + why + " (hetsched-plan --for " + t.name +
                      " finds one that it can)");
}

inline void expect_runnable(const plan& p, const plan_target& t, const std::optional<cluster>& hardware) {
  std::string refused;
  for (const auto& gap : hardware ? gaps(p, t, *hardware) : gaps(p, t))
    if (!gap.runs_anyway) refused += (refused.empty() ? "" : "; ") + to_text(gap);
  if (!refused.empty()) refuse(t, refused);
}

}  // namespace detail

HETSCHED_INLINE std::vector<std::string> export_targets() {
  std::vector<std::string> names;
  for (const auto& t : detail::export_table) names.emplace_back(t.name);
  return names;
}

HETSCHED_INLINE plan_export export_plan(any_plan_file any, std::string_view target, std::optional<cluster> hardware,
                                        const std::string& path) {
  for (const auto& t : detail::export_table)
    if (t.name == target) {
      const auto rules = find_plan_target(target);
      if (std::holds_alternative<inference_plan_file>(any)) {
        if (rules) detail::refuse(*rules, "plan: requests that are served, expected training");
        throw inexpressible(std::string(t.called) + " cannot express this plan: it serves requests");
      }
      auto& file = std::get<plan_file>(any);
      if (hardware) {
        file.plan = plan_on(file, *hardware, path);
        file.subclusters = subcluster_names(*hardware);
      }
      if (rules) detail::expect_runnable(file.plan, *rules, hardware);
      return t.write(place_plan(std::move(file), std::string(t.called), std::move(hardware), path));
    }
  throw input_error("there is no target " + std::string(target));
}

}  // namespace hetsched
