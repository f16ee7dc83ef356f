// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/cut_points.hpp>
#include <hetsched/reshard/layout.hpp>

namespace hetsched::detail {

/// The devices of a mesh; throws if they are no mesh.
inline int mesh_devices(const std::vector<int>& mesh) {
  std::int64_t count = 1;
  for (const int n : mesh) {
    if (n < 1) throw input_error("a mesh axis of " + std::to_string(n) + " devices");
    expect_count(count *= n, "the number of devices of a mesh", 1, INT_MAX);
  }
  return static_cast<int>(count);
}

/// Requires a dimension that the layout has, with axes that its mesh has.
inline void expect_dimension(const layout& l, std::size_t dimension) {
  if (dimension >= l.dimensions.size())
    throw input_error("a layout of " + std::to_string(l.dimensions.size()) + " dimensions has no dimension " +
                      std::to_string(dimension));
  std::int64_t parts = 1;
  for (const int a : l.dimensions[dimension].axes) {
    if (a < 0 || a >= static_cast<int>(l.mesh.size()))
      throw input_error("dimension " + std::to_string(dimension) + ": the mesh has no axis " + std::to_string(a));
    expect_count(parts *= std::max(at(l.mesh, a), 0), "the number of parts of a dimension", 1, INT_MAX);
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE int layout::device_count() const { return detail::mesh_devices(mesh); }

HETSCHED_INLINE int layout::parts(std::size_t dimension) const {
  detail::expect_dimension(*this, dimension);
  return detail::unchecked::parts(*this, dimension);
}

HETSCHED_INLINE interval layout::part(std::size_t dimension, int p) const {
  const int count = parts(dimension);
  const auto& d = dimensions[dimension];
  if (!d.points.empty() && d.points.size() != as_size(count) + 1)
    detail::expect_size(d.points.size(), as_size(count) + 1, "the cut points of dimension " + std::to_string(dimension),
                        "one more than its parts");
  detail::expect_count(d.extent, "the extent of dimension " + std::to_string(dimension), 0, INT64_MAX / count);
  detail::expect_count(p, "the part of dimension " + std::to_string(dimension), 0, count - 1);
  return detail::unchecked::part(*this, dimension, p);
}

HETSCHED_INLINE int layout::part_of(std::size_t dimension, int device) const {
  detail::expect_dimension(*this, dimension);
  detail::expect_count(device, "the device of a layout", 0, device_count() - 1);
  return detail::unchecked::part_of(*this, dimension, device);
}

HETSCHED_INLINE int layout::position(int device, int axis) const {
  detail::expect_count(device, "the device of a layout", 0, device_count() - 1);
  detail::expect_count(axis, "the axis of a mesh", 0, static_cast<std::int64_t>(mesh.size()) - 1);
  return detail::unchecked::position(*this, device, axis);
}

HETSCHED_INLINE slice slice_of(const layout& l, int device) {
  validate(l);
  detail::expect_count(device, "the device of a layout", 0, l.device_count() - 1);
  return detail::unchecked::slice_of(l, device);
}

HETSCHED_INLINE void validate(const layout& l) {
  std::vector<int> cuts(l.mesh.size(), 0);
  const int devices = detail::mesh_devices(l.mesh);
  std::int64_t most_elements = INT64_MAX;
  for (std::size_t d = 0; d < l.dimensions.size(); ++d) {
    const auto& cut = l.dimensions[d];
    const auto refuse = [&](const std::string& why) { throw input_error("dimension " + std::to_string(d) + ": " + why); };
    if (cut.extent < 0) refuse("an extent of " + std::to_string(cut.extent));
    if (cut.extent > most_elements || cut.extent > INT64_MAX / devices)  // a cut into as many parts is told by their product
      refuse("an extent of " + std::to_string(cut.extent) + " makes more elements than 64 bits count");
    if (cut.extent > 0) most_elements /= cut.extent;
    for (const int a : cut.axes) {
      if (a < 0 || as_size(a) >= l.mesh.size()) refuse("the mesh has no axis " + std::to_string(a));
      if (at(cuts, a)++ > 0) refuse("axis " + std::to_string(a) + " cuts twice");
    }
    if (cut.points.empty()) continue;
    const int parts = detail::unchecked::parts(l, d);
    if (cut.points.size() != as_size(parts) + 1)
      refuse(std::to_string(cut.points.size()) + " cut points for " + std::to_string(parts) + " parts");
    if (cut.points.front() != 0 || cut.points.back() != cut.extent || !std::is_sorted(cut.points.begin(), cut.points.end()))
      refuse("cut points must rise from 0 to " + std::to_string(cut.extent));
  }
}

HETSCHED_INLINE layout boundary_layout(const degrees& d, std::int64_t batch, std::int64_t sequence, std::int64_t hidden,
                                       bool sequence_parallel) {
  const std::vector<int> sequence_axes =
      sequence_parallel ? std::vector<int>{context_axis, tensor_axis} : std::vector<int>{context_axis};
  layout l{.mesh = {d.data, d.context, d.tensor},
           .dimensions = {{batch, {data_axis}, {}}, {sequence, sequence_axes, {}}, {hidden, {}, {}}}};
  validate(l);
  return l;
}

}  // namespace hetsched
