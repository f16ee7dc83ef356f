// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/export/placed_plan.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched {

HETSCHED_INLINE std::string_view plan_export::text(std::string_view name) const {
  const auto found = std::find_if(files.begin(), files.end(), [&](const export_file& f) { return f.name == name; });
  return found == files.end() ? std::string_view{} : std::string_view(found->text);
}

HETSCHED_INLINE std::vector<int> placed_plan::subclusters() const {
  std::vector<int> used;
  for (const auto& r : ranks)
    if (std::find(used.begin(), used.end(), r.subcluster) == used.end()) used.push_back(r.subcluster);
  return used;
}

HETSCHED_INLINE void placed_plan::refuse(const std::string& why) const {
  throw inexpressible(target + " cannot express this plan: " + why);
}

namespace detail {

/// Pipelines that are copies of one as one pipeline: devices, replicas and microbatches of all, and what the slowest takes.
[[nodiscard]] inline pipeline_plan in_one_pipeline(const std::vector<pipeline_plan>& all) {
  auto one = all.front();
  const int copies = static_cast<int>(all.size());
  const auto slower = [](const boundary_plan& a, const boundary_plan& b) {
    return a.forward_s + a.backward_s < b.forward_s + b.backward_s;
  };
  one.microbatch_size *= copies;
  for (std::size_t l = 1; l < all.size(); ++l) {
    for (std::size_t i = 0; i < one.stages.size(); ++i) {
      auto& s = one.stages[i];
      const auto& other = all[l].stages[i];
      s.devices.insert(s.devices.end(), other.devices.begin(), other.devices.end());
      s.warmup = std::max(s.warmup, other.warmup);
      s.update_s = std::max(s.update_s, other.update_s);
      if (s.cost.total_s() < other.cost.total_s()) s.cost = other.cost;
    }
    for (std::size_t i = 0; i < std::min(one.boundaries.size(), all[l].boundaries.size()); ++i)
      if (slower(one.boundaries[i], all[l].boundaries[i])) one.boundaries[i] = all[l].boundaries[i];
  }
  for (auto& s : one.stages) s.degrees.data *= copies;
  return one;
}

}  // namespace detail

HETSCHED_INLINE placed_plan place_plan(plan_file file, std::string target, std::optional<cluster> hardware,
                                       const std::string& path) {
  placed_plan placed{.target = std::move(target), .file = {}, .layout = {}, .ranks = {}, .hardware = std::move(hardware)};
  const auto& p = file.plan;
  if (p.pipelines.empty()) placed.refuse("it has no pipeline");
  if (const auto unlike = unlike_pipelines(p); unlike && !unlike->runs_anyway)
    placed.refuse("it has " + std::to_string(p.pipelines.size()) + " pipelines, which differ: " + to_text(*unlike));
  auto whole = p;
  whole.pipelines.resize(1);
  whole.gradient_sync.clear();  // ZeRO is the target's business, and no layout's
  for (auto& s : whole.pipelines.front().stages) s.zero = 0;
  placed.layout = std::move(make_training_layout(whole).pipelines.front());
  if (placed.hardware) {
    file.plan = plan_on(file, *placed.hardware, path);
    file.subclusters = subcluster_names(*placed.hardware);
  }
  placed.file = std::move(file);
  placed.copies = static_cast<int>(placed.file.plan.pipelines.size());
  if (placed.copies > 1) {
    placed.file.plan.pipelines = {detail::in_one_pipeline(placed.file.plan.pipelines)};
    placed.file.plan.gradient_sync.clear();
  }
  const auto& stages = placed.line().stages;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& d = stages[s].degrees;
    int place = 0;
    for (const auto& group : stages[s].devices)
      for (int k = 0; k < group.mesh.device_count(); ++k, ++place)
        placed.ranks.push_back({.pipeline_rank = static_cast<int>(s),
                                .data = place / (d.tensor * d.context),
                                .context = place / d.tensor % d.context,
                                .tensor = place % d.tensor,
                                .subcluster = group.mesh.subcluster,
                                .device = group.first_device + k});
  }
  return placed;
}

