// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/detail/joined_text.hpp>
#include <hetsched/io/export/flagscale.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

namespace detail {

/// Blocks of each stage.
[[nodiscard]] inline std::vector<int> flagscale_split(const placed_plan& placed) {
  std::vector<int> split;
  for (const auto& s : blocks_of_stages(placed)) split.push_back(s.last - s.first);
  return split;
}

/// Lines of the section recompute; empty if nothing is.
[[nodiscard]] inline std::string flagscale_recompute(const placed_plan& placed, std::vector<std::string>& remarks) {
  const auto& stages = placed.line().stages;
  const auto count = [&](recomputation r) {
    return static_cast<std::size_t>(std::count_if(stages.begin(), stages.end(), [&](const auto& s) { return s.recompute == r; }));
  };
  if (count(recomputation::none) == stages.size()) return "";
  if (count(recomputation::selective) == stages.size()) return "    recompute:\n      recompute_granularity: \"selective\"\n";
  if (count(recomputation::selective) > 0)
    remarks.push_back("some of its stages recompute selectively, which FlagScale has for all or none: they recompute fully");
  std::string text =
      "    recompute:\n      recompute_granularity: \"full\"\n      recompute_method: \"uniform\"\n      recompute_num_layers: "
      "1\n";
  if (count(recomputation::none) == 0) return text;
  // A row a stage: how many stages, then how many microbatches, and the flag that they have.
  const auto rows = [&](const char* key, auto flag) {
    text += std::string("      ") + key + ":\n";
    for (const auto& s : stages)
      text +=
          "        - [1, " + std::to_string(placed.line().microbatches) + ", " + flag(s.recompute != recomputation::none) + "]\n";
  };
  rows("recompute_granularity_per_stage_micro_batch", [](bool full) { return full ? "1" : "0"; });
  rows("recompute_method_per_stage_micro_batch", [](bool) { return "0"; });
  rows("recompute_num_layers_per_stage_micro_batch", [](bool) { return "1"; });
  return text;
}

[[nodiscard]] inline std::string flagscale_precision(const placed_plan& placed) {
  const auto used = precision_of(placed);
  if (used != precision::bf16 && used != precision::fp16) return "";
  const int bytes = gradient_bytes(placed, *used);
  std::string text = "    precision:\n      " + std::string(name_of(*used)) + ": True\n";
  if (bytes >= 4) text += "      accumulate_allreduce_grads_in_fp32: True\n";
  if (used == precision::bf16 && bytes > 0 && bytes < 4) text += "      grad_reduce_in_bf16: True\n";
  return text;
}

/// The experiment: hosts, and which of their devices are seen.
[[nodiscard]] inline std::string flagscale_experiment(const std::vector<host_ranks>& starts) {
  std::string text =
      "# python run.py --config-path DIR --config-name flagscale action=run\ndefaults:\n"
      "  - train: model  # your train/model.yaml: model, data and optimizer\n  - _self_\n\n"
      "experiment:\n  exp_name: plan\n  exp_dir: ./outputs\n  task:\n    type: train\n    backend: megatron\n"
      "    entrypoint: ./flagscale/train/train_gpt.py\n  runner:\n    backend: torchrun\n"
      "    hostfile: hosts.txt  # its path; names of hosts are also those below\n"
      "    rdzv_backend: static\n  envs:\n    CUDA_DEVICE_MAX_CONNECTIONS: 1\n    node_specific:\n";
  for (const auto& h : starts)
    text += "      " + h.host + ":\n        CUDA_VISIBLE_DEVICES: \"" + joined_numbers(h.slots, ",") + "\"\n";
  return text;
}

/// The lines of the meshes: degrees and stages of each, blocks of each stage, types of hosts.
[[nodiscard]] inline std::string flagscale_hetero(const placed_plan& placed, const std::vector<flagscale_mesh>& meshes,
                                                  const std::vector<int>& split) {
  const auto list = [](const auto& values, auto text) { return "[" + joined_text(values, ", ", text) + "]\n"; };
  std::string text = "    hetero:\n      enable_hetero: True\n      hetero_pipeline_layer_split: ";
  text += list(split, [](int n) { return std::to_string(n); }) + "      hetero_process_meshes: ";
  text += list(meshes, [](const flagscale_mesh& m) {
    const auto& d = m.degrees;
    return joined_numbers(std::vector{d.tensor, d.context, d.expert, d.data, m.stages}, ", ");
  });
  text += "      hetero_device_types: " + list(meshes, [](const flagscale_mesh& m) { return "\"" + m.type + "\""; }) +
          "      hetero_current_device_type: \"" + meshes.front().type + "\"\n      standalone_embedding_stage: False\n";
  if (!joined_by_nccl(placed)) text += "      hetero_use_cpu_communication: True\n";
  return text;
}

}  // namespace detail

