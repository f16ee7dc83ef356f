// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/stack_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

namespace detail {

inline constexpr const char* check_script = R"py(#!/usr/bin/env python3
"""Ends with a line that says why, unless this host's GPUs are what the plan was made for: check.py K, of line K of hosts.txt"""
import json
import subprocess
import sys
from pathlib import Path

assumed = json.loads((Path(__file__).resolve().parent / "assumptions.json").read_text())
start = assumed["starts"][int(sys.argv[1])]
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
for slot in start["slots"]:
    where = f"GPU {slot} of {start['host']}"
    if slot not in found:
        sys.exit(f"check.py: the plan wants {where}, and nvidia-smi lists {len(found)} GPUs")
    name, memory, capability = found[slot]
    # What nvidia-smi calls total is a little less than what datasheets say.
    if memory < 0.93 * start["memory_bytes"]:
        sys.exit(f"check.py: the plan counts on {start['memory_bytes'] / 2**30:.1f} GiB of {where}, "
                 f"and {name} has {memory / 2**30:.1f}")
    if start.get("precision") == "bf16" and capability < 8:
        sys.exit(f"check.py: the plan computes in bf16 on {where}, and {name} has none")
    plain = lambda text: "".join(c for c in text.lower() if c.isalnum())
    if plain(start["device"].split("-")[0]) not in plain(name):
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
  std::vector<export_file> files{{"assumptions.json", assumptions_json(placed)}};
  if (placed.hardware) files.push_back({"check.py", detail::check_script});
  return files;
}

HETSCHED_INLINE std::optional<double> iteration_under_1f1b(const placed_plan& placed) {
  const auto& line = placed.line();
  const double predicted = placed.file.plan.predicted.iteration_s;
  const bool told = std::all_of(line.stages.begin(), line.stages.end(), [](const auto& s) { return s.cost.forward_s > 0; });
  if (predicted <= 0 || !told || placed.order().stages != placed.order().ranks || placed.order().directions != 1)
    return std::nullopt;
  const auto bare = to_pipeline(line);
  const auto makespan = [&](const schedule& order) { return simulate(bare, order).makespan_s; };
  const auto plain = one_f_one_b(one_f_one_b_warmups(placed.order().stages), line.microbatches);
  return predicted + makespan(plain) - makespan(placed.order());
}

HETSCHED_INLINE std::vector<std::string> remarks_under_1f1b(const placed_plan& placed, std::string_view stack, bool fp8) {
  const bool interleaved = placed.order().stages > placed.order().ranks;
  const auto& planned = placed.line().schedule;
  std::vector<std::string> found;
  if (id_of(planned) != (interleaved ? schedule_id::interleaved_1f1b : schedule_id::one_f_one_b)) {
    const auto there = iteration_under_1f1b(placed);
    found.push_back(placed.target + " runs its own " + (interleaved ? "interleaved 1F1B" : "1F1B") +
                    ", not the plan's schedule " + planned.name +
                    (there ? ": about " + format_seconds(*there) + " an iteration there" : ""));
  }
  for (auto& more : stack_remarks(placed, stack, fp8)) found.push_back(std::move(more));
  return found;
}

HETSCHED_INLINE std::vector<std::string> stack_remarks(const placed_plan& placed, std::string_view stack, bool fp8) {
  const auto& of = placed.setting().stack;
  if (!of || of->name == stack) return {};
  std::vector<std::string> found;
  if (of->fp8_products && !fp8) found.push_back(detail::fp8_remark(placed));
  auto rest = find_training_stack(stack);
  if (rest) rest->name = of->name, rest->fp8_products = of->fp8_products;
  if (rest != of)
    found.push_back("the plan is priced for stack " + of->name + "; hetsched-plan --stack " + std::string(stack) +
                    " prices what " + placed.target + " does");
  return found;
}

}  // namespace hetsched
