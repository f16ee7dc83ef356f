// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/detail/joined_text.hpp>
#include <hetsched/io/export/hosts.hpp>

namespace hetsched {

namespace detail {

/// Paths between subclusters in use, and inside those that are used on several nodes.
[[nodiscard]] inline std::vector<gpu_path> paths_in_use(const placed_plan& placed) {
  std::vector<gpu_path> paths;
  if (!placed.hardware) return paths;
  const auto used = placed.subclusters();
  const auto uses = [&](int s) { return std::find(used.begin(), used.end(), s) != used.end(); };
  for (const auto& l : placed.hardware->links)
    if (uses(l.a) && uses(l.b)) paths.push_back(l.path);
  const auto starts = starts_of(placed);
  for (const int s : used) {
    std::optional<int> node;
    bool several = false;
    for (const auto& h : starts)
      if (h.subcluster == s) several = node.value_or(h.node) != h.node || several, node = node.value_or(h.node);
    if (several) paths.push_back(at(placed.hardware->subclusters, s).inter_node_path);
  }
  return paths;
}

/// A name as host files, YAML and shells take it without quotes: what is no letter, digit, dot or dash becomes _.
[[nodiscard]] inline std::string plain_name(std::string name) {
  for (char& c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-')) c = '_';
  return name;
}

/// NCCL's setting where all paths in use name one NIC, in quotes for the shell; else nothing.
[[nodiscard]] inline std::string nccl_exports(const placed_plan& placed) {
  const auto paths = paths_in_use(placed);
  if (paths.empty() || paths.front().nic.empty()) return "";
  for (const auto& p : paths)
    if (p.nic != paths.front().nic) return "";
  std::string quoted;
  for (const char c : paths.front().nic) quoted += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return "export NCCL_IB_HCA='" + quoted + "'\n";
}

inline constexpr const char* script_head = R"sh(set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
)sh";

// Behind what the plan says: slots, and devices, of each start. Indices of devices are nvidia-smi's.
inline constexpr const char* launch_script = R"sh(start=${1:?which line of hosts.txt, counted from 0}
shift
mapfile -t hosts < <(sed -e '/^#/d' -e 's/ .*//' "$here/hosts.txt")
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=${devices[$start]}
python3 "$here/check.py" "$start"
)sh";

// The ranks that a start has are bound to no core of their starter's.
inline constexpr const char* start_all_script = R"sh(#!/usr/bin/env bash
# All ranks, a start for each line of hosts.txt: bash start_all.sh ssh|srun|mpirun OPTIONS...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
how=${1:?ssh, srun or mpirun}
shift
mapfile -t hosts < <(sed -e '/^#/d' -e 's/ .*//' "$here/hosts.txt")
export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}}
handed=()
for name in MASTER_ADDR MASTER_PORT MEGATRON TORCHTITAN_CONFIG; do
  if [ -n "${!name:-}" ]; then handed+=("$name=${!name}"); fi
done
contexts=()
for k in "${!hosts[@]}"; do
  start=(env "${handed[@]}" bash "$here/launch.sh" "$k" "$@")
  case $how in
    ssh) ssh "${hosts[$k]}" "cd $(printf %q "$PWD") && $(printf '%q ' "${start[@]}")" & ;;
    srun) srun --nodes=1 --ntasks=1 --overlap --cpu-bind=none --nodelist="${hosts[$k]}" "${start[@]}" & ;;
    mpirun) contexts+=(${contexts:+:} -np 1 --host "${hosts[$k]}" "${start[@]}") ;;
    *) echo "start_all.sh: $how is none of ssh, srun, mpirun" >&2; exit 2 ;;
  esac
done
if [ "$how" = mpirun ]; then exec mpirun --bind-to none "${contexts[@]}"; fi
failed=0
for job in $(jobs -p); do wait "$job" || failed=1; done
exit $failed
)sh";

