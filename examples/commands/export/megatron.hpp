// SPDX-License-Identifier: Apache-2.0
// Plans for Megatron-LM: --pipeline-model-parallel-layout and the sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/views.hpp>

#include "placed_plan.hpp"

namespace command {

using exported_files = std::vector<std::pair<std::string, std::string>>;  ///< names and texts

/// What one virtual stage of whole blocks holds: E, t for each block, L.
[[nodiscard]] inline std::string megatron_stage(const placed_plan& placed, hetsched::layer_range layers) {
  const int parts = placed.granularity == "sublayer" ? 3 : 1, last = placed.layers() - 1;
  const int first_block = std::max(layers.first, 1), end_block = std::min(layers.last, last),
            blocks = std::max(0, end_block - first_block) / parts;
  std::string text = layers.first == 0 ? "E" : "";
  if (blocks > 0) text += blocks == 1 ? "t" : "t*" + std::to_string(blocks);
  return text + (layers.last > last ? "L" : "");
}

/// Virtual stages with '|' between them; three and more equal ones in a row as (...|)*n.
[[nodiscard]] inline std::string megatron_layout(const std::vector<std::string>& stages) {
  std::string text;
  for (const auto& equal : stages | hetsched::views::chunk_by(std::equal_to{})) {
    const auto& stage = *equal.begin();
    const bool last = equal.end() == stages.end();  // no '|' after it
    const auto closed = std::distance(equal.begin(), equal.end()) - last;
    if (closed >= 3)
      text += "(" + stage + "|)*" + std::to_string(closed) + ",";
    else
      for (auto k = closed; k > 0; --k) text += stage + "|";
    if (last) text += stage;
  }
  return text;
}

/// Requires: a plan that the target megatron can run.
[[nodiscard]] inline exported_files export_megatron(const placed_plan& placed) {
  using namespace hetsched;
  const auto& line = placed.line();
  const auto& sizes = line.stages.front().degrees;  // and those of all others
  const int pipeline = placed.order().ranks;
  std::vector<std::string> stages;
  for (const auto& v : placed.stages()) stages.push_back(megatron_stage(placed, v.layers));
  const auto layout = megatron_layout(stages);
  std::string flags;
  const auto add = [&](const std::string& flag, const std::string& value = "") {
    flags += " \\\n  " + flag + (value.empty() ? "" : " " + value);
  };
  add("--tensor-model-parallel-size", std::to_string(sizes.tensor));
  add("--context-parallel-size", std::to_string(sizes.context));
  if (sizes.expert > 1) add("--expert-model-parallel-size", std::to_string(sizes.expert));
  add("--pipeline-model-parallel-size", std::to_string(pipeline));
  add("--pipeline-model-parallel-layout", "\"$(cat \"$here/pipeline_layout.txt\")\"");
  add("--micro-batch-size", std::to_string(line.microbatch_size / sizes.data));
  add("--global-batch-size", std::to_string(line.microbatch_size * line.microbatches));
  if (sizes.tensor > 1) add("--sequence-parallel");  // as costs from shapes have it
  const auto& setting = placed.file.plan.setting;
  if (setting.precision == "bf16" || setting.precision == "fp16") add("--" + setting.precision);
  // Megatron-LM keeps gradients in fp32 otherwise, for which plans of other stacks leave no room.
  if (setting.precision == "bf16" && setting.costs != "profile" &&
      setting.stack.value_or(training_stack{}).bf16.gradient_bytes < 4)
    add("--grad-reduce-in-bf16");
  if (setting.sequence > 0) add("--seq-length", std::to_string(setting.sequence));
  bool zero = true, full = true, selective = true;
  for (const auto& s : line.stages) {
    zero = zero && s.zero >= 1;
    full = full && s.recompute == recomputation::full;
    selective = selective && s.recompute == recomputation::selective;
  }
  if (zero) add("--use-distributed-optimizer");
  if (selective) add("--recompute-granularity", "selective");
  if (full) add("--recompute-granularity", "full --recompute-method uniform --recompute-num-layers 1");
  const auto ranks = std::to_string(placed.ranks());
  const std::string script =
      "#!/usr/bin/env bash\n# " + ranks + " ranks, placed as ranks.json says. On every host, with its own NODE_RANK:\n" +
      "#   NNODES=2 GPUS_PER_NODE=8 NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh --model-and-data-options ...\n"
      "set -euo pipefail\nhere=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\n"
      "torchrun --nnodes \"${NNODES:-1}\" --nproc-per-node \"${GPUS_PER_NODE:-" +
      ranks +
      "}\" --node-rank \"${NODE_RANK:-0}\" \\\n  --master-addr \"${MASTER_ADDR:-localhost}\" --master-port "
      "\"${MASTER_PORT:-29500}\" \\\n"
      "  \"${MEGATRON:-.}/pretrain_gpt.py\"" +
      flags + " \\\n  \"$@\"\n";
  return {{"pipeline_layout.txt", layout + "\n"}, {"launch.sh", script}, {"ranks.json", ranks_json(placed)}};
}

}  // namespace command
