// SPDX-License-Identifier: Apache-2.0
// HexiScale's clusters, models and plans, as its paper has them. Not in the paper: latencies (here 10 us on a node, 50 us between
// nodes), the batch, and bandwidths on the nodes of setting 1 to 3 other than 24 and 200 GB/s (32 GB/s for the 4090, as in its
// App. B).
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched::hexiscale_paper {

struct machines {
  const char* name;
  const char* device;
  int nodes, devices;
  double gb_per_s;
};

inline cluster cluster_of(const std::vector<machines>& kinds, double network_gb_per_s) {
  const link network{50e-6, network_gb_per_s * 1e9};
  cluster c;
  for (const auto& k : kinds)
    c.subclusters.push_back({k.name, catalogue_device(k.device), k.nodes, k.devices, {10e-6, k.gb_per_s * 1e9}, network});
  for (int b = 0; b < static_cast<int>(kinds.size()); ++b)
    for (int a = 0; a < b; ++a) c.links.push_back({a, b, network});
  return c;
}

// Sec. 5.1; between nodes about 0.7 GB/s.
inline cluster setting_1(double network = 0.7) {
  return cluster_of({{"3080ti", "RTX3080Ti", 1, 8, 24}, {"3090", "RTX3090", 1, 8, 24}, {"4090", "RTX4090", 3, 8, 32}}, network);
}
inline cluster setting_2() {
  return cluster_of({{"3080ti", "RTX3080Ti", 1, 8, 24},
                     {"3090", "RTX3090", 1, 8, 24},
                     {"4090", "RTX4090", 1, 8, 32},
                     {"a800", "A800-SXM4-80GB", 1, 8, 200}},
                    0.7);
}
inline cluster setting_3() {
  return cluster_of({{"a800", "A800-SXM4-80GB", 1, 8, 200},
                     {"4090", "RTX4090", 4, 8, 32},
                     {"3090", "RTX3090", 1, 8, 24},
                     {"half", "RTX3090", 2, 4, 24}},
                    0.7);
}
// App. B, Table 4.
inline cluster large() {
  return cluster_of({{"3090", "RTX3090", 5, 8, 24},
                     {"half", "RTX3090", 6, 4, 24},
                     {"4090", "RTX4090", 20, 8, 32},
                     {"a800", "A800-SXM4-80GB", 2, 8, 200}},
                    0.7);
}
// Sec. 3.1.
inline cluster case_study() {
  return cluster_of({{"A", "A800-SXM4-80GB", 1, 3, 200}, {"B", "RTX4090", 1, 3, 32}, {"C", "RTX3090", 1, 2, 16}}, 1);
}

inline constexpr hexiscale_model llama_2_7b{.layers = 32, .hidden = 4096, .sequence = 4096};
inline constexpr hexiscale_model llama_2_13b{.layers = 40, .hidden = 5120, .sequence = 4096};
inline constexpr hexiscale_model llama_30b{.layers = 60, .hidden = 6656, .sequence = 2048};
inline constexpr hexiscale_model llama_2_70b{.layers = 80, .hidden = 8192, .sequence = 4096};

/// FLOPs of a sample, recomputation not counted: what an MFU counts.
inline double model_flops(const hexiscale_model& m) {
  return 72.0 * m.sequence * m.hidden * m.hidden * (1 + m.sequence / (6.0 * m.hidden)) * m.layers;
}

/// Adds a stage of the next `layers` layers.
inline void add_stage(pipeline_plan& line, int layers, int subcluster, int first_device, int devices) {
  const int at = line.stages.empty() ? 0 : line.stages.back().layers.last;
  line.schedule.name = "exact_1f1b";
  line.stages.push_back({.layers = {at, at + layers},
                         .devices = {{{subcluster, 1, devices}, first_device}},
                         .degrees = {1, 1, devices},
                         .recompute = recomputation::full});
}

/// Table 2: Llama (30B) on setting 3. Which devices of a kind are whose is not told.
inline plan table_2() {
  plan p{.planner = "HexiScale, Table 2"};
  p.pipelines.resize(4);
  add_stage(p.pipelines[0], 60, 0, 0, 8);
  for (int i = 0; i < 3; ++i) add_stage(p.pipelines[1], 18, 1, 4 * i, 4);
  add_stage(p.pipelines[1], 6, 2, 0, 2);
  for (int i = 0; i < 3; ++i) add_stage(p.pipelines[2], 18, 1, 12 + 4 * i, 4);
  add_stage(p.pipelines[2], 6, 2, 2, 2);
  for (int i = 0; i < 2; ++i) add_stage(p.pipelines[3], 18, 1, 24 + 4 * i, 4);
  for (int i = 0; i < 2; ++i) add_stage(p.pipelines[3], 4, 2, 4 + 2 * i, 2);
  for (int i = 0; i < 4; ++i) add_stage(p.pipelines[3], 4, 3, 2 * i, 2);
  return p;
}

/// Sec. 3.1, plan 3 of Megatron: two pipelines of four stages of ten layers. Which device is where only Figure 1 tells; here two
/// of A are in the first pipeline, as the text says.
inline plan megatron_plan_3() {
  plan p{.planner = "Megatron, plan 3"};
  p.pipelines.resize(2);
  for (auto& line : p.pipelines) line.microbatches = 12;
  add_stage(p.pipelines[0], 10, 0, 0, 1);
  add_stage(p.pipelines[0], 10, 0, 1, 1);
  add_stage(p.pipelines[0], 10, 1, 0, 1);
  add_stage(p.pipelines[0], 10, 2, 0, 1);
  add_stage(p.pipelines[1], 10, 0, 2, 1);
  add_stage(p.pipelines[1], 10, 1, 1, 1);
  add_stage(p.pipelines[1], 10, 1, 2, 1);
  add_stage(p.pipelines[1], 10, 2, 1, 1);
  return p;
}

}  // namespace hetsched::hexiscale_paper