HETSCHED_INLINE recomputation common_recomputation(const placed_plan& placed, std::vector<std::string>& remarks) {
  const auto& stages = placed.line().stages;
  const auto less = [](const stage_plan& x, const stage_plan& y) { return x.recompute < y.recompute; };
  const auto most = std::max_element(stages.begin(), stages.end(), less)->recompute;
  if (std::min_element(stages.begin(), stages.end(), less)->recompute != most)
    remarks.push_back("its stages recompute different things, and " + placed.target + " has one setting: it is " +
                      std::string(name_of(most)) + " for all, which takes longer than was predicted");
  return most;
}

HETSCHED_INLINE int common_zero(const placed_plan& placed, int most, std::vector<std::string>& remarks) {
  int highest = 0;
  for (const auto& s : placed.line().stages)
    if (replicas(s.degrees) > 1) highest = std::max(highest, s.zero);
  const int common = std::min(highest, most);
  for (std::size_t i = 0; i < placed.line().stages.size(); ++i) {
    const auto& s = placed.line().stages[i];
    if (replicas(s.degrees) == 1 || s.zero == common) continue;
    remarks.push_back("stage " + std::to_string(i) + " has ZeRO stage " + std::to_string(s.zero) + ", and with " + placed.target +
                      " all have " + std::to_string(common) + ": memory is not as in the plan");
    break;
  }
  return common;
}

HETSCHED_INLINE std::optional<precision> precision_of(const placed_plan& placed) {
  const auto asked = find_precision(placed.setting().precision);
  if (!asked || !placed.hardware) return asked;
  return at(placed.hardware->subclusters, placed.subclusters().front()).device.computes_in(*asked);
}

HETSCHED_INLINE int gradient_bytes(const placed_plan& placed, precision computed) {
  if (placed.setting().costs == "profile") return 0;
  const auto stack = placed.setting().stack.value_or(training_stack{});
  return memory_in(stack, computed, computed == precision::fp16 || computed == precision::bf16 ? 2 : 4).gradient_bytes;
}

HETSCHED_INLINE std::string computed_csv(const placed_plan& placed) {
  auto computed = placed.order();
  std::erase_if(computed.lanes, [](const lane& l) { return l.stream != stream::compute; });
  return to_csv(computed);
}

HETSCHED_INLINE std::string module_name(const placed_plan& placed, int layer) {
  const int last = placed.layers() - 1;
  const auto& granularity = placed.setting().granularity;
  if (granularity != "sublayer" && granularity != "block") return "layers." + std::to_string(layer);
  if (layer == 0) return "embedding";
  if (layer == last) return "head";
  if (granularity == "block") return "blocks." + std::to_string(layer - 1);
  constexpr const char* parts[] = {"attention", "norm", "mlp"};
  return "blocks." + std::to_string((layer - 1) / 3) + "." + parts[(layer - 1) % 3];
}

HETSCHED_INLINE std::vector<stage_blocks> blocks_of_stages(const placed_plan& placed) {
  const int parts = placed.setting().granularity == "sublayer" ? 3 : 1, last = placed.layers() - 1;
  std::vector<stage_blocks> all;
  for (const auto& stage : placed.layout.stages) {
    const auto [first, end] = stage.layers;
    const int from = (std::max(first, 1) - 1) / parts;
    all.push_back(
        {.embedding = first == 0, .first = from, .last = std::max(from, (std::min(end, last) - 1) / parts), .head = end > last});
  }
  return all;
}

HETSCHED_INLINE std::string ranks_json(const placed_plan& placed) {
  auto ranks = nlohmann::ordered_json::array();
  const auto& order = placed.order();
  for (const auto& r : placed.ranks) {
    auto held = nlohmann::ordered_json::array();
    for (int v = 0; v < order.stages; ++v)
      if (order.rank(0, v) == r.pipeline_rank) held.push_back(v);
    ranks.push_back({{"rank", ranks.size()},
                     {"pipeline_rank", r.pipeline_rank},
                     {"stages", std::move(held)},
                     {"data", r.data},
                     {"context", r.context},
                     {"tensor", r.tensor},
                     {"subcluster", at(placed.file.subclusters, r.subcluster)},
                     {"device", r.device}});
  }
  return detail::dump(nlohmann::ordered_json{{"ranks", std::move(ranks)}});
}

}  // namespace hetsched
