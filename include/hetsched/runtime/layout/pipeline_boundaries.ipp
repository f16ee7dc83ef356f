// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

HETSCHED_INLINE layout batch_layout(const tensor_shape& whole, const degrees& d) {
  layout l{.mesh = {d.data, d.context, d.tensor}, .dimensions = {}};
  for (const auto extent : whole) l.dimensions.push_back({.extent = static_cast<std::int64_t>(extent)});
  if (!l.dimensions.empty()) l.dimensions.front().axes = {data_axis};
  return l;
}

HETSCHED_INLINE pipeline_groups make_pipeline_groups(const pipeline_layout& line,
                                                     const std::function<boundary_shape(int layer)>& shape_after,
                                                     const layout_rule& layout_of) {
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

namespace hetsched::detail {

HETSCHED_INLINE void cut_by_samples(layout& l, const pipeline_layout& line, int group) {
  const auto& points = line.group(group).sample_points;
  if (points.empty()) return;
  for (auto& d : l.dimensions) {
    if (std::find(d.axes.begin(), d.axes.end(), static_cast<int>(data_axis)) == d.axes.end()) continue;
    const std::int64_t each = d.extent / line.microbatch_size;
    if (d.axes.size() != 1 || each * line.microbatch_size != d.extent || !d.points.empty())
      throw input_error("stage " + std::to_string(group) +
                        " has uneven shares of data, but its layout does not cut whole samples over the data axis alone");
    for (const auto point : points) d.points.push_back(point * each);
  }
}

}  // namespace hetsched::detail
