// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// The names of what plans are exported to: megatron, torch, torchtitan, flagscale, deepspeed, and csv, the schedule as a
/// table.
[[nodiscard]] std::vector<std::string> export_targets();

/// What a target needs to run a plan. On a cluster, files name its hosts and what is assumed of its devices. `path`: of the
/// plan, for messages.
/// Throws: inexpressible for what the target cannot run, such as all plans for inference; input_error for an unknown target, and
/// as place_plan. Complexity: O(ranks * stages + actions). Example:
///   const auto made = export_plan(read_any_plan("plan.json"), "megatron", read_cluster("cluster.json"));
///   for (const auto& file : made.files) write_file(folder + "/" + file.name, file.text);
[[nodiscard]] plan_export export_plan(any_plan_file file, std::string_view target, std::optional<cluster> hardware = {},
                                      const std::string& path = "plan.json");

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/export_plan.ipp>
#endif
