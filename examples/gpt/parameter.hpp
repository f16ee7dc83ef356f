// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>

#include <gpt/tensor.hpp>

namespace gpt {

using cut_list = std::vector<hetsched::parameter_cut>;

/// Of a parameter that all ranks of a tensor axis have, and use for their slices of the sequence.
[[nodiscard]] inline hetsched::parameter_cut on_slices() { return {.dimension = -1, .partial_over_tensor = true, .pieces = {}}; }

/// The lists one after the other.
[[nodiscard]] inline cut_list join(cut_list first, const cut_list& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Which part of a parameter this rank has: of the equal ones that its matrices are cut into along a dimension, those from
/// `first` to before `last`.
struct part_of {
  int dimension = 1;
  std::size_t first = 0, last = 1, parts = 1;

  /// Of an extent that the number of parts divides.
  [[nodiscard]] std::size_t extent(std::size_t whole) const { return whole / parts * (last - first); }
  [[nodiscard]] bool has(std::size_t index, std::size_t whole) const {
    const std::size_t part = index / (whole / parts);
    return part >= first && part < last;
  }
};

/// A parameter and its gradient, zero at first.
template <class Real>
struct parameter {
  parameter() = default;
  parameter(std::size_t rows, std::size_t columns) : value(rows, columns), gradient(rows, columns) {}
  /// Uniform with mean 0 and this standard deviation, which needs no function that differs between machines. Numbers are drawn
  /// as doubles: a model of floats begins as the double one, rounded.
  parameter(std::size_t rows, std::size_t columns, double deviation, hetsched::random_source& random) : parameter(rows, columns) {
    const double end = std::sqrt(3.0) * deviation;
    for (std::size_t i = 0; i < value.size(); ++i) value.data()[i] = static_cast<Real>(random.uniform(-end, end));
  }
  /// A part of such a parameter, with the numbers that it has in the whole. `pieces`: the widths of the matrices that lie side by
  /// side in it. `own_rows`: of a part of columns, a part of the rows, too. Precondition: they, or the rows, are divisible by the
  /// number of parts.
  parameter(std::size_t rows, const std::vector<std::size_t>& pieces, double deviation, hetsched::random_source& random,
            const part_of& own, const part_of& own_rows = {.dimension = 0}) {
    const part_of& along_rows = own.dimension == 0 ? own : own_rows;
    const part_of along_columns = own.dimension == 0 ? part_of{} : own;
    std::size_t columns = 0;
    for (const std::size_t width : pieces) columns += along_columns.extent(width);
    *this = parameter(along_rows.extent(rows), columns);
    const double end = std::sqrt(3.0) * deviation;
    std::size_t next = 0;
    for (std::size_t i = 0; i < rows; ++i)
      for (const std::size_t width : pieces)
        for (std::size_t j = 0; j < width; ++j) {
          const auto number = static_cast<Real>(random.uniform(-end, end));
          if (along_columns.has(j, width) && along_rows.has(i, rows)) value.data()[next++] = number;
        }
  }

  tensor<Real> value, gradient;
};

/// A layer's own random numbers: whatever the other layers are and wherever they run, they are the same.
[[nodiscard]] inline hetsched::random_source layer_random(std::uint64_t seed, int layer) {
  return hetsched::random_source(hetsched::random_source(seed)() ^ hetsched::random_source(~static_cast<std::uint64_t>(layer))());
}

}  // namespace gpt
