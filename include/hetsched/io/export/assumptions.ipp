// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/json/stack_json.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

namespace detail {

inline constexpr const char* check_script = R"py(#!/usr/bin/env python3
"""Ends with a line that says why, unless this host's GPUs are what the plan was made for: check.py [LINE OF hosts.txt]"""
import json
import subprocess
import sys
from pathlib import Path

assumed = json.loads((Path(__file__).resolve().parent / "assumptions.json").read_text())
start = assumed["starts"][int(sys.argv[1])] if len(sys.argv) > 1 else {}
try:
    listed = subprocess.run(["nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap", "--format=csv,noheader,nounits"],
                            capture_output=True, text=True, check=True).stdout
except (OSError, subprocess.CalledProcessError) as wrong:
    print(f"check.py: GPUs were not checked: {wrong}", file=sys.stderr)
    sys.exit(0)
found = {}
for line in listed.splitlines():
    index, name, mebibytes, capability = (cell.strip() for cell in line.split(","))
    found[int(index)] = name, float(mebibytes) * 2**20, float(capability)
for slot in start.get("slots", found):
    where = f"GPU {slot} of {start.get('host', 'this host')}"
    if slot not in found:
        sys.exit(f"check.py: the plan wants {where}, and nvidia-smi lists {len(found)} GPUs")
    name, memory, capability = found[slot]
    # What nvidia-smi calls total is a little less than what datasheets say.
    if memory < 0.93 * start.get("memory_bytes", 0):
        sys.exit(f"check.py: the plan counts on {start['memory_bytes'] / 2**30:.1f} GiB of {where}, "
                 f"and {name} has {memory / 2**30:.1f}")
    if start.get("precision", assumed.get("precision")) == "bf16" and capability < 8:
        sys.exit(f"check.py: the plan computes in bf16 on {where}, and {name} has none")
    plain = lambda text: "".join(c for c in text.lower() if c.isalnum())
    if plain(start.get("device", "").split("-")[0]) not in plain(name):
        print(f"check.py: the plan was made for {start['device']} as {where}, which is {name}", file=sys.stderr)
)py";

}  // namespace detail

HETSCHED_INLINE std::string assumptions_json(const placed_plan& placed) {
  using json = nlohmann::ordered_json;
  const auto& setting = placed.setting();
  const auto& plan = placed.file.plan;
  const auto asked = find_precision(setting.precision);
  auto starts = json::array();
  for (const auto& h : starts_of(placed)) {
    const auto& device = at(placed.hardware->subclusters, h.subcluster).device;
    json start{{"host", h.host}, {"slots", h.slots}, {"device", device.name}, {"memory_bytes", device.memory_bytes}};
    if (asked) start["precision"] = name_of(device.computes_in(*asked));
    starts.push_back(std::move(start));
  }
  json all{{"format", "hetsched/assumptions"}, {"version", 1}, {"target", placed.target}, {"ranks", placed.ranks.size()}};
  all["starts"] = std::move(starts);
  all["schedule"] = placed.line().schedule.name;
  all["microbatches"] = placed.line().microbatches;
  all["microbatch_size"] = placed.line().microbatch_size;
  if (setting.sequence > 0) all["sequence"] = setting.sequence;
  if (!setting.costs.empty()) all["costs"] = setting.costs;
  if (asked) all["precision"] = name_of(*asked);
  if (asked && gradient_bytes(placed, *asked) > 0) all["gradient_bytes"] = gradient_bytes(placed, *asked);
  if (setting.stack) {
    all["stack"] = detail::write_stack(*setting.stack);
    all["overlap"] = {{"gathers", setting.stack->gather_overlap},
                      {"reductions", setting.stack->reduction_overlap},
                      {"update", setting.stack->update_overlap}};
  }
  if (plan.predicted.iteration_s > 0)
    all["predicted"] = {{"iteration_s", plan.predicted.iteration_s}, {"samples_per_s", plan.predicted.samples_per_s}};
  return detail::dump(all);
}

HETSCHED_INLINE std::vector<export_file> assumption_files(const placed_plan& placed) {
  return {{"assumptions.json", assumptions_json(placed)}, {"check.py", detail::check_script}};
}

HETSCHED_INLINE std::vector<std::string> assumption_remarks(const placed_plan& placed, std::string_view runs,
                                                            std::string_view runs_name, std::string_view stack) {
  std::vector<std::string> found;
  const auto& schedule = placed.line().schedule.name;
  if (!runs.empty() && schedule != runs_name)
    found.push_back(placed.target + " runs its own " + std::string(runs) + ", not the plan's schedule " + schedule);
  const auto& of = placed.setting().stack;
  if (of && !stack.empty() && of->name != stack)
    found.push_back("the plan is priced for stack " + of->name + "; hetsched-plan --stack " + std::string(stack) +
                    " prices what " + placed.target + " does");
  return found;
}

}  // namespace hetsched
