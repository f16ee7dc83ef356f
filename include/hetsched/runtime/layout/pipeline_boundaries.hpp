// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// How a stage of these degrees lays out what lies between it and a neighbour, a tensor of this whole shape. Of more dimensions
/// than the shape where the shape's first is several in one, as in [batch * sequence, hidden].
using layout_rule = std::function<layout(const tensor_shape& whole, const degrees&)>;

/// The first dimension over data, the others whole: context and tensor ranks are replicas.
[[nodiscard]] layout batch_layout(const tensor_shape& whole, const degrees& d);

namespace detail {

/// Cuts the dimension that lies over data as the group shares its samples, if it does so unevenly.
/// Throws: input_error where data does not cut a dimension by itself, or not one of whole samples.
void cut_by_samples(layout& l, const pipeline_layout& line, int group);

}  // namespace detail

/// What an executor has to know of a pipeline's groups. `shape_after`: (layer) -> whole tensor_shape of its output for a
/// microbatch, or boundary_shape where the output's gradient has another. `layout_of`: may be empty, for batch_layout; even, as
/// uneven shares of data are cut here. Throws: input_error for layouts that are not of the shape; as validate(layout) and
/// plan_transfer.
template <class ShapeAfter>
[[nodiscard]] pipeline_groups make_pipeline_groups(const pipeline_layout& line, ShapeAfter&& shape_after,
                                                   const layout_rule& layout_of = {}) {
  pipeline_groups found;
  int outer = 0;
  for (int g = 0; g < line.order.ranks; ++g) {
    found.devices.push_back(line.degrees_of(g).device_count());
    outer = std::gcd(outer, line.degrees_of(g).data);
  }
  for (int c = 0; c < line.order.directions; ++c)
    for (int s = 0; s + 1 < line.order.stages; ++s) {
      const auto& [layers, strategy] = at(line.stages, s);
      const int layer = layers.last - 1;
      const boundary_shape shapes = shape_after(layer);
      const auto made = [&](const tensor_shape& whole, int stage) {
        const auto d = line.degrees_of(line.order.rank(c, stage));
        auto l = layout_of ? layout_of(whole, d) : batch_layout(whole, d);
        detail::cut_by_samples(l, line, line.order.rank(c, stage));
        validate(l);
        return l;
      };
      auto from = made(shapes.output, s), to = made(shapes.output, s + 1);
      const int merged = static_cast<int>(from.dimensions.size()) - static_cast<int>(shapes.output.size()) + 1;
      const auto require = [&](const layout& l, const tensor_shape& whole) {
        if (merged < 1 || detail::shape_of_slice(l.whole(), merged) != whole)
          throw input_error("the layout behind layer " + std::to_string(layer) + " is of a tensor of another shape");
      };
      require(from, shapes.output);
      const reshard_options how{.outer = std::max(outer, 1)};
      auto& b = found.boundaries.emplace_back(make_boundary_transfer(std::move(from), std::move(to), strategy, how, merged));
      if (shapes.gradient.empty() || shapes.gradient == shapes.output) continue;
      b.own_gradient_from = made(shapes.gradient, s), b.own_gradient_to = made(shapes.gradient, s + 1);
      require(b.own_gradient_from, shapes.gradient);
      b.gradient = plan_transfer(b.own_gradient_to, b.own_gradient_from, strategy, how);
    }
  return found;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/pipeline_boundaries.ipp>
#endif
