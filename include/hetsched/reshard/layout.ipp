// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/layout.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const layout& l) {
  std::vector<int> cuts(l.mesh.size(), 0);
  for (const int n : l.mesh)
    if (n < 1) throw input_error("a mesh axis of " + std::to_string(n) + " devices");
  for (std::size_t d = 0; d < l.dimensions.size(); ++d) {
    const auto& cut = l.dimensions[d];
    const auto here = "dimension " + std::to_string(d) + ": ";
    if (cut.extent < 0) throw input_error(here + "an extent of " + std::to_string(cut.extent));
    for (const int a : cut.axes) {
      if (a < 0 || a >= static_cast<int>(l.mesh.size())) throw input_error(here + "the mesh has no axis " + std::to_string(a));
      if (at(cuts, a)++ > 0) throw input_error(here + "axis " + std::to_string(a) + " cuts twice");
    }
    if (cut.points.empty()) continue;
    if (cut.points.size() != as_size(l.parts(d)) + 1)
      throw input_error(here + std::to_string(cut.points.size()) + " cut points for " + std::to_string(l.parts(d)) + " parts");
    if (cut.points.front() != 0 || cut.points.back() != cut.extent || !std::is_sorted(cut.points.begin(), cut.points.end()))
      throw input_error(here + "cut points must rise from 0 to " + std::to_string(cut.extent));
  }
}

HETSCHED_INLINE layout boundary_layout(const degrees& d, std::int64_t batch, std::int64_t sequence, std::int64_t hidden,
                                       bool sequence_parallel) {
  const std::vector<int> sequence_axes =
      sequence_parallel ? std::vector<int>{context_axis, tensor_axis} : std::vector<int>{context_axis};
  return {.mesh = {d.data, d.context, d.tensor},
          .dimensions = {{batch, {data_axis}, {}}, {sequence, sequence_axes, {}}, {hidden, {}, {}}}};
}

}  // namespace hetsched
