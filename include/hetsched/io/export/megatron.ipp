// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/hosts.hpp>
#include <hetsched/io/export/megatron.hpp>

namespace hetsched {

namespace detail {

/// The plan is priced with products in fp8, and all its devices have them, as far as they are known.
[[nodiscard]] inline bool asks_for_fp8(const placed_plan& placed) {
  const auto& stack = placed.setting().stack;
  const auto used = placed.subclusters();
  return stack && stack->fp8_products && (!placed.hardware || std::all_of(used.begin(), used.end(), [&](int s) {
           return multiplies_fp8(at(placed.hardware->subclusters, s).device);
         }));
}

/// --bf16 or --fp16, and in which precision gradients are kept and added up. Megatron-LM has fp32 gradients with bf16, and 16
/// bits with fp16, unless it is told otherwise.
inline void add_precision(const placed_plan& placed, std::vector<std::string>& flags) {
  const auto used = precision_of(placed);
  if (used != precision::bf16 && used != precision::fp16) return;
  flags.push_back("--" + std::string(name_of(*used)));
  const int bytes = gradient_bytes(placed, *used);
  if (used == precision::bf16 && bytes > 0 && bytes < 4) flags.push_back("--grad-reduce-in-bf16");
  if (bytes >= 4) flags.push_back("--accumulate-allreduce-grads-in-fp32");
  if (asks_for_fp8(placed)) flags.push_back("--fp8-format hybrid");
}

}  // namespace detail

HETSCHED_INLINE std::string megatron_layout(const placed_plan& placed) {
  std::vector<std::string> stages;
  for (const auto& s : blocks_of_stages(placed)) {
    const int blocks = s.last - s.first;
    std::string text = s.embedding ? "E" : "";
    if (blocks > 0) text += blocks == 1 ? "t" : "t*" + std::to_string(blocks);
    if (const int further = placed.setting().further_tokens; s.head && further > 0)
      text += further == 1 ? "m" : "m*" + std::to_string(further);
    stages.push_back(text + (s.head ? "L" : ""));
  }
  std::string text;
  for (std::size_t first = 0; first < stages.size();) {
    std::size_t end = first + 1;
    while (end < stages.size() && stages[end] == stages[first]) ++end;
    const bool last = end == stages.size();  // no '|' after it
    const auto closed = end - first - (last ? 1 : 0);
    if (closed >= 3)
      text += "(" + stages[first] + "|)*" + std::to_string(closed) + ",";
    else
      for (auto k = closed; k > 0; --k) text += stages[first] + "|";
    if (last) text += stages[first];
    first = end;
  }
  return text;
}

HETSCHED_INLINE std::vector<std::string> megatron_flags(const placed_plan& placed, std::vector<std::string>& remarks) {
  const auto& line = placed.line();
  const auto sizes = line.stages.front().degrees;
  std::vector<std::string> flags{"--tensor-model-parallel-size " + std::to_string(sizes.tensor),
                                 "--context-parallel-size " + std::to_string(sizes.context)};
  const auto add = [&](const std::string& flag) { flags.push_back(flag); };
  if (sizes.expert > 1) add("--expert-model-parallel-size " + std::to_string(sizes.expert));
  add("--pipeline-model-parallel-size " + std::to_string(placed.order().ranks));
  add("--micro-batch-size " + std::to_string(placed.line().microbatch_size / sizes.data));
  add("--global-batch-size " + std::to_string(line.microbatch_size * line.microbatches));
  if (sizes.tensor > 1) add("--sequence-parallel");  // as costs from shapes have it
  detail::add_precision(placed, flags);
  if (placed.setting().sequence > 0) add("--seq-length " + std::to_string(placed.setting().sequence));
  if (const int further = placed.setting().further_tokens; further > 0) add("--mtp-num-layers " + std::to_string(further));
  if (common_zero(placed, 1, remarks) == 1) {
    add("--use-distributed-optimizer");  // which shards as ZeRO 1 does
    // Each pipeline shards for itself: data ranks in a row (megatron/core/parallel_state.py, intra_partial_data_parallel ranks).
    if (placed.copies > 1) add("--num-distributed-optimizer-instances " + std::to_string(placed.copies));
  }
  const auto recompute = common_recomputation(placed, remarks);
  if (recompute == recomputation::selective) add("--recompute-granularity selective");
  if (recompute == recomputation::full) add("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
  return flags;
}

HETSCHED_INLINE plan_export export_megatron(const placed_plan& placed) {
  plan_export result;
  std::string program =
      "\"${MEGATRON:-.}/pretrain_gpt.py\" \\\n  --pipeline-model-parallel-layout \"$(cat \"$here/pipeline_layout.txt\")\"";
  for (const auto& flag : megatron_flags(placed, result.remarks)) program += " \\\n  " + flag;
  result.files = {{"pipeline_layout.txt", megatron_layout(placed) + "\n"}};
  // It insists on the one connection for tensor and context parallelism before Blackwell.
  for (auto& f : launch_files(placed, program, "export CUDA_DEVICE_MAX_CONNECTIONS=1\n")) result.files.push_back(std::move(f));
  for (auto& f : assumption_files(placed)) result.files.push_back(std::move(f));
  result.files.push_back({"ranks.json", ranks_json(placed)});
  for (auto& more : remarks_under_1f1b(placed, "megatron", detail::asks_for_fp8(placed)))
    result.remarks.push_back(std::move(more));
  return result;
}

}  // namespace hetsched
