// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <utility>

#include <hetsched/cost/profile.hpp>
#include <hetsched/planners/interop_dp.hpp>

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
