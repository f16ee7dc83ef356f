// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <span>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Calls work(), which enqueues on q what reads and writes these buffers, or does it at once where q is the host's. The queue's
/// device is current meanwhile. Where work throws, what it has enqueued by then is marked all the same.
/// Throws: cuda_error; and what work throws.
template <cuda_api Api, class Work>
void work_on(const cuda_queue<Api>& q, std::span<const cuda_buffer<Api>* const> reads, std::span<cuda_buffer<Api>* const> writes,
             Work&& work) {
  for (const auto* b : reads) b->begin_read(q);
  for (auto* b : writes) b->begin_write(q);
  const auto current = q.make_current();
  const auto mark = [&] {
    const auto end = q.record();
    for (const auto* b : reads) b->end_read(q, end);
    for (auto* b : writes) b->end_write(q, end);
  };
  if (q.on_host()) {
    for (const auto* b : reads) b->host_access(false);
    for (const auto* b : writes) b->host_access(true);
  }
  try {
    work();
  } catch (...) {
    try {
      mark();
    } catch (const std::exception&) {
      // The device has failed too, and does nothing any more.
    }
    throw;
  }
  mark();
}
template <cuda_api Api, class Work>
void work_on(const cuda_queue<Api>& q, std::initializer_list<const cuda_buffer<Api>*> reads,
             std::initializer_list<cuda_buffer<Api>*> writes, Work&& work) {
  work_on(q, std::span(reads.begin(), reads.size()), std::span(writes.begin(), writes.size()), work);
}

/// Enqueues on q, between work_on, a copy of so many bytes of one buffer, from an offset on, to another, wherever the two are.
/// Requires: q is a GPU's; where q is captured, devices that share memory (cuda_devices::share).
/// Throws: cuda_error.
template <cuda_api Api>
void enqueue_copy(const cuda_queue<Api>& q, cuda_buffer<Api>& to, std::size_t to_offset, const cuda_buffer<Api>& from,
                  std::size_t from_offset, std::size_t bytes) {
  auto* const target = static_cast<std::byte*>(to.data()) + to_offset;
  const auto* const source = static_cast<const std::byte*>(from.data()) + from_offset;
  // A copy by the names of two devices cannot be captured.
  const bool is_between = to.device() >= 0 && from.device() >= 0 && to.device() != from.device();
  if (is_between && !q.own()->capturing())
    q.own()->require(q.api().copy_peer(target, to.device(), source, from.device(), bytes, q.stream()), "cudaMemcpyPeerAsync");
  else
    q.own()->require(q.api().copy(target, source, bytes, q.stream()), "cudaMemcpyAsync");
}
/// All of a buffer of the same size.
template <cuda_api Api>
void enqueue_copy(const cuda_queue<Api>& q, cuda_buffer<Api>& to, const cuda_buffer<Api>& from) {
  enqueue_copy(q, to, 0, from, 0, to.bytes());
}

/// What tensor_traits of tensors made of one cuda_buffer have in common; a specialisation for T derives from it. T has shape(),
/// buffer() -> cuda_buffer<Api>&, also const, and a constructor (const tensor_shape&, const cuda_queue<Api>&).
/// The specialisation adds what computes: add(T&, const T&, queue) and scale(T&, double, queue), between work_on.
template <class T, class Element, cuda_api Api>
struct cuda_tensor_traits {
  using element = Element;
  using queue = cuda_queue<Api>;
  using moment = cuda_moment<Api>;
  /// That is: not known before run time.
  static constexpr memory_space space = memory_space::device;

  static decltype(auto) shape(const T& t) { return t.shape(); }
  static element* data(T& t) { return static_cast<element*>(t.buffer().data()); }
  static const element* data(const T& t) { return static_cast<const element*>(t.buffer().data()); }
  static cuda_buffer<Api>& buffer(T& t) { return t.buffer(); }
  static const cuda_buffer<Api>& buffer(const T& t) { return t.buffer(); }

  static T make(const tensor_shape& shape, const queue& q) {
    T made(shape, q);
    made.buffer().end_write(q, q.record());
    return made;
  }
  static void begin_read(const T& t, const queue& q) { t.buffer().begin_read(q); }
  static void end_read(const T& t, const queue& q, const moment& end) { t.buffer().end_read(q, end); }
  static void end_write(T& t, const queue& q, const moment& end) { t.buffer().end_write(q, end); }

  static void zero(T& t, const queue& q) {
    auto& b = t.buffer();
    if (b.bytes() == 0) return;
    work_on(q, {}, {&b}, [&] {
      if (q.on_host())
        std::memset(b.data(), 0, b.bytes());
      else
        q.own()->require(q.api().set_zero(b.data(), b.bytes(), q.stream()), "cudaMemsetAsync");
    });
  }
  static void assign(T& to, const T& from, const queue& q) {
    auto& target = to.buffer();
    const auto& source = from.buffer();
    if (target.bytes() == 0) return;
    work_on(q, {&source}, {&target}, [&] {
      if (q.on_host())
        std::memcpy(target.data(), source.data(), target.bytes());
      else
        enqueue_copy(q, target, source);
    });
  }
  /// Rows of so many elements, which begin at first + row * stride.
  static void copy_rows(T& to, std::int64_t first_to, std::int64_t stride_to, const T& from, std::int64_t first_from,
                        std::int64_t stride_from, std::int64_t length, std::int64_t rows, const queue& q) {
    if (length == 0 || rows == 0) return;
    work_on(q, {&from.buffer()}, {&to.buffer()}, [&] {
      if (!q.on_host()) return enqueue_rows(q, to, first_to, stride_to, from, first_from, stride_from, length, rows);
      for (std::int64_t row = 0; row < rows; ++row)
        std::memcpy(data(to) + first_to + row * stride_to, data(from) + first_from + row * stride_from,
                    as_size(length) * sizeof(element));
    });
  }
  static void copy_part(T& to, std::span<const interval> to_slice, const T& from, std::span<const interval> from_slice,
                        std::span<const interval> part, const queue& q) {
    work_on(q, {&from.buffer()}, {&to.buffer()}, [&] {
      if (q.on_host()) return hetsched::copy_part(data(from), from_slice, data(to), to_slice, part);
      for_each_strided(from_slice, to_slice, part, 0, element_count(part), [&](const strided_runs& r) {
        enqueue_rows(q, to, r.first_b, r.stride_b, from, r.first_a, r.stride_a, r.length, r.rows);
      });
    });
  }

 private:
  /// On a GPU's queue, between work_on.
  static void enqueue_rows(const queue& q, T& to, std::int64_t first_to, std::int64_t stride_to, const T& from,
                           std::int64_t first_from, std::int64_t stride_from, std::int64_t length, std::int64_t rows) {
    const auto bytes = [](std::int64_t n) { return as_size(n) * sizeof(element); };
    q.own()->require(q.api().copy_rows(data(to) + first_to, bytes(rows > 1 ? stride_to : length), data(from) + first_from,
                                       bytes(rows > 1 ? stride_from : length), bytes(length), as_size(rows), q.stream()),
                     "cudaMemcpy2DAsync");
  }
};

}  // namespace hetsched
