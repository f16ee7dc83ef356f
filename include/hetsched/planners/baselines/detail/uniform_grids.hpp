// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/baselines/baselines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/baselines/detail/baseline_judge.hpp>
#include <hetsched/planners/baselines/detail/device_line.hpp>

namespace hetsched::detail {

/// All devices in equal stages: of each pipeline and stage, the devices and the placement, which differ in the subcluster only.
struct uniform_grid {
  int pipelines = 1, stages = 1;
  std::vector<device_group> devices{};    // [stage][pipeline]
  std::vector<int> placements{};          // likewise
  std::vector<std::vector<int>> kinds{};  // of each stage, the placements that it has in any pipeline
  double bound_s = 0;                     // on the iteration, whatever the cut

  [[nodiscard]] std::size_t at(int stage, int pipeline) const { return as_size(stage * pipelines + pipeline); }
};

/// A stage takes as long as its slowest replica.
[[nodiscard]] inline double slowest_s(const stage_prices& table, const std::vector<int>& placements, layer_range layers) {
  double seconds = 0;
  for (const int p : placements) seconds = std::max(seconds, table.time(p, layers.first, layers.last));
  return seconds;
}

/// A grid of these devices whose placements are as `like` says; none where one is not offered.
[[nodiscard]] inline std::optional<uniform_grid> placed_alike(const baseline_judge& judge, uniform_grid g,
                                                              const placement& like) {
  for (const auto& group : g.devices) {
    auto where = like;
    where.mesh = group.mesh;
    const auto& offered = judge.placements_on(group.mesh);
    const auto found =
        std::find_if(offered.begin(), offered.end(), [&](int p) { return at(judge.placed().placements, p).where == where; });
    if (found == offered.end()) return std::nullopt;
    g.placements.push_back(*found);
  }
  for (int i = 0; i < g.stages; ++i) {
    const auto row = g.placements.begin() + i * g.pipelines;
    auto& own = g.kinds.emplace_back(row, row + g.pipelines);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
  if (!judge.table().additive()) return g;
  // Some stage takes the mean of all at the least.
  double work = 0;
  for (int l = 0; l < judge.placed().layers; ++l) {
    double least = infinity;
    for (const auto& kinds : g.kinds) least = std::min(least, slowest_s(judge.table(), kinds, {l, l + 1}));
    work += least;
  }
  g.bound_s = work / g.stages * (judge.asked().microbatches / g.pipelines) * (1 - tolerance::sums);
  return g;
}

/// What a grid is made of, without its devices, which may be many.
struct grid_choice {
  std::size_t order = 0;  ///< of subclusters
  int each = 1, stages = 1, pipelines = 1;
  bool replicas_first = true;
  int like = 0;  ///< placement of the first stage
  double bound_s = 0;
};

/// The devices of a choice in equal groups, without placements; none where a group would not lie on whole nodes or one node.
[[nodiscard]] inline std::optional<uniform_grid> devices_of(const device_line& line, const grid_choice& c) {
  uniform_grid g{.pipelines = c.pipelines, .stages = c.stages};
  for (int i = 0; i < c.stages; ++i)
    for (int r = 0; r < c.pipelines; ++r) {
      const auto group = line.group((c.replicas_first ? i * c.pipelines + r : r * c.stages + i) * c.each, c.each);
      if (!group) return std::nullopt;
      g.devices.push_back(*group);
    }
  return g;
}

/// Every grid that the cost model has placements for, those of the least bound first.
[[nodiscard]] inline std::vector<grid_choice> uniform_grids(baseline_judge& judge, const std::vector<device_line>& lines) {
  const int layers = judge.placed().layers;
  std::vector<grid_choice> choices;
  for (std::size_t order = 0; order < lines.size(); ++order) {
    const int devices = lines[order].device_count();
    for (int each = 1; each <= devices; ++each) {
      const int groups = devices / each;
      for (int stages = 1; devices % each == 0 && stages <= std::min(groups, layers); ++stages) {
        const int pipelines = groups / stages;
        if (groups % stages != 0 || judge.asked().microbatches % pipelines != 0) continue;
        for (const bool replicas_first : {true, false}) {
          if (!replicas_first && (stages == 1 || pipelines == 1)) continue;
          if (!judge.go_on()) return choices;
          grid_choice c{order, each, stages, pipelines, replicas_first};
          const auto bare = devices_of(lines[order], c);
          if (!bare) continue;
          for (const int p : judge.placements_on(bare->devices.front().mesh))
            if (const auto g = placed_alike(judge, *bare, at(judge.placed().placements, p).where)) {
              c.like = p;
              c.bound_s = g->bound_s;
              choices.push_back(c);
            }
        }
      }
    }
  }
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.bound_s < b.bound_s; });
  return choices;
}

/// Looks at a grid whose stages begin at the layers `cuts` (stages + 1, with both ends), unless a stage is too large or a bound,
/// whatever the schedule, shows that it is not the best.
inline void consider_cut(baseline_judge& judge, const uniform_grid& g, const std::vector<int>& cuts) {
  const int microbatches = judge.asked().microbatches / g.pipelines;
  std::vector<pipeline_plan> lines;
  for (int r = 0; r < g.pipelines; ++r) {
    auto& line = lines.emplace_back(pipeline_plan{.microbatches = microbatches});
    double before_s = 0;
    for (int i = 0; i < g.stages; ++i) {
      const layer_range layers{at(cuts, i), at(cuts, i + 1)};
      const int p = g.placements[g.at(i, r)];
      const double seconds = judge.table().time(p, layers.first, layers.last);
      if (!judge.may_fit(p, layers)) return;
      if (judge.hopeless(before_s, seconds, microbatches)) return;
      before_s += seconds;
      line.stages.push_back(judge.stage(p, g.devices[g.at(i, r)], layers));
    }
  }
  judge.consider(std::move(lines));
}

/// Goes through the grids on subclusters in these orders, with what cuts_of(grid) says, while their bounds leave hope.
template <class CutsOf>
[[nodiscard]] outcome<plan> best_of_grids(baseline_judge& judge, std::vector<std::vector<int>> orders, CutsOf cuts_of) {
  std::vector<device_line> lines;
  for (auto& order : orders) lines.emplace_back(judge.hardware(), std::move(order));
  for (const auto& c : uniform_grids(judge, lines)) {
    if (!(c.bound_s < judge.limit_s()) || !judge.go_on()) break;
    const auto g = placed_alike(judge, *devices_of(lines[c.order], c), at(judge.placed().placements, c.like).where);
    for (const auto& cuts : cuts_of(*g)) consider_cut(judge, *g, cuts);
  }
  return judge.result();
}

/// Equal numbers of layers, as near as they go: of all layers, and of all but the first and the last.
[[nodiscard]] inline std::vector<std::vector<int>> equal_cuts(int layers, int stages) {
  std::vector<std::vector<int>> both;
  for (const int ends : {0, 1}) {
    const int inner = layers - 2 * ends;
    if (inner < stages) break;
    std::vector<int> cuts{0};
    for (int i = 1; i < stages; ++i) cuts.push_back(ends + static_cast<int>(std::int64_t{inner} * i / stages));
    cuts.push_back(layers);
    if (both.empty() || both.front() != cuts) both.push_back(std::move(cuts));
  }
  return both;
}

}  // namespace hetsched::detail
