// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>

namespace hetsched {

/// How a dimension of a tensor is cut: into as many parts as the mesh axes named have positions together, counted with the last
/// of them fastest.
struct dimension_cut {
  std::int64_t extent = 0;
  std::vector<int> axes{};             ///< of the mesh; none: every device has the whole dimension
  std::vector<std::int64_t> points{};  ///< where parts begin, and the extent; empty: part p begins at p * extent / parts
  friend bool operator==(const dimension_cut&, const dimension_cut&) = default;
};

/// Which device of a mesh holds which slice of a tensor. Devices are numbered with the last axis of the mesh fastest. Devices
/// that differ only along axes that cut no dimension hold the same: they are replicas.
struct layout {
  std::vector<int> mesh{};                  ///< devices along each axis
  std::vector<dimension_cut> dimensions{};  ///< the slowest first

  /// Throws: input_error unless every axis has a device, and all together no more than an int counts.
  [[nodiscard]] int device_count() const;
  // Throws: input_error for a dimension, part, device or axis that there is not, as far as these read the layout; and for cuts
  // that validate(layout) refuses there.
  [[nodiscard]] int parts(std::size_t dimension) const;
  /// Part p of a dimension.
  [[nodiscard]] interval part(std::size_t dimension, int p) const;
  /// Which part of a dimension a device has.
  [[nodiscard]] int part_of(std::size_t dimension, int device) const;
  /// Where a device lies along an axis.
  [[nodiscard]] int position(int device, int axis) const;
  [[nodiscard]] slice whole() const {
    slice s;
    for (const auto& d : dimensions) s.push_back({0, d.extent});
    return s;
  }
  friend bool operator==(const layout&, const layout&) = default;
};

namespace detail::unchecked {

// The members of the same names, of a valid layout, for loops.
[[nodiscard]] inline int parts(const layout& l, std::size_t dimension) {
  int count = 1;
  for (const int a : l.dimensions[dimension].axes) count *= at(l.mesh, a);
  return count;
}
[[nodiscard]] inline interval part(const layout& l, std::size_t dimension, int p) {
  const auto& d = l.dimensions[dimension];
  if (!d.points.empty()) return {at(d.points, p), at(d.points, p + 1)};
  const std::int64_t n = unchecked::parts(l, dimension);
  return {p * d.extent / n, (p + 1) * d.extent / n};
}
[[nodiscard]] inline int position(const layout& l, int device, int axis) {
  for (std::size_t a = l.mesh.size(); --a > as_size(axis);) device /= l.mesh[a];
  return device % at(l.mesh, axis);
}
[[nodiscard]] inline int part_of(const layout& l, std::size_t dimension, int device) {
  int p = 0;
  for (const int a : l.dimensions[dimension].axes) p = p * at(l.mesh, a) + unchecked::position(l, device, a);
  return p;
}
[[nodiscard]] inline slice slice_of(const layout& l, int device) {
  slice s;
  for (std::size_t d = 0; d < l.dimensions.size(); ++d) s.push_back(unchecked::part(l, d, unchecked::part_of(l, d, device)));
  return s;
}

}  // namespace detail::unchecked

/// The slice that a device holds.
/// Throws: as validate(layout), and input_error for a device that the layout does not have.
/// Complexity: O(dimensions * axes + cut points).
[[nodiscard]] slice slice_of(const layout& l, int device);

/// Throws: input_error, naming the dimension, for axes that the mesh does not have or that are named twice, for cut points
/// that do not rise from 0 to the extent or are not one more than the parts, and for more devices than an int or more elements
/// than 64 bits count. Parts may be empty.
void validate(const layout& l);

/// Axes of the mesh of a stage.
enum stage_axis : int { data_axis = 0, context_axis = 1, tensor_axis = 2 };

/// What lies between stages: [batch, sequence, hidden], batch cut over data, sequence over context and, where the layers keep
/// their sequence cut between each other (sequence parallelism), over tensor too; else tensor ranks are replicas.
/// Throws: input_error unless it is a valid layout.
/// Source: HetAuto sec. 5.2.
[[nodiscard]] layout boundary_layout(const degrees& d, std::int64_t batch, std::int64_t sequence, std::int64_t hidden,
                                     bool sequence_parallel = true);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/layout.ipp>
#endif
