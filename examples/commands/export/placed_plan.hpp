// SPDX-License-Identifier: Apache-2.0
// A plan as trainers elsewhere see it: virtual stages, ranks, and what they cannot express.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/error.hpp>
#include <hetsched/io.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/views/plan.hpp>

namespace command {

/// The pipeline of a plan, its schedule, and each virtual stage.
struct placed_plan {
  hetsched::plan_file file;
  hetsched::training_layout layout;
  std::string granularity;  ///< sublayer, block, or empty: layers without names

  [[nodiscard]] const hetsched::pipeline_plan& line() const { return file.plan.pipelines.front(); }
  [[nodiscard]] const hetsched::schedule& order() const { return layout.pipelines.front().order; }
  [[nodiscard]] const std::vector<hetsched::stage_layout>& stages() const { return layout.pipelines.front().stages; }
  [[nodiscard]] int layers() const { return line().stages.back().layers.last; }
  [[nodiscard]] int ranks() const { return layout.ranks(); }
};

/// What a target cannot express.
struct inexpressible : hetsched::error {
  using hetsched::error::error;
};

/// Reads what to export. Throws inexpressible for what no target can: several pipelines, uneven shares.
[[nodiscard]] inline placed_plan place_plan(hetsched::plan_file file) {
  using namespace hetsched;
  const plan_target one_line{.name = "export", .several_pipelines = false, .uneven_shares = false};
  for (const auto& gap : gaps(file.plan, one_line)) throw inexpressible("this plan cannot be exported: " + to_text(gap));
  placed_plan placed{.file = {}, .layout = make_training_layout(file.plan), .granularity = file.plan.setting.granularity};
  placed.file = std::move(file);
  return placed;
}

/// The name of a layer, as in blocks.3.attention.
[[nodiscard]] inline std::string module_name(const placed_plan& placed, int layer) {
  const int last = placed.layers() - 1;
  if (placed.granularity != "sublayer" && placed.granularity != "block") return "layers." + std::to_string(layer);
  if (layer == 0) return "embedding";
  if (layer == last) return "head";
  if (placed.granularity == "block") return "blocks." + std::to_string(layer - 1);
  constexpr const char* parts[] = {"attention", "norm", "mlp"};
  return "blocks." + std::to_string((layer - 1) / 3) + "." + parts[(layer - 1) % 3];
}

/// Who is where: a rank for each device, stage by stage, tensor ranks next to each other, then context, then data.
[[nodiscard]] inline std::string ranks_json(const placed_plan& placed) {
  using namespace hetsched;
  auto ranks = nlohmann::ordered_json::array();
  const auto& order = placed.order();
  for (std::size_t p = 0; p < placed.line().stages.size(); ++p) {
    const auto& s = placed.line().stages[p];
    auto held = nlohmann::ordered_json::array();
    for (int v = 0; v < order.stages; ++v)
      if (order.rank(0, v) == static_cast<int>(p)) held.push_back(v);
    for (const auto& [place, at] : views::zip(views::iota(0), views::devices(s.devices)))
      ranks.push_back({{"rank", ranks.size()},
                       {"pipeline_rank", p},
                       {"stages", held},
                       {"data", place / (s.degrees.tensor * s.degrees.context)},
                       {"context", place / s.degrees.tensor % s.degrees.context},
                       {"tensor", place % s.degrees.tensor},
                       {"subcluster", placed.file.subclusters.at(static_cast<std::size_t>(at.subcluster))},
                       {"device", at.device}});
  }
  return hetsched::detail::dump(nlohmann::ordered_json{{"ranks", std::move(ranks)}});
}

}  // namespace command
