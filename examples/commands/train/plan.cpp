// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/profile.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include <gpt/shapes.hpp>
#include <train/model.hpp>
#include <train/plan.hpp>

hetsched::outcome<hetsched::plan_file> train::plan_for(const gpt::config& m, const equal_ranks& there,
                                                       std::vector<double> forward_s, std::vector<double> backward_s,
                                                       int element_bytes) {
  using namespace hetsched;
  cluster hardware;
  device host{.name = "host", .memory_bytes = 1024 * gib, .memory_bandwidth = 1e10};
  host.peak_flops[static_cast<std::size_t>(precision::fp32)] = 1e11;
  hardware.subclusters.push_back({.name = "local",
                                  .device = host,
                                  .nodes = 1,
                                  .devices_per_node = there.ranks,
                                  .intra_node = {.latency_s = 1e-5, .bandwidth = 1e9},
                                  .inter_node = {.latency_s = 0, .bandwidth = 1e9}});
  profile measured;
  const auto layers = static_cast<std::size_t>(gpt::layer_count(m));
  for (int l = 0; l < gpt::layer_count(m); ++l) {
    bytes_t bytes = element_bytes;
    for (const auto extent : gpt::shape_after(m, l, there.microbatch_size)) bytes *= static_cast<bytes_t>(extent);
    measured.layers.push_back({layer_name(m, l), bytes});
  }
  measured.entries.push_back({.subcluster = "local",
                              .forward_s = std::move(forward_s),
                              .backward_s = std::move(backward_s),
                              .weight_bytes = std::vector<bytes_t>(layers, 0),
                              .activation_bytes = std::vector<bytes_t>(layers, 0)});
  auto found = interop_dp(hardware, profile_cost_model(hardware, measured),
                          {.microbatches = there.microbatches,
                           .microbatch_size = there.microbatch_size,
                           .use_all_devices = true,
                           .arithmetic = precision::fp32});
  if (!found) return found.why_not();
  return plan_file{*std::move(found), {"local"}, {there.ranks}};
}

bool train::cut_between_blocks(const gpt::config& m, hetsched::plan& p) {
  constexpr int per_block = 3;  // attention, norm, mlp
  const int layers = gpt::layer_count(m), fine = per_block * m.layers + 2;
  bool moved = false;
  // All pipelines of a plan end with the same layer.
  if (p.pipelines.front().stages.back().layers.last != fine) return false;
  for (auto& line : p.pipelines) {
    const int stages = static_cast<int>(line.stages.size());
    if (stages > layers)
      throw hetsched::input_error("found " + std::to_string(stages) + " stages, but the model has " + std::to_string(layers) +
                                  " layers to train: embedding, " + std::to_string(m.layers) + " blocks, head");
    int first = 0;
    for (int s = 0; s < stages; ++s) {
      auto& range = line.stages[static_cast<std::size_t>(s)].layers;
      // The embedding is layer 0 of both; block b begins with layer 1 + 3 b.
      const int wanted = s + 1 == stages ? layers : 1 + (range.last - 1 + per_block / 2) / per_block;
      const int last = std::clamp(wanted, first + 1, layers - (stages - 1 - s));
      moved = moved || (s + 1 < stages && range.last != 1 + per_block * (last - 1));
      range = {first, last};
      first = last;
    }
    line.copy_sync.clear();
  }
  p.setting.granularity = "block";
  p.gradient_sync.clear();  // of layers that are no longer
  return moved;
}

train::planned_ranks train::find_ranks(const hetsched::plan_file& file, int count, bool processes,
                                       const hetsched::process_place& place) {
  planned_ranks found{.count = count};
  const int devices = std::accumulate(file.device_counts.begin(), file.device_counts.end(), 0);
  if (processes && (devices == place.ranks || count != place.ranks)) found.launched = device_numbers(file);
  if (found.launched.empty()) {
    found.there = count == place.ranks;
  } else {
    auto each = found.launched;
    std::sort(each.begin(), each.end());
    found.there = std::adjacent_find(each.begin(), each.end()) == each.end() && each.back() < place.ranks;
  }
  return found;
}

bool train::enter(hetsched::process_place& place, const planned_ranks& ranks) {
  if (ranks.launched.empty()) return true;
  const auto own = std::find(ranks.launched.begin(), ranks.launched.end(), place.rank);
  place.rank = static_cast<int>(own - ranks.launched.begin());
  place.ranks = ranks.count;
  return own != ranks.launched.end();
}
