// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <gpt/tensor.hpp>

namespace gpt {

/// Rotary positions (Su et al. 2021): pair i of a head's numbers (i and i + head_size / 2) turns by position / 10000^(2 i /
/// head_size), so a query and a key meet at an angle that depends on their distance only.
template <class Real>
class rotary {
 public:
  /// Precondition: head_size is even.
  rotary(std::size_t sequence, std::size_t head_size) : cosine_(sequence, head_size / 2), sine_(sequence, head_size / 2) {
    for (std::size_t p = 0; p < sequence; ++p)
      for (std::size_t i = 0; i < head_size / 2; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
        cosine_(p, i) = static_cast<Real>(std::cos(angle));
        sine_(p, i) = static_cast<Real>(std::sin(angle));
      }
  }

  /// Turns the first `heads` heads of every row; direction -1 turns back, which is the gradient's way. `first`: the position of
  /// the first row of a sample; `length`: rows of one, if it is not the whole sequence.
  void turn(tensor<Real>& rows, std::size_t heads, Real direction, std::size_t first = 0, std::size_t length = 0) const {
    const std::size_t half = cosine_.columns();
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      const std::size_t position = first + r % (length > 0 ? length : cosine_.rows());
      const Real* const cosine = cosine_.data() + position * half;
      const Real* const sine = sine_.data() + position * half;
      Real* x = rows.data() + r * rows.columns();
      for (std::size_t h = 0; h < heads; ++h, x += 2 * half)
        for (std::size_t i = 0; i < half; ++i) {
          const Real a = x[i], b = x[i + half], s = direction * sine[i];
          x[i] = a * cosine[i] - b * s;
          x[i + half] = a * s + b * cosine[i];
        }
    }
  }

 private:
  tensor<Real> cosine_, sine_;  ///< sequence x head_size / 2
};

}  // namespace gpt
