// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::test {

/// Numbers that count as a device's, and that others write or read for as long as its buffer is busy.
struct late_tensor {
  struct late_buffer {
    std::vector<double> numbers;
    std::atomic<bool> is_busy{false};
    memory_space where = memory_space::device;
    [[nodiscard]] memory_space space() const { return where; }
    [[nodiscard]] bool is_ready() const { return !is_busy; }
    [[nodiscard]] bool is_idle() const { return !is_busy; }
  };
  late_tensor() = default;
  explicit late_tensor(const tensor_shape& s) : extents(s) { buffer->numbers.resize(s.at(0)); }
  tensor_shape extents{0};
  std::shared_ptr<late_buffer> buffer = std::make_shared<late_buffer>();
};

}  // namespace hetsched::test

template <>
struct hetsched::tensor_traits<hetsched::test::late_tensor> {
  using tensor = test::late_tensor;
  using element = double;
  static constexpr memory_space space = memory_space::device;
  static const tensor_shape& shape(const tensor& t) { return t.extents; }
  static double* data(tensor& t) { return t.buffer->numbers.data(); }
  static const double* data(const tensor& t) { return t.buffer->numbers.data(); }
  static tensor make(const tensor_shape& s) { return tensor(s); }
  static auto& buffer(tensor& t) { return *t.buffer; }
  static const auto& buffer(const tensor& t) { return *t.buffer; }
};
