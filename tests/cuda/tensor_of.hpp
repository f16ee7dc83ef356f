// SPDX-License-Identifier: Apache-2.0
// Tensors of the strict device whose elements are floats or the upper halves of floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include "fake_layers.hpp"

namespace hetsched::test {

/// The upper half of a float.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float x) {
    std::uint32_t all = 0;
    std::memcpy(&all, &x, sizeof all);
    bits = static_cast<std::uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16);  // to the nearest, ties to even
  }
  explicit operator float() const {
    const std::uint32_t all = std::uint32_t{bits} << 16;
    float x = 0;
    std::memcpy(&x, &all, sizeof x);
    return x;
  }
};

template <class Element>
struct tensor_of {
  tensor_of() = default;
  tensor_of(const tensor_shape& s, cuda_buffer<cuda_check::api> b) : extents(s), memory(std::move(b)) {}
  tensor_of(const tensor_shape& s, const fake_queue& q) : tensor_of(s, {q, s.at(0) * s.at(1) * sizeof(Element)}) {}
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  cuda_buffer<cuda_check::api>& buffer() { return memory; }
  [[nodiscard]] const cuda_buffer<cuda_check::api>& buffer() const { return memory; }
  [[nodiscard]] Element* data() const { return static_cast<Element*>(memory.data()); }
  [[nodiscard]] std::size_t size() const { return memory.bytes() / sizeof(Element); }
  tensor_shape extents;
  cuda_buffer<cuda_check::api> memory;
};
using wide = tensor_of<float>;
using narrow = tensor_of<bf16>;

template <class T>
[[nodiscard]] cuda_check::machine::range reads(const T& t) {
  return {t.data(), t.memory.bytes(), false};
}
template <class T>
[[nodiscard]] cuda_check::machine::range writes(const T& t) {
  return {t.data(), t.memory.bytes(), true};
}

}  // namespace hetsched::test

template <class Element>
struct hetsched::tensor_traits<hetsched::test::tensor_of<Element>>
    : hetsched::cuda_tensor_traits<hetsched::test::tensor_of<Element>, Element, hetsched::cuda_check::api> {
  using tensor = hetsched::test::tensor_of<Element>;
  using queue = hetsched::test::fake_queue;
  static void add(tensor& sum, const tensor& term, const queue& q) {
    work_on(q, {&term.buffer()}, {&sum.buffer()}, [&] {
      cuda_check::launch(q, "a sum", {reads(term), reads(sum), writes(sum)},
                         [to = sum.data(), from = term.data(), n = sum.size()](const auto& v) {
                           for (std::size_t k = 0; k < n; ++k)
                             v.write(to)[k] = hetsched::detail::sum_of(v.read(to)[k], v.read(from)[k]);
                         });
    });
  }
  static void scale(tensor& t, double factor, const queue& q) {
    work_on(q, {}, {&t.buffer()}, [&] {
      cuda_check::launch(q, "a scaling", {writes(t)},
                         [at = t.data(), n = t.size(), f = static_cast<float>(factor)](const auto& v) {
                           for (std::size_t k = 0; k < n; ++k) v.write(at)[k] = Element(static_cast<float>(v.read(at)[k]) * f);
                         });
    });
  }
};