HETSCHED_INLINE std::vector<std::string> flagscale_types(const std::vector<host_ranks>& starts) {
  std::vector<std::string> types;
  std::vector<std::pair<int, int>> visits;  // subcluster, how often it was come to
  for (std::size_t k = 0; k < starts.size(); ++k) {
    const int s = starts[k].subcluster;
    auto found = std::find_if(visits.begin(), visits.end(), [&](const auto& v) { return v.first == s; });
    if (found == visits.end()) found = visits.insert(visits.end(), {s, 0});
    if (k == 0 || starts[k - 1].subcluster != s) ++found->second;
    const auto& host = starts[k].host;
    const auto name = host.substr(0, host.rfind('-'));
    types.push_back(found->second == 1 ? name : name + "." + std::to_string(found->second));
  }
  return types;
}

HETSCHED_INLINE std::vector<flagscale_mesh> flagscale_meshes(const placed_plan& placed, const std::vector<host_ranks>& starts,
                                                             const std::vector<std::string>& types) {
  std::vector<flagscale_mesh> meshes;
  const auto type_of = [&](std::size_t rank) -> const std::string& {
    std::size_t k = 0;
    while (k + 1 < starts.size() && as_size(starts[k + 1].first_rank) <= rank) ++k;
    return types[k];
  };
  std::size_t rank = 0;
  for (std::size_t s = 0; s < placed.line().stages.size(); ++s) {
    const auto& stage = placed.line().stages[s];
    const auto& type = type_of(rank);
    rank += as_size(device_count(stage.devices));
    if (!meshes.empty() && meshes.back().degrees == stage.degrees && meshes.back().type == type)
      ++meshes.back().stages;
    else
      meshes.push_back({.degrees = stage.degrees, .stages = 1, .type = type});
  }
  return meshes;
}

HETSCHED_INLINE plan_export export_flagscale(const placed_plan& placed) {
  if (!placed.hardware) throw input_error("FlagScale is told hosts and their types: a cluster is needed");
  const auto starts = starts_of(placed);
  const auto types = flagscale_types(starts);
  const auto meshes = flagscale_meshes(placed, starts, types);
  const auto split = detail::flagscale_split(placed);
  const auto& line = placed.line();
  const auto first = line.stages.front().degrees, last = line.stages.back().degrees;
  const bool several_tensor =
      std::any_of(line.stages.begin(), line.stages.end(), [](const auto& s) { return s.degrees.tensor > 1; });
  plan_export result;
  const auto number = [](const char* key, auto value) { return std::string("    ") + key + ": " + std::to_string(value) + "\n"; };
  std::string text = detail::flagscale_experiment(starts) + "\ntrain:\n  system:\n" +
                     number("tensor_model_parallel_size", first.tensor) +
                     number("pipeline_model_parallel_size", line.stages.size());
  if (several_tensor) text += "    sequence_parallel: True\n";
  if (common_zero(placed, 1, result.remarks) == 1) text += "    use_distributed_optimizer: True\n";
  if (!line.copy_sync.empty() && first.data != last.data) text += "    use_partial_reduce_for_shared_embedding: True\n";
  text += detail::flagscale_precision(placed) + detail::flagscale_hetero(placed, meshes, split) +
          detail::flagscale_recompute(placed, result.remarks);
  int blocks = 0;
  for (const int n : split) blocks += n;
  text += "  model:\n" + number("num_layers", blocks) + number("micro_batch_size", placed.line().microbatch_size / first.data) +
          number("global_batch_size", sample_count(placed.file.plan));
  if (placed.setting().sequence > 0) text += number("seq_length", placed.setting().sequence);
  if (first.tensor != last.tensor) text += "    untie_embeddings_and_output_weights: True\n";
  text += "\naction: run\nhydra:\n  run:\n    dir: ${experiment.exp_dir}/hydra\n";

  result.files = {
      {"flagscale.yaml", std::move(text)}, {"hosts.txt", hosts_text(placed, starts, types)}, {"ranks.json", ranks_json(placed)}};
  for (auto& f : assumption_files(placed)) result.files.push_back(std::move(f));
  for (auto& more : remarks_under_1f1b(placed, "megatron")) result.remarks.push_back(std::move(more));
  return result;
}

}  // namespace hetsched
