// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/optimizer_test.cpp.

#include <array>
#include <cstddef>
#include <type_traits>

#include <hetsched/runtime/layer/tensor.hpp>

namespace hetsched::detail {

/// The sum of the squares of all elements, in doubles; not finite if an element is not. Computed on the host, unless
/// tensor_traits have sum_of_squares(const T&) -> double.
/// Determinism: always added up in the same order.
template <pipeline_tensor T>
[[nodiscard]] double sum_of_squares(const T& t) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::sum_of_squares(t); }) {
    return traits::sum_of_squares(t);
  } else {
    static_assert(traits::space != memory_space::device && std::is_arithmetic_v<typename traits::element>,
                  "tensor_traits<T>::sum_of_squares(const T&) is missing for tensors in device memory or of elements of a user's "
                  "type");
    // Several sums side by side, as one would wait for every addition.
    constexpr std::size_t width = 8;
    std::array<double, width> sums{};
    const auto* const data = traits::data(t);
    const std::size_t n = elements(t);
    std::size_t i = 0;
    for (; i + width <= n; i += width)
      for (std::size_t k = 0; k < width; ++k) {
        const auto x = static_cast<double>(data[i + k]);
        sums[k] += x * x;
      }
    for (std::size_t k = 0; i < n; ++i, ++k) {
      const auto x = static_cast<double>(data[i]);
      sums[k] += x * x;
    }
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
  }
}

}  // namespace hetsched::detail
