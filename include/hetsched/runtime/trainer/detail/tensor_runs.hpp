// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <hetsched/core/index.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// Elements of a tensor (side a), and where they are in a packed one (side b).
template <class Tensor>
struct tensor_runs {
  Tensor* tensor = nullptr;
  strided_runs at;
};

/// Rows of so many elements, from one tensor to another, which begin `stride` apart.
template <pipeline_tensor Tensor, class Queue>
void copy_rows(Tensor& to, std::int64_t first_to, std::int64_t stride_to, const Tensor& from, std::int64_t first_from,
               std::int64_t stride_from, std::int64_t length, std::int64_t rows, const Queue& q) {
  using traits = tensor_traits<Tensor>;
  if constexpr (requires { traits::copy_rows(to, first_to, stride_to, from, first_from, stride_from, length, rows, q); }) {
    traits::copy_rows(to, first_to, stride_to, from, first_from, stride_from, length, rows, q);
  } else if constexpr (requires { traits::copy_rows(to, first_to, stride_to, from, first_from, stride_from, length, rows); }) {
    traits::copy_rows(to, first_to, stride_to, from, first_from, stride_from, length, rows);
  } else {
    static_assert(traits::space != memory_space::device,
                  "tensor_traits<T>::copy_rows(T& to, first, stride, const T& from, first, stride, length, rows) is missing for "
                  "tensors in device memory");
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(traits::data(to) + (first_to + row * stride_to), traits::data(from) + (first_from + row * stride_from),
                  as_size(length) * sizeof(typename traits::element));
  }
}

/// packed = the tensors' elements.
template <class Tensor, class Queue>
void pack(Tensor& packed, std::span<const tensor_runs<Tensor>> runs, const Queue& q) {
  for (const auto& [tensor, at] : runs)
    copy_rows(packed, at.first_b, at.stride_b, *tensor, at.first_a, at.stride_a, at.length, at.rows, q);
}

/// The tensors' elements = packed.
template <class Tensor, class Queue>
void unpack(const Tensor& packed, std::span<const tensor_runs<Tensor>> runs, const Queue& q) {
  for (const auto& [tensor, at] : runs)
    copy_rows(*tensor, at.first_a, at.stride_a, packed, at.first_b, at.stride_b, at.length, at.rows, q);
}

/// Whether tensors add themselves up, as whole ones only.
template <class Tensor, class Queue>
inline constexpr bool adds_whole = requires(Tensor& sum, const Tensor& term) {
  tensor_traits<Tensor>::add(sum, term);
}
|| requires(Tensor& sum, const Tensor& term, const Queue& q) { tensor_traits<Tensor>::add(sum, term, q); };

/// Calls each(tensor's element, packed element) for all of them, in host memory.
template <class Tensor, class Packed, class Each>
void for_each_element(const tensor_runs<Tensor>& r, Packed& packed, Each&& each) {
  for (std::int64_t row = 0; row < r.at.rows; ++row) {
    auto* const a = tensor_traits<Tensor>::data(*r.tensor) + (r.at.first_a + row * r.at.stride_a);
    auto* const b = tensor_traits<Tensor>::data(packed) + (r.at.first_b + row * r.at.stride_b);
    for (std::int64_t i = 0; i < r.at.length; ++i) each(a[i], b[i]);
  }
}

/// packed += the tensors' elements. `spare`: of the shape of packed, where tensors add themselves up.
template <class Tensor, class Queue>
void add_packed(Tensor& packed, std::span<const tensor_runs<Tensor>> runs, Tensor& spare, const Queue& q) {
  if constexpr (adds_whole<Tensor, Queue>) {
    pack(spare, runs, q);
    add(packed, spare, q);
  } else {
    for (const auto& r : runs) for_each_element(r, packed, [](const auto& a, auto& b) { b = sum_of(b, a); });
  }
}

/// The tensors' elements += packed, which may be overwritten.
template <class Tensor, class Queue>
void add_unpacked(Tensor& packed, std::span<const tensor_runs<Tensor>> runs, Tensor& spare, const Queue& q) {
  if constexpr (adds_whole<Tensor, Queue>) {
    pack(spare, runs, q);
    add(spare, packed, q);
    unpack(spare, runs, q);
  } else {
    for (const auto& r : runs) for_each_element(r, packed, [](auto& a, const auto& b) { a = sum_of(a, b); });
  }
}

}  // namespace hetsched::detail
