// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// Consecutive ranks on one host, started together.
struct host_ranks {
  int subcluster = 0, node = 0;
  std::string host;  ///< SUBCLUSTER-NODE, in place of a name that the plan does not know
  int first_rank = 0;
  std::vector<int> slots;  ///< the host's number of each rank's device
  friend bool operator==(const host_ranks&, const host_ranks&) = default;
};

/// The starts that give every device its rank: as long as consecutive ranks lie on one host they are one. A host that has ranks
/// in several places has several.
/// Returns: none without a cluster.
/// Complexity: O(ranks).
[[nodiscard]] std::vector<host_ranks> starts_of(const placed_plan& placed);

/// hosts.txt, a line a start: HOST slots=N type=DEVICE, as the launchers of DeepSpeed and FlagScale read it. `types`: of each
/// start; empty: the names of devices.
[[nodiscard]] std::string hosts_text(const placed_plan& placed, const std::vector<host_ranks>& starts,
                                     const std::vector<std::string>& types = {});

/// Whether NCCL joins all devices in use, as far as the cluster says.
[[nodiscard]] bool joined_by_nccl(const placed_plan& placed);

/// launch.sh, which starts the ranks of one line of hosts.txt with torchrun, and start_all.sh, which does so on all hosts over
/// ssh, srun or mpirun; and hosts.txt. Without a cluster launch.sh starts all ranks on one host, unless its caller's TORCHRUN
/// says otherwise, and the others are not there. `program`: what torchrun runs, with its arguments, in shell words; `exports`:
/// lines of the shell that stand before it.
[[nodiscard]] std::vector<export_file> launch_files(const placed_plan& placed, const std::string& program,
                                                    const std::string& exports = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/hosts.ipp>
#endif
