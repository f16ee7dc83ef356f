// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched::spmd {

/// How the devices of a stage reach each other: as many on each node where nodes are alike, else each by itself over the slowest
/// link between any two.
/// Returns: none if no link joins two of them.
/// Throws: as validate of the cluster; input_error without devices, or for one that is named twice or that the cluster lacks.
/// Complexity: O(devices^2).
[[nodiscard]] std::optional<rank_group<>> slowest_group(const cluster& c, std::span<const device_id> devices);

/// Seconds of an operator on a device, by any operator_timer.
using operator_seconds = function_ref<double(const tile_device&, const operator_shape&)>;

/// The problem of a graph on some devices of a cluster: operators timed by themselves, by predict_operator unless there is a
/// timer, collectives by formula. Costs are lines through an even share and the whole. Devices of one subcluster's type are a
/// kind. Returns: none if no link joins two of the devices. Throws: as slowest_group, and as validate of the
/// problem: for a timer that tells no times, too.
/// Complexity: O(devices^2 + kinds * different operators).
[[nodiscard]] std::optional<spmd::problem> make_problem(const cluster& c, std::span<const device_id> devices, tensor_graph graph,
                                                        tensor_goal goal, operator_seconds timer = {});

/// The same for a function by its name, or a temporary.
template <class Timer>
requires(std::is_invocable_r_v<double, const Timer&, const tile_device&, const operator_shape&>)
    [[nodiscard]] std::optional<spmd::problem> make_problem(const cluster& c, std::span<const device_id> devices,
                                                            tensor_graph graph, tensor_goal goal, const Timer& timer) {
  const auto seconds = [&](const tile_device& device, const operator_shape& op) -> double { return timer(device, op); };
  return make_problem(c, devices, std::move(graph), std::move(goal), operator_seconds(seconds));
}

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/costs.ipp>
#endif
