// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/device/device_backend_test.cpp.

#include <span>

#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

// What is done to tensors on a queue: by tensor_traits that take one, else at once, which is right on the host only.
namespace hetsched::detail {

template <pipeline_tensor T, class Queue>
[[nodiscard]] T make_tensor(const tensor_shape& shape, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::make(shape, q); })
    return tensor_traits<T>::make(shape, q);
  else
    return tensor_traits<T>::make(shape);
}

template <pipeline_tensor T, class Queue>
void zero(T& t, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::zero(t, q); })
    tensor_traits<T>::zero(t, q);
  else
    zero(t);
}

/// Requires, here and below: same shape.
template <pipeline_tensor T, class Queue>
void assign(T& to, const T& from, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::assign(to, from, q); })
    tensor_traits<T>::assign(to, from, q);
  else
    assign(to, from);
}

template <pipeline_tensor T, class Queue>
void add(T& sum, const T& term, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::add(sum, term, q); })
    tensor_traits<T>::add(sum, term, q);
  else
    add(sum, term);
}

template <pipeline_tensor T, class Queue>
void scale(T& t, double factor, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::scale(t, factor, q); })
    tensor_traits<T>::scale(t, factor, q);
  else
    scale(t, factor);
}

/// Copies a part of one slice's tensor into another's.
template <pipeline_tensor T, class Queue>
void copy_part(T& to, std::span<const interval> to_slice, const T& from, std::span<const interval> from_slice,
               std::span<const interval> part, const Queue& q) {
  using traits = tensor_traits<T>;
  if constexpr (requires { traits::copy_part(to, to_slice, from, from_slice, part, q); }) {
    traits::copy_part(to, to_slice, from, from_slice, part, q);
  } else if constexpr (requires { traits::copy_part(to, to_slice, from, from_slice, part); }) {
    traits::copy_part(to, to_slice, from, from_slice, part);
  } else {
    static_assert(traits::space != memory_space::device,
                  "tensor_traits<T>::copy_part(T&, slice, const T&, slice, part) is missing for tensors in device memory");
    hetsched::copy_part(traits::data(from), from_slice, traits::data(to), to_slice, part);
  }
}

/// A tensor in host memory, which has another's elements once the queue has come to it.
template <pipeline_tensor T, class Backend>
[[nodiscard]] T copy_to_host(const Backend& backend, const typename Backend::queue& q, const T& t) {
  T copy = make_tensor<T>(shape_of(t), backend.memory_queue());
  assign(copy, t, q);
  return copy;
}

/// Around work that reads a tensor: before it, and behind it with its end.
template <pipeline_tensor T, class Queue>
void begin_read(const T& t, const Queue& q) {
  if constexpr (requires { tensor_traits<T>::begin_read(t, q); }) tensor_traits<T>::begin_read(t, q);
}
template <pipeline_tensor T, class Queue>
void end_read(const T& t, const Queue& q, const typename Queue::moment& end) {
  if constexpr (requires { tensor_traits<T>::end_read(t, q, end); }) tensor_traits<T>::end_read(t, q, end);
}
/// Behind work that has made a tensor.
template <pipeline_tensor T, class Queue>
void end_write(T& t, const Queue& q, const typename Queue::moment& end) {
  if constexpr (requires { tensor_traits<T>::end_write(t, q, end); }) tensor_traits<T>::end_write(t, q, end);
}

}  // namespace hetsched::detail
