// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <hetsched/runtime/group/axis_group.hpp>

#include <gpt/parameter.hpp>
#include <gpt/tensor.hpp>

namespace gpt {

/// Between the halves of blocks a rank of a tensor axis holds its slice of every sample's sequence, inside them all rows and its
/// part of the columns (Korthikanti et al. 2022). Slices are equal, columns need not be. Rows are in the order of samples, then
/// of positions. With one rank nothing is copied.
template <class Real>
class sequence_slices {
 public:
  /// Columns in equal parts.
  explicit sequence_slices(hetsched::device_axis<Real> axis = {}) : axis_(std::move(axis)) {
    columns_ = {.first = part(), .last = part() + 1, .parts = parts()};
  }
  /// Those that are said.
  sequence_slices(hetsched::device_axis<Real> axis, const part_of& columns) : axis_(std::move(axis)), columns_(columns) {}

  [[nodiscard]] std::size_t parts() const { return static_cast<std::size_t>(axis_.size()); }
  [[nodiscard]] std::size_t part() const { return static_cast<std::size_t>(axis_.rank()); }
  /// This rank's part of columns, or of rows that are multiplied with them.
  [[nodiscard]] part_of columns(int dimension = 1) const {
    auto own = columns_;
    own.dimension = dimension;
    return own;
  }
  /// How many of so many they are.
  [[nodiscard]] int own(int whole) const { return static_cast<int>(columns_.extent(static_cast<std::size_t>(whole))); }

  /// All ranks' slices in one: `all`, or the slice itself if it is all.
  const tensor<Real>& gather(const tensor<Real>& slice, std::size_t sequence, tensor<Real>& all) {
    if (parts() == 1) return slice;
    all.resize(slice.rows() * parts(), slice.columns());
    tensor<Real>& by_rank = all.rows() == sequence ? all : by_rank_;
    by_rank.resize(all.rows(), all.columns());
    axis_.all_gather({slice.data(), slice.size()}, {by_rank.data(), by_rank.size()});
    if (&by_rank != &all)
      for_each_slice(all, sequence, [&](auto rows, auto slice_rows) {
        map(all).middleRows(rows, length_) = map(by_rank).middleRows(slice_rows, length_);
      });
    return all;
  }
  /// This rank's slice of the sum over all ranks: `slice`, or `all` itself if that is it.
  tensor<Real>& sum(tensor<Real>& all, std::size_t sequence, tensor<Real>& slice) {
    if (parts() == 1) return all;
    slice.resize(all.rows() / parts(), all.columns());
    tensor<Real>& by_rank = all.rows() == sequence ? all : by_rank_;
    by_rank.resize(all.rows(), all.columns());
    if (&by_rank != &all)
      for_each_slice(all, sequence, [&](auto rows, auto slice_rows) {
        map(by_rank).middleRows(slice_rows, length_) = map(all).middleRows(rows, length_);
      });
    axis_.reduce_scatter({by_rank.data(), by_rank.size()}, {slice.data(), slice.size()});
    return slice;
  }

 private:
  /// Calls body(first row among all, first row in the order of ranks) for the slices of all samples.
  template <class Body>
  void for_each_slice(const tensor<Real>& all, std::size_t sequence, Body body) {
    length_ = static_cast<Eigen::Index>(sequence / parts());
    const auto samples = static_cast<Eigen::Index>(all.rows() / sequence), ranks = static_cast<Eigen::Index>(parts());
    for (Eigen::Index s = 0; s < samples; ++s)
      for (Eigen::Index r = 0; r < ranks; ++r) body((s * ranks + r) * length_, (r * samples + s) * length_);
  }

  hetsched::device_axis<Real> axis_;
  part_of columns_;
  tensor<Real> by_rank_;  ///< of no use between calls
  Eigen::Index length_ = 0;
};

}  // namespace gpt
