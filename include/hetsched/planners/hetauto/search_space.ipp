// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/natural.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>

namespace hetsched {

HETSCHED_INLINE plan_space plan_space_of(const cluster& hardware, const any_cost_model& costs, int operators,
                                         bool use_all_devices) {
  plan_space space{.layers = costs.layer_count(), .use_all_devices = use_all_devices};
  if (space.layers < 1) throw input_error("a cost model needs at least one layer");
  space.operators = std::max(operators, space.layers);
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    const auto& s = hardware.subclusters[k];
    auto& ways = space.ways.emplace_back(static_cast<std::size_t>(s.device_count()) + 1);
    for (const auto& mesh : submeshes(s, static_cast<int>(k)))
      ways[static_cast<std::size_t>(mesh.device_count())] += static_cast<std::int64_t>(costs.placements(mesh).size());
  }
  return space;
}

namespace detail {

/// Binomial coefficients up to n over n.
[[nodiscard]] inline std::vector<std::vector<natural>> pascal(std::size_t n) {
  std::vector<std::vector<natural>> rows(n + 1);
  for (std::size_t i = 0; i <= n; ++i) {
    rows[i].assign(i + 1, 1);
    for (std::size_t j = 1; j < i; ++j) rows[i][j] = rows[i - 1][j - 1] + rows[i - 1][j];
  }
  return rows;
}

/// By number of stages up to `most`: in how many ways they, in a given order, get placements on a cluster of ways.size() - 1
/// devices. Complexity: O(most * devices * numbers of devices with any way).
[[nodiscard]] inline std::vector<natural> free_placements(const std::vector<std::int64_t>& ways, std::size_t most, bool use_all) {
  std::vector<natural> by_devices(ways.size()), counts;
  by_devices[0] = 1;
  for (std::size_t stages = 0; stages <= most; ++stages) {
    natural sum = use_all ? by_devices.back() : natural{};
    if (!use_all)
      for (const auto& n : by_devices) sum += n;
    counts.push_back(std::move(sum));
    std::vector<natural> next(ways.size());
    for (std::size_t n = 1; n < ways.size(); ++n) {
      if (ways[n] == 0) continue;
      for (std::size_t used = stages; used + n < ways.size(); ++used)
        next[used + n] += by_devices[used] * static_cast<std::uint64_t>(ways[n]);
    }
    by_devices = std::move(next);
  }
  return counts;
}

/// The same where all stages have one placement.
[[nodiscard]] inline std::vector<natural> uniform_placements(const std::vector<std::int64_t>& ways, std::size_t most,
                                                             bool use_all) {
  std::vector<natural> counts{use_all && ways.size() > 1 ? 0u : 1u};
  for (std::size_t stages = 1; stages <= most; ++stages) {
    natural sum;
    for (std::size_t n = 1; n * stages < ways.size(); ++n)
      if (!use_all || n * stages == ways.size() - 1) sum += static_cast<std::uint64_t>(ways[n]);
    counts.push_back(std::move(sum));
  }
  return counts;
}

}  // namespace detail

HETSCHED_INLINE plan_counts count_plans(const plan_space& space) {
  if (space.layers < 1 || space.operators < space.layers)
    throw input_error("plans are counted of at least one layer, and at least as many operators");
  std::size_t devices = 0;
  for (const auto& ways : space.ways) devices += ways.size() - 1;
  const auto count_of = [&](int parts) { return std::min(static_cast<std::size_t>(parts), devices); };
  const auto layers = static_cast<std::size_t>(space.layers), operators = static_cast<std::size_t>(space.operators);
  const auto most = count_of(space.operators);  // stages
  const auto choose = detail::pascal(std::max(operators, most));

  std::vector<std::vector<natural>> free, uniform;
  for (const auto& ways : space.ways) {
    const auto own = std::min(most, ways.size() - 1);
    free.push_back(detail::free_placements(ways, own, space.use_all_devices));
    uniform.push_back(detail::uniform_placements(ways, own, space.use_all_devices));
  }

  // By number of stages: those that may take devices on several clusters.
  std::vector<natural> open(most + 1);
  for (std::size_t k = 0; k <= most; ++k) {
    open[k] = 1;
    for (const auto& ways : free) {
      natural sum;
      for (std::size_t i = 0; i <= k && i < ways.size(); ++i) sum += choose[k][i] * ways[i];
      open[k] *= sum;
    }
  }
  const auto of_several = [&](std::size_t p) {
    natural plus, minus;
    for (std::size_t k = 0; k <= p; ++k) ((p - k) % 2 == 0 ? plus : minus) += choose[p][k] * open[k];
    return plus - minus;
  };
  // Any order of clusters, stage by stage.
  std::vector<natural> mixed(most + 1);
  mixed[0] = 1;
  for (const auto& ways : free) {
    std::vector<natural> next(most + 1);
    for (std::size_t p = 0; p <= most; ++p)
      for (std::size_t k = 0; k <= p && k < ways.size(); ++k) next[p] += choose[p][k] * mixed[p - k] * ways[k];
    mixed = std::move(next);
  }
  // Runs: by clusters in use, then by stages; u clusters have u! orders.
  const auto runs = [&](const std::vector<std::vector<natural>>& placed) {
    std::vector<std::vector<natural>> known(1, std::vector<natural>(most + 1));
    known[0][0] = 1;
    for (const auto& ways : placed) {
      std::vector<std::vector<natural>> next(known.size() + 1, std::vector<natural>(most + 1));
      for (std::size_t used = 0; used < known.size(); ++used)
        for (std::size_t p = 0; p <= most; ++p)
          for (std::size_t k = 0; k < ways.size() && p + k <= most; ++k)
            next[used + (k > 0 ? 1 : 0)][p + k] += known[used][p] * ways[k];
      known = std::move(next);
    }
    std::vector<natural> sum(most + 1);
    natural orders = 1;
    for (std::size_t used = 1; used < known.size(); ++used) {
      orders *= used;
      for (std::size_t p = 0; p <= most; ++p) sum[p] += orders * known[used][p];
    }
    return sum;
  };
  const auto consecutive = runs(free), alike = runs(uniform);

  plan_counts counts;
  for (std::size_t p = 1; p <= most; ++p) {
    const auto several = of_several(p);
    counts.all += choose[operators - 1][p - 1] * several;
    if (p > layers) continue;
    const auto& cuts = choose[layers - 1][p - 1];
    counts.whole_layers += cuts * several;
    counts.one_cluster += cuts * mixed[p];
    counts.consecutive += cuts * consecutive[p];
    counts.uniform += cuts * alike[p];
  }
  return counts;
}

}  // namespace hetsched
