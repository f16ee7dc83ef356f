// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <hetsched/core/random.hpp>

#include <gpt/tensor.hpp>

namespace gpt {

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

  tensor<Real> value, gradient;
};

/// A layer's own random numbers: whatever the other layers are and wherever they run, they are the same.
[[nodiscard]] inline hetsched::random_source layer_random(std::uint64_t seed, int layer) {
  return hetsched::random_source(hetsched::random_source(seed)() ^ hetsched::random_source(~static_cast<std::uint64_t>(layer))());
}

}  // namespace gpt
