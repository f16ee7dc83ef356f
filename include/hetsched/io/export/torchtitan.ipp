// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/detail/joined_text.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/export/torchtitan.hpp>

namespace hetsched {

namespace detail {

inline constexpr const char* torchtitan_script =
    R"py("""The plan in this folder over a configuration of torchtitan 0.3, TORCHTITAN_CONFIG=MODULE:FUNCTION; launch.sh hands it over."""
import importlib
import os
import tomllib
from pathlib import Path

from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

here = Path(__file__).resolve().parent


def planned():
    module, _, function = os.environ["TORCHTITAN_CONFIG"].partition(":")
    config = getattr(importlib.import_module(module), function)()
    plan = tomllib.loads((here / "torchtitan.toml").read_text())
    parts = plan["parallelism"].get("module_fqns_per_model_part", [])
    for part in parts:
        part[:] = ["lm_head" if name == "output" else name for name in part]
    for section in ("training", "parallelism"):
        for key, value in plan[section].items():
            if not hasattr(getattr(config, section), key):
                raise SystemExit(f"torchtitan's {section} has no {key}: this plan is for versions 0.2 and 0.3")
            setattr(getattr(config, section), key, value)
    if parts:
        config.parallelism.pipeline_parallel_schedule_csv = str(here / "schedule.csv")
        config.training.disable_cuda_graphs = True  # which it has not for pipelines
    config.activation_checkpoint = {"full": FullAC.Config, "selective": SelectiveAC.Config, "none": lambda: None}[
        plan["activation_checkpoint"]["mode"]]()
    return config
)py";

// Its configuration is a file in version 0.2, and what a function returns in version 0.3.
inline constexpr const char* torchtitan_given = R"sh(if [ -n "${TORCHTITAN_CONFIG:-}" ]; then
  export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
  given=(--module torchtitan_plan --config planned)
else
  given=(--job.config_file "$here/torchtitan.toml")
  if [ -e "$here/schedule.csv" ]; then given+=(--parallelism.pipeline_parallel_schedule_csv "$here/schedule.csv"); fi
fi
)sh";

/// The schedule by which torchtitan finds out which stages a rank has, there and back or round; the order itself comes from the
/// CSV.
[[nodiscard]] inline std::string torchtitan_style(const schedule& order) {
  const bool back = order.ranks > 1 && order.stages == 2 * order.ranks && order.rank(0, order.ranks) == order.ranks - 1;
  return back ? "ZBVZeroBubble" : "PipelineScheduleMulti";
}

/// A line for each stage with the modules that it keeps.
[[nodiscard]] inline std::string torchtitan_parts(const placed_plan& placed) {
  std::string text;
  for (const auto& s : blocks_of_stages(placed)) {
    std::vector<std::string> modules;
    if (s.embedding) modules.emplace_back("tok_embeddings");
    for (int b = s.first; b < s.last; ++b) modules.push_back("layers." + std::to_string(b));
    if (s.head) modules.insert(modules.end(), {"norm", "output"});
    text += "  [" + joined_text(modules, ", ", [](const std::string& m) { return "\"" + m + "\""; }) + "],\n";
  }
  return text;
}

/// What it computes in: where it shards weights, FSDP casts them, where it only copies them, autocast does.
[[nodiscard]] inline std::string torchtitan_precision(const placed_plan& placed) {
  const auto used = precision_of(placed);
  if (!used) return "";
  return std::string("mixed_precision_param = \"") + (*used == precision::bf16 ? "bfloat16" : "float32") +
         "\"\nmixed_precision_reduce = \"float32\"\n";
}

}  // namespace detail

HETSCHED_INLINE plan_export export_torchtitan(const placed_plan& placed) {
  const auto& line = placed.line();
  const auto& order = placed.order();
  const auto sizes = line.stages.front().degrees;
  const int per_rank = line.microbatch_size / sizes.data;
  const bool pipelined = order.ranks > 1;
  plan_export result;
  // Under a pipeline weights and gradients stay whole until the last microbatch; without one they need not.
  const int zero = common_zero(placed, pipelined ? 1 : 3, result.remarks);
  const bool copies = zero == 0 && placed.ranks.size() == static_cast<std::size_t>(sizes.data);  // replicate() alone
  const bool shards = !copies && (sizes.data > placed.copies || sizes.context > 1);
  const auto recompute = common_recomputation(placed, result.remarks);
  const auto number = [](const char* name, int value) { return std::string(name) + " = " + std::to_string(value) + "\n"; };
  std::string text =
      "# For torchtitan 0.2; model, data and optimizer come on the command line, as --model.name. torchtitan_plan.py reads it "
      "for 0.3.\n";
  text += "[training]\n" + number("local_batch_size", pipelined ? per_rank * line.microbatches : per_rank) +
          number("global_batch_size", line.microbatch_size * line.microbatches);
  if (placed.setting().sequence > 0) text += number("seq_len", placed.setting().sequence);
  text += detail::torchtitan_precision(placed) + "\n[parallelism]\n";
  text += number("data_parallel_replicate_degree", copies ? sizes.data : placed.copies) +
          number("data_parallel_shard_degree", copies ? 1 : sizes.data / placed.copies) + "fsdp_reshard_after_forward = \"" +
          (zero == 3 ? "always" : "never") + "\"\n" + number("tensor_parallel_degree", sizes.tensor) +
          number("context_parallel_degree", sizes.context) + number("expert_parallel_degree", sizes.expert) +
          number("pipeline_parallel_degree", order.ranks);
  if (pipelined)
    text += "pipeline_parallel_schedule = \"" + detail::torchtitan_style(order) + "\"\n" +
            number("pipeline_parallel_microbatch_size", per_rank) + "module_fqns_per_model_part = [\n" +
            detail::torchtitan_parts(placed) + "]\n";
  text += "\n[activation_checkpoint]\nmode = \"" + std::string(name_of(recompute)) + "\"\n";
  if (recompute == recomputation::selective) text += "selective_ac_option = \"op\"\n";

  result.files = {{"torchtitan.toml", std::move(text)},
                  {"torchtitan_plan.py", detail::torchtitan_script},
                  {"ranks.json", ranks_json(placed)}};
  if (pipelined) result.files.push_back({"schedule.csv", computed_csv(placed)});
  for (auto& f : launch_files(placed, "-m torchtitan.train \"${given[@]}\"", detail::torchtitan_given))
    result.files.push_back(std::move(f));
  for (auto& f : assumption_files(placed)) result.files.push_back(std::move(f));
  for (auto& more : stack_remarks(placed, "torchtitan")) result.remarks.push_back(std::move(more));
  if (shards && zero < (pipelined ? 1 : 2))
    result.remarks.push_back("torchtitan shards more of what data ranks hold than the plan, which has ZeRO stage " +
                             std::to_string(zero) + ": memory is not as in the plan");
  return result;
}

}  // namespace hetsched