/// launch.sh without a cluster: on one host, or as the caller says.
[[nodiscard]] inline std::string launch_on_one_host(const placed_plan& placed, const std::string& command,
                                                    const std::string& exports) {
  const auto count = std::to_string(placed.ranks.size());
  return "#!/usr/bin/env bash\n# " + count +
         " ranks, placed as ranks.json says, on one host. On several, say to torchrun on each of them what it needs:\n"
         "# TORCHRUN=\"--nnodes N --node-rank K --nproc-per-node G --master-addr HOST\" bash launch.sh OPTIONS...\n" +
         script_head + exports + "exec torchrun ${TORCHRUN:---nproc-per-node " + count + "} \\\n  " + command;
}

}  // namespace detail

HETSCHED_INLINE std::vector<host_ranks> starts_of(const placed_plan& placed) {
  std::vector<host_ranks> starts;
  if (!placed.hardware) return starts;
  for (std::size_t r = 0; r < placed.ranks.size(); ++r) {
    const auto& rank = placed.ranks[r];
    const auto& sub = at(placed.hardware->subclusters, rank.subcluster);
    const int node = rank.device / sub.devices_per_node;
    if (starts.empty() || starts.back().subcluster != rank.subcluster || starts.back().node != node)
      starts.push_back({.subcluster = rank.subcluster,
                        .node = node,
                        .host = detail::plain_name(sub.name) + "-" + std::to_string(node),
                        .first_rank = static_cast<int>(r),
                        .slots = {}});
    starts.back().slots.push_back(rank.device % sub.devices_per_node);
  }
  return starts;
}

HETSCHED_INLINE std::string hosts_text(const placed_plan& placed, const std::vector<host_ranks>& starts,
                                       const std::vector<std::string>& types) {
  std::string text = "# A line a start, in the order of ranks. Put the names of your hosts in place of SUBCLUSTER-NODE.\n";
  for (std::size_t k = 0; k < starts.size(); ++k) {
    const auto& type = types.empty() ? at(placed.hardware->subclusters, starts[k].subcluster).device.name : types[k];
    text += starts[k].host + " slots=" + std::to_string(starts[k].slots.size()) + " type=" + detail::plain_name(type) + "\n";
  }
  return text;
}

HETSCHED_INLINE bool joined_by_nccl(const placed_plan& placed) {
  const auto paths = detail::paths_in_use(placed);
  return std::all_of(paths.begin(), paths.end(), [](const gpu_path& p) { return p.nccl; });
}

HETSCHED_INLINE std::vector<export_file> launch_files(const placed_plan& placed, const std::string& program,
                                                      const std::string& exports) {
  const auto starts = starts_of(placed);
  const auto command = program + " \\\n  \"$@\"\n";
  if (starts.empty()) return {{"launch.sh", detail::launch_on_one_host(placed, command, exports)}};
  const auto each = [&](auto text) { return detail::joined_text(starts, " ", text); };
  std::string launch =
      "#!/usr/bin/env bash\n# Starts the ranks of line K of hosts.txt, counted from 0: bash launch.sh K OPTIONS...\n";
  launch += detail::script_head;
  launch += "slots=(" + each([](const host_ranks& h) { return std::to_string(h.slots.size()); }) + ")\n";
  launch += "devices=(" + each([](const host_ranks& h) { return detail::joined_numbers(h.slots, ","); }) + ")\n";
  launch += detail::launch_script + detail::nccl_exports(placed) + exports +
            "exec torchrun --nnodes ${#slots[@]} --node-rank \"$start\" --nproc-per-node \"${slots[$start]}\" \\\n"
            "  --master-addr \"${MASTER_ADDR:-" +
            std::string(starts.size() == 1 ? "localhost" : "${hosts[0]}") + "}\" --master-port \"${MASTER_PORT:-29500}\" \\\n  " +
            command;
  return {
      {"hosts.txt", hosts_text(placed, starts)}, {"launch.sh", std::move(launch)}, {"start_all.sh", detail::start_all_script}};
}

}  // namespace hetsched
