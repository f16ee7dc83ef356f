// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/partition.hpp>

namespace hetsched {

namespace detail {

// The arrays as a cost model.
struct chain_arrays {
  const partition_problem& given;

  [[nodiscard]] int layer_count() const { return given.seconds.columns(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.device_count() > 1) return {};
    return {{.mesh = mesh}};
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    const auto bytes = [&](const number_table& by_layer) {
      return by_layer.empty() ? bytes_t{0} : static_cast<bytes_t>(at(by_layer.values(), index));
    };
    const double seconds = at(given.seconds[where.mesh.subcluster], index), forward = given.forward_share * seconds;
    return {.forward_s = forward,
            .backward_s = seconds - forward,
            .weight_bytes = bytes(given.weight_bytes),
            .activation_bytes = bytes(given.activation_bytes)};
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    stage_cost sum;
    for (int l = layers.first; l < layers.last; ++l) sum += layer(l, where);
    return sum;
  }
  [[nodiscard]] double transfer(int boundary, const placement& from, const placement& to) const {
    const auto& all = given.transfer_s;
    if (all.empty()) return 0;
    const auto kinds = static_cast<int>(given.devices.size());
    if (all.rows() == kinds * kinds && all.columns() + 1 == layer_count())
      return at(all[from.mesh.subcluster * kinds + to.mesh.subcluster], boundary);
    return at(all.values(), boundary);
  }
};

HETSCHED_INLINE void validate(const partition_problem& asked) {
  const auto size = [](const number_table& t) { return t.values().size(); };
  const auto kinds = asked.devices.size();
  const auto layers = as_size(asked.seconds.columns());
  if (kinds == 0 || layers == 0) throw input_error("partition: expected at least one kind of device and one layer");
  expect_size(as_size(asked.seconds.rows()), kinds, "partition: seconds", "a row per kind of device");
  constexpr std::int64_t most = 1 << 20;
  for (std::size_t k = 0; k < kinds; ++k)
    expect_count(asked.devices[k], "partition: devices[" + std::to_string(k) + "]", 1, most);
  expect_count(asked.microbatches, "partition: microbatches", 1, most_warmup);
  expect_naturals(asked.seconds.values(), "partition: seconds");
  if (!asked.transfer_s.empty() && size(asked.transfer_s) != kinds * kinds * (layers - 1))
    expect_size(size(asked.transfer_s), layers - 1, "partition: transfer_s",
                "one per boundary between layers (or as many for every pair of kinds)");
  expect_naturals(asked.transfer_s.values(), "partition: transfer_s");
  expect_natural(asked.forward_share, "partition: forward_share");
  if (asked.forward_share > 1)
    throw input_error("partition: forward_share is " + number_text(asked.forward_share) + ", expected at most 1");
  for (const auto& [values, name] : {std::pair{&asked.weight_bytes, "weight_bytes"},
                                     {&asked.activation_bytes, "activation_bytes"},
                                     {&asked.memory_bytes, "memory_bytes"}}) {
    const bool by_kind = values == &asked.memory_bytes;
    const auto what = std::string("partition: ") + name;
    if (!values->empty())
      expect_size(size(*values), by_kind ? kinds : layers, what, by_kind ? "one per kind of device" : "one per layer");
    expect_naturals(values->values(), what);
    constexpr double most_bytes = 1e15;
    for (const double bytes : values->values())
      if (bytes > most_bytes || (by_kind && bytes < 1))
        throw input_error(what + " has " + number_text(bytes) + ", expected " + (by_kind ? "1" : "0") + " to 1e15");
  }
  expect_natural(asked.epsilon, "partition: epsilon");
}

}  // namespace detail

HETSCHED_INLINE outcome<chain_partition> partition(const partition_problem& asked) {
  detail::validate(asked);
  cluster hardware;
  for (int k = 0; k < asked.seconds.rows(); ++k) {
    device own{.name = "kind " + std::to_string(k),
               .memory_bytes =
                   asked.memory_bytes.empty() ? bytes_t{1} << 60 : static_cast<bytes_t>(asked.memory_bytes.values()[as_size(k)]),
               .memory_bandwidth = 1};
    own.peak_flops.fill(1);
    hardware.subclusters.push_back(
        {.name = own.name, .device = own, .nodes = 1, .devices_per_node = at(asked.devices, k), .intra_node = {0, 1}});
    for (int before = 0; before < k; ++before) hardware.links.push_back({.a = before, .b = k, .link = {0, 1}});
  }
  const detail::chain_arrays costs{asked};
  const auto found =
      interop_dp(hardware, costs, {.microbatches = asked.microbatches}, {.warmup = asked.warmup, .epsilon = asked.epsilon});
  if (!found) return found.why_not();
  const auto& stages = found->pipelines.front().stages;
  chain_partition result{.cuts = {0}, .warmups = warmups(found->pipelines.front()), .iteration_s = found->predicted.iteration_s};
  for (const auto& s : stages) {
    result.cuts.push_back(s.layers.last);
    result.kinds.push_back(s.where().mesh.subcluster);
  }
  if (found->evidence) {
    result.bound_s = std::min(found->evidence->objective_bound, result.iteration_s);
    result.complete = found->evidence->complete;
  }
  return result;
}

}  // namespace hetsched
