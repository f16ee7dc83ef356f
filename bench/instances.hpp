// SPDX-License-Identifier: Apache-2.0
#pragma once

// The clusters, models and costs that planner benchmarks share.
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/hetsched.hpp>

namespace bench {

/// A kind of machine: nodes of eight equal devices.
struct machine {
  const char* name;
  const char* device;
  double intra_gbit, inter_gbit;
};

inline constexpr std::array<machine, 4> machines{{{"v100", "V100-SXM2-32GB", 1200, 200},
                                                  {"a100", "A100-SXM4-40GB", 2400, 200},
                                                  {"a100-80", "A100-SXM4-80GB", 2400, 200},
                                                  {"h100", "H100-SXM5-80GB", 3600, 400}}};

[[nodiscard]] inline hetsched::subcluster nodes_of_8(std::string name, const machine& kind, int nodes) {
  using hetsched::gbit_per_s;
  return {.name = std::move(name),
          .device = *hetsched::find_device(kind.device),
          .nodes = nodes,
          .devices_per_node = 8,
          .intra_node = {5e-6, gbit_per_s(kind.intra_gbit)},
          .inter_node = {10e-6, gbit_per_s(kind.inter_gbit)}};
}

/// 5 Gbit/s between any two subclusters.
[[nodiscard]] inline hetsched::cluster joined(std::vector<hetsched::subcluster> parts) {
  hetsched::cluster c{std::move(parts), {}};
  for (int b = 1; b < static_cast<int>(c.subclusters.size()); ++b)
    for (int a = 0; a < b; ++a) c.links.push_back({a, b, {50e-6, hetsched::gbit_per_s(5)}});
  return c;
}

/// Subclusters of so many nodes each, of the machines in turn.
[[nodiscard]] inline hetsched::cluster subclusters(int count, int nodes) {
  std::vector<hetsched::subcluster> parts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto& kind = machines[i % machines.size()];
    const auto round = i / machines.size();
    parts.push_back(nodes_of_8(kind.name + (round > 0 ? "-" + std::to_string(round + 1) : ""), kind, nodes));
  }
  return joined(std::move(parts));
}

/// GPT with three layers a block; the last block is cut short where the number of layers asks for it.
[[nodiscard]] inline hetsched::layer_chain gpt_chain(int layers, int hidden) {
  auto chain =
      make_chain(hetsched::gpt({.layers = layers / 3, .hidden = hidden, .heads = hidden / 128, .vocab = 51200, .sequence = 1024}),
                 hetsched::granularity::sublayer);
  chain.layers.erase(chain.layers.begin() + layers - 1, chain.layers.end() - 1);
  return chain;
}

/// Costs without overheads, with one way to save memory everywhere.
[[nodiscard]] inline hetsched::analytic_options trained(int microbatch_size, hetsched::recomputation recompute) {
  return {.microbatch_size = microbatch_size, .recompute = {recompute}, .overheads = {}};
}

/// Costs of a training process, with all ways to save memory left to the planner.
[[nodiscard]] inline hetsched::analytic_options trained_any_way(int microbatch_size) {
  using enum hetsched::recomputation;
  return {.microbatch_size = microbatch_size, .recompute = {none, selective, full}, .zero = {0, 1, 2, 3}};
}

[[nodiscard]] inline hetsched::planning_problem with(int microbatches, int microbatch_size) {
  return {.microbatches = microbatches, .microbatch_size = microbatch_size};
}

}  // namespace bench
