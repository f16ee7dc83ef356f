// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategies.hpp>
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
