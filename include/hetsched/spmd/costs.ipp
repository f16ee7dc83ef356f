// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/network/link_efficiency.hpp>
#include <hetsched/spmd/costs.hpp>

namespace hetsched::spmd {

HETSCHED_INLINE std::optional<rank_group<>> slowest_group(const cluster& c, std::span<const device_id> devices) {
  validate(c);
  if (devices.empty()) throw input_error("a stage needs devices");
  for (const auto& d : devices) {
    hetsched::detail::expect_count(d.subcluster, "subcluster of a device", 0, static_cast<int>(c.subclusters.size()) - 1);
    const auto& s = at(c.subclusters, d.subcluster);
    hetsched::detail::expect_count(d.node, "node of a device", 0, s.nodes - 1);
    hetsched::detail::expect_count(d.slot, "slot of a device", 0, s.devices_per_node - 1);
  }
  std::map<std::pair<int, int>, int> on_node;
  for (const auto& d : devices) ++on_node[{d.subcluster, d.node}];
  const auto slower = [](std::optional<link>& worst, const link& one) { worst = worst ? slower_of(*worst, one) : one; };
  std::optional<link> inside, across;
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      if (devices[i] == devices[j]) throw input_error("a stage has a device twice");
      const auto there = c.between(devices[i], devices[j]), back = c.between(devices[j], devices[i]);
      if (!there || !back) return std::nullopt;
      const bool together = devices[i].subcluster == devices[j].subcluster && devices[i].node == devices[j].node;
      slower(together ? inside : across, slower_of(*there, *back));
    }
  const int per_node = on_node.begin()->second, ranks = static_cast<int>(devices.size());
  const bool even = std::all_of(on_node.begin(), on_node.end(), [&](const auto& node) { return node.second == per_node; });
  if (!even) slower(across, inside.value_or(*across));
  const link none{0, infinity};  // which no rank uses
  rank_group<> group{.nodes = even ? static_cast<int>(on_node.size()) : ranks, .per_node = even ? per_node : 1};
  group.inside = even ? inside.value_or(none) : *across;
  group.across = across.value_or(none);
  const auto& s = at(c.subclusters, devices.front().subcluster);
  const bool one_subcluster =
      std::all_of(devices.begin(), devices.end(), [&](const auto& d) { return d.subcluster == devices.front().subcluster; });
  if (one_subcluster) group.rails = s.ports(group.per_node);
  return group;
}

namespace detail {

// The kernel for one of n equal parts.
[[nodiscard]] inline operator_shape one_part(operator_shape op, int n) {
  auto& size = op.batch >= n ? op.batch : op.m;
  const auto before = static_cast<double>(size);
  size = ceil_div(size, n);
  op.traffic_bytes *= static_cast<double>(size) / before;
  return op;
}

// The line through what an equal part costs and what all of it costs. The latter is no less; both are sub-linear, so the fixed
// part is not negative but for rounding.
[[nodiscard]] inline share_cost line_through(double part, double all, int n) {
  if (n == 1) return {0, all};
  const double slope = std::max(0.0, all - part) * n / (n - 1);
  const double fixed = std::max(0.0, all - slope);
  return {fixed, std::max(all, part) - fixed};
}

[[nodiscard]] inline collective_costs collective_prices(const rank_group<>& group, double bytes) {
  const int n = group.ranks();
  if (n == 1) return {};
  const auto by_largest = [&](hetsched::collective kind) {
    return line_through(library_collective_s(kind, group, bytes), library_collective_s(kind, group, bytes * n), n);
  };
  return {.all_reduce = {library_collective_s(hetsched::collective::all_reduce, group, bytes), 0},
          .reduce_scatter = by_largest(hetsched::collective::reduce_scatter),
          .padded_gather = by_largest(hetsched::collective::all_gather),
          .broadcast_gather = {n * library_collective_s(hetsched::collective::broadcast, group, bytes / n), 0},
          .all_to_all = line_through(library_collective_s(hetsched::collective::all_to_all, group, bytes / n),
                                     library_collective_s(hetsched::collective::all_to_all, group, bytes), n)};
}

}  // namespace detail

HETSCHED_INLINE std::optional<spmd::problem> make_problem(const cluster& c, std::span<const device_id> devices,
                                                          tensor_graph graph, tensor_goal goal, operator_seconds timer) {
  const auto group = slowest_group(c, devices);
  validate(graph);
  if (!group) return std::nullopt;
  const auto by_datasheet = [](const tile_device& device, const operator_shape& op) {
    return predict_operator(device, op).seconds;
  };
  if (!timer) timer = operator_seconds(by_datasheet);
  const int n = group->ranks();
  spmd::problem problem{.graph = std::move(graph), .goal = std::move(goal)};
  std::vector<tile_device> hardware;
  for (const auto& d : devices) {
    const auto& device = at(c.subclusters, d.subcluster).device;
    const auto known =
        std::find_if(problem.kinds.begin(), problem.kinds.end(), [&](const auto& k) { return k.name == device.name; });
    if (known != problem.kinds.end()) {
      ++known->count;
      continue;
    }
    problem.kinds.push_back({device.name, 1});
    hardware.push_back(make_tile_device(device));
  }
  std::map<std::vector<double>, std::vector<share_cost>> timed;
  for (int i = 0; i < problem.graph.size(); ++i) {
    const auto& kernel = problem.graph.at(i).kernel;
    if (!kernel) {
      problem.compute.insert(problem.compute.end(), hardware.size(), share_cost{});
    } else {
      const auto& op = *kernel;
      auto& lines = timed[{static_cast<double>(op.kind), static_cast<double>(op.batch), static_cast<double>(op.m),
                           static_cast<double>(op.n), static_cast<double>(op.k), op.traffic_bytes}];
      if (lines.empty())
        for (const auto& h : hardware) lines.push_back(detail::line_through(timer(h, detail::one_part(op, n)), timer(h, op), n));
      problem.compute.insert(problem.compute.end(), lines.begin(), lines.end());
    }
    problem.collect.push_back(detail::collective_prices(*group, tensor_bytes(problem.graph, i)));
  }
  validate(problem);
  return problem;
}

}  // namespace hetsched::spmd
