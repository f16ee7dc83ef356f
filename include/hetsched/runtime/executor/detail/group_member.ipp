// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/group_member.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

HETSCHED_INLINE group_member find_group(const schedule& order, const pipeline_groups& groups, int rank, int ranks,
                                        int first_rank) {
  const auto boundaries = as_size(order.directions) * as_size(std::max(order.stages, 1) - 1);
  if (groups.devices.size() != as_size(std::max(order.ranks, 0)))
    throw input_error("groups of devices for " + std::to_string(groups.devices.size()) + " ranks of a schedule of " +
                      std::to_string(order.ranks));
  if (groups.boundaries.size() != boundaries)
    throw input_error("boundaries: found " + std::to_string(groups.boundaries.size()) + ", expected " +
                      std::to_string(boundaries) + ": one per boundary (stages - 1) and direction");
  group_member me{.group = -1, .index = 0, .first = {}};
  int next = first_rank;
  for (int g = 0; g < order.ranks; ++g) {
    const int count = at(groups.devices, g);
    if (count < 1) throw input_error("a rank of the schedule has " + std::to_string(count) + " devices");
    if (rank >= next && rank < next + count) me = {.group = g, .index = rank - next, .first = std::move(me.first)};
    me.first.push_back(next);
    next += count;
  }
  if (first_rank < 0 || next > ranks)
    throw input_error("ranks " + std::to_string(first_rank) + " to " + std::to_string(next - 1) + " of a communicator of " +
                      std::to_string(ranks));
  if (me.group < 0)
    throw input_error("rank " + std::to_string(rank) + " of the communicator is none of the pipeline's " +
                      std::to_string(next - first_rank) + ", the first of which is " + std::to_string(first_rank));
  return me;
}

HETSCHED_INLINE stage_shapes shapes_of_stages(const schedule& order, const pipeline_groups& groups, const group_member& me,
                                              std::vector<tensor_shape>& made) {
  const auto number_of = [&](tensor_shape shape) {
    const auto found = std::find(made.begin(), made.end(), shape) - made.begin();
    if (as_size(found) == made.size()) made.push_back(std::move(shape));
    return static_cast<int>(found);
  };
  const auto all = as_size(order.directions) * as_size(order.stages);
  stage_shapes shapes{std::vector<int>(all, -1), std::vector<int>(all, -1)};
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      const auto& b = at(groups.boundaries, c * (order.stages - 1) + s);
      const int from = order.rank(c, s), to = order.rank(c, s + 1);
      // Of all boundaries on every rank, so that all are told at once.
      if (b.from.device_count() != at(groups.devices, from) || b.to.device_count() != at(groups.devices, to) ||
          b.gradient_from().device_count() != b.from.device_count() || b.gradient_to().device_count() != b.to.device_count())
        throw input_error("the layouts behind stage " + std::to_string(s) + " are for " + std::to_string(b.from.device_count()) +
                          " and " + std::to_string(b.to.device_count()) + " devices, but its groups have " +
                          std::to_string(at(groups.devices, from)) + " and " + std::to_string(at(groups.devices, to)));
      if (from != me.group && to != me.group) continue;
      if (from != to) {
        check_transfer(b.activation, b.from, b.to);
        check_transfer(b.gradient, b.gradient_to(), b.gradient_from());
      } else if (b.from != b.to || b.gradient_from() != b.gradient_to()) {
        throw input_error("stages " + std::to_string(s) + " and " + std::to_string(s + 1) +
                          " are on the same devices, but lay out the tensors between them in two ways");
      }
      if (from == me.group)
        at(shapes.gradient, c * order.stages + s) = number_of(shape_of_slice(slice_of(b.gradient_from(), me.index), b.merged));
      if (to == me.group)
        at(shapes.input, c * order.stages + s + 1) = number_of(shape_of_slice(slice_of(b.to, me.index), b.merged));
    }
  return shapes;
}

}  // namespace hetsched::detail
