// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/layer/tensor.hpp>

namespace hetsched::detail {

/// Elements of a tensor (side a), and where they are in a packed one (side b).
template <class Tensor>
struct tensor_runs {
  Tensor* tensor = nullptr;
  strided_runs at;
};

/// Calls each(tensor's element, packed element, count) for every row.
template <class Tensor, class Packed, class Each>
void for_each_row(const tensor_runs<Tensor>& r, Packed& packed, Each&& each) {
  auto* const a = tensor_traits<Tensor>::data(*r.tensor);
  auto* const b = tensor_traits<Tensor>::data(packed);
  for (std::int64_t row = 0; row < r.at.rows; ++row)
    each(a + (r.at.first_a + row * r.at.stride_a), b + (r.at.first_b + row * r.at.stride_b),
         static_cast<std::size_t>(r.at.length));
}

template <class Tensor>
constexpr void require_row_copies() {
  static_assert(tensor_traits<Tensor>::space != memory_space::device,
                "tensor_traits<T>::copy_rows(T& to, first, stride, const T& from, first, stride, length, rows) is missing for "
                "tensors in device memory");
}

/// packed = the tensors' elements.
template <class Tensor>
void pack(Tensor& packed, std::span<const tensor_runs<Tensor>> runs) {
  using traits = tensor_traits<Tensor>;
  for (const auto& r : runs)
    if constexpr (requires { traits::copy_rows(packed, 0, 0, *r.tensor, 0, 0, 0, 0); }) {
      traits::copy_rows(packed, r.at.first_b, r.at.stride_b, *r.tensor, r.at.first_a, r.at.stride_a, r.at.length, r.at.rows);
    } else {
      require_row_copies<Tensor>();
      for_each_row(r, packed, [](const auto* a, auto* b, std::size_t n) { std::memcpy(b, a, n * sizeof(*b)); });
    }
}

/// The tensors' elements = packed.
template <class Tensor>
void unpack(const Tensor& packed, std::span<const tensor_runs<Tensor>> runs) {
  using traits = tensor_traits<Tensor>;
  for (const auto& r : runs)
    if constexpr (requires { traits::copy_rows(*r.tensor, 0, 0, packed, 0, 0, 0, 0); }) {
      traits::copy_rows(*r.tensor, r.at.first_a, r.at.stride_a, packed, r.at.first_b, r.at.stride_b, r.at.length, r.at.rows);
    } else {
      require_row_copies<Tensor>();
      for_each_row(r, packed, [](auto* a, const auto* b, std::size_t n) { std::memcpy(a, b, n * sizeof(*b)); });
    }
}

/// Whether tensors add themselves up, as whole ones only.
template <class Tensor>
inline constexpr bool adds_whole = requires(Tensor& sum, const Tensor& term) {
  tensor_traits<Tensor>::add(sum, term);
};

/// packed += the tensors' elements. `spare`: of the shape of packed, where tensors add themselves up.
template <class Tensor>
void add_packed(Tensor& packed, std::span<const tensor_runs<Tensor>> runs, Tensor& spare) {
  if constexpr (adds_whole<Tensor>) {
    pack(spare, runs);
    add(packed, spare);
  } else {
    for (const auto& r : runs)
      for_each_row(r, packed, [](const auto* a, auto* b, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) b[i] = sum_of(b[i], a[i]);
      });
  }
}

/// The tensors' elements += packed, which may be overwritten.
template <class Tensor>
void add_unpacked(Tensor& packed, std::span<const tensor_runs<Tensor>> runs, Tensor& spare) {
  if constexpr (adds_whole<Tensor>) {
    pack(spare, runs);
    add(spare, packed);
    unpack(spare, runs);
  } else {
    for (const auto& r : runs)
      for_each_row(r, packed, [](auto* a, const auto* b, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) a[i] = sum_of(a[i], b[i]);
      });
  }
}

}  // namespace hetsched::detail
