// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
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

  [[nodiscard]] int device_count() const {
    int count = 1;
    for (const int n : mesh) count *= n;
    return count;
  }
  [[nodiscard]] int parts(std::size_t dimension) const {
    int count = 1;
    for (const int a : dimensions[dimension].axes) count *= at(mesh, a);
    return count;
  }
  /// Part p of a dimension.
  [[nodiscard]] interval part(std::size_t dimension, int p) const {
    const auto& d = dimensions[dimension];
    if (!d.points.empty()) return {at(d.points, p), at(d.points, p + 1)};
    const std::int64_t n = parts(dimension);
    return {p * d.extent / n, (p + 1) * d.extent / n};
  }
  /// Which part of a dimension a device has.
  [[nodiscard]] int part_of(std::size_t dimension, int device) const {
    int p = 0;
    for (const int a : dimensions[dimension].axes) p = p * at(mesh, a) + position(device, a);
    return p;
  }
  /// Where a device lies along an axis.
  [[nodiscard]] int position(int device, int axis) const {
    for (std::size_t a = mesh.size(); --a > as_size(axis);) device /= mesh[a];
    return device % at(mesh, axis);
  }
  [[nodiscard]] slice whole() const {
    slice s;
    for (const auto& d : dimensions) s.push_back({0, d.extent});
    return s;
  }
  friend bool operator==(const layout&, const layout&) = default;
};

/// The slice that a device holds.
/// Requires: a valid layout, and one of its devices. O(dimensions * axes).
[[nodiscard]] inline slice slice_of(const layout& l, int device) {
  slice s;
  for (std::size_t d = 0; d < l.dimensions.size(); ++d) s.push_back(l.part(d, l.part_of(d, device)));
  return s;
}

/// Throws: input_error, naming the dimension, for axes that the mesh does not have or that are named twice, and for cut points
/// that do not rise from 0 to the extent or are not one more than the parts. Parts may be empty.
void validate(const layout& l);

/// Axes of the mesh of a stage.
enum stage_axis : int { data_axis = 0, context_axis = 1, tensor_axis = 2 };

/// What lies between stages: [batch, sequence, hidden], batch cut over data, sequence over context and, where the layers keep
/// their sequence cut between each other (sequence parallelism), over tensor too; else tensor ranks are replicas.
/// Source: HetAuto sec. 5.2.
[[nodiscard]] layout boundary_layout(const degrees& d, std::int64_t batch, std::int64_t sequence, std::int64_t hidden,
                                     bool sequence_parallel = true);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/layout.ipp>
#endif
