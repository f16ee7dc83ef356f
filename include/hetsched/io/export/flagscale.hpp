// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// Consecutive stages of equal degrees on hosts of one type: what FlagScale calls a process mesh.
struct flagscale_mesh {
  hetsched::degrees degrees{};
  int stages = 1;
  std::string type;  ///< of its hosts
  friend bool operator==(const flagscale_mesh&, const flagscale_mesh&) = default;
};

/// The types of hosts, one for each start. FlagScale orders ranks by the first mesh of their host's type, then as hosts.txt
/// does: a type is a subcluster, and another one each time that ranks come back to it, so that both orders are the plan's.
[[nodiscard]] std::vector<std::string> flagscale_types(const std::vector<host_ranks>& starts);

/// The meshes of a plan, in order.
/// Requires: starts and their types, of a plan on a cluster.
[[nodiscard]] std::vector<flagscale_mesh> flagscale_meshes(const placed_plan& placed, const std::vector<host_ranks>& starts,
                                                           const std::vector<std::string>& types);

/// flagscale.yaml, a configuration over one's own of model and data, hosts.txt and ranks.json: for FlagScale's heterogeneous
/// training, whose stages may differ in degrees, layers, devices, and whether they recompute. ZeRO is a setting of all stages.
/// Requires: a plan that it can run, as gaps() has it. Throws: input_error without a cluster.
/// Source: FlagScale, train/arguments.py (pre_validate_args), train/hetero/parallel_context.py, runner/utils.py.
[[nodiscard]] plan_export export_flagscale(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/flagscale.ipp>
#endif
