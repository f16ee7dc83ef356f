// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/local_communicator_test.cpp.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/clock.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>

namespace hetsched {

/// The device_backend of a rank that computes on a GPU or, chosen at run time, on the host beside GPUs. Tensors are made of
/// cuda_buffers.
template <cuda_api Api>
class cuda_backend {
 public:
  using queue = cuda_queue<Api>;

  /// `device`: of `all`; -1: the host. `name`: of the rank, in errors.
  /// Throws: input_error for a device that is not there; cuda_error.
  cuda_backend(cuda_devices<Api>& all, int device, const std::string& name)
      : compute_(all.lend_queue(device, name + "'s computations")), transfer_(all.lend_queue(device, name + "'s slices", true)) {}

  [[nodiscard]] queue compute_queue() const { return *compute_; }
  [[nodiscard]] queue transfer_queue() const { return *transfer_; }
  /// Of pinned memory.
  [[nodiscard]] queue memory_queue() const { return queue(compute_->devices()); }
  [[nodiscard]] cuda_device_scope<Api> bind() const { return compute_->make_current(); }

  [[nodiscard]] cuda_clock<Api> make_clock(std::vector<std::string> names) const { return {*compute_, std::move(names)}; }

  /// Doubles in pinned memory.
  class numbers {
   public:
    numbers() = default;
    numbers(std::shared_ptr<const queue> writer, std::size_t count)
        : writer_(std::move(writer)), memory_(queue(writer_->devices()), count * sizeof(double)) {
      if (count > 0) std::fill(begin(), end(), 0.0);
    }
    numbers(numbers&&) = default;
    numbers& operator=(numbers&& other) noexcept {
      std::swap(writer_, other.writer_);  // what was here ends as `other` does
      std::swap(memory_, other.memory_);
      return *this;
    }
    ~numbers() {
      if (memory_.bytes() == 0) return;
      try {
        memory_.end_write(*writer_, writer_->record());  // work of a step that failed may still write
      } catch (const cuda_error&) {
        // The device has failed, and writes no more.
      }
    }
    [[nodiscard]] double* data() const { return static_cast<double*>(memory_.data()); }
    /// For the host to write to, and to read from.
    [[nodiscard]] double* begin() {
      memory_.host_access(true);
      return data();
    }
    [[nodiscard]] const double* begin() const {
      memory_.host_access(false);
      return data();
    }
    [[nodiscard]] double* end() const { return data() + memory_.bytes() / sizeof(double); }

   private:
    std::shared_ptr<const queue> writer_;
    cuda_buffer<Api> memory_;
  };
  [[nodiscard]] numbers make_numbers(std::size_t count) const { return numbers(compute_, count); }

 private:
  std::shared_ptr<const queue> compute_, transfer_;
};

}  // namespace hetsched
