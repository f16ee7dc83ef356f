// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/local_communicator_test.cpp.

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A stager that copies between a GPU and pinned memory on a queue of its own, so that a transport of the host can take it from
/// there.
template <pipeline_tensor Tensor, cuda_api Api>
class cuda_stager {
 public:
  class operation {
   public:
    double start_s = 0, end_s = 0;

   private:
    friend class cuda_stager;
    cuda_moment<Api> end_;
  };

  /// `name`: of the rank, in errors.
  /// Throws: input_error for a device that is not there; cuda_error.
  cuda_stager(cuda_devices<Api>& devices, int device, const std::string& name)
      : copies_(devices.lend_queue(device, name + "'s copies")) {}

  /// A tensor in pinned memory.
  [[nodiscard]] Tensor make(const tensor_shape& shape) const {
    return tensor_traits<Tensor>::make(shape, cuda_queue<Api>(copies_->devices()));
  }
  /// See stager. Times are those of the host: when it asked, and when it saw the end.
  void post_copy(const Tensor& from, Tensor& to, operation& op) const {
    op.start_s = steady_now_s();
    op.end_s = 0;
    tensor_traits<Tensor>::assign(to, from, *copies_);
    op.end_ = copies_->record();
  }
  void post_copy_part(const Tensor& from, Tensor& to, std::size_t first, std::size_t count, operation& op) const {
    using traits = tensor_traits<Tensor>;
    constexpr std::size_t unit = sizeof(typename traits::element);
    op.start_s = steady_now_s();
    op.end_s = 0;
    work_on(*copies_, {&traits::buffer(from)}, {&traits::buffer(to)}, [&] {
      void* const target = traits::data(to) + first;
      const void* const source = traits::data(from) + first;
      if (copies_->on_host())
        std::memcpy(target, source, count * unit);
      else
        copies_->own()->require(copies_->api().copy(target, source, count * unit, copies_->stream()), "cudaMemcpyAsync");
    });
    op.end_ = copies_->record();
  }
  [[nodiscard]] bool poll(operation& op) const {
    if (!op.end_.reached()) return false;
    if (op.end_s == 0) op.end_s = steady_now_s();
    return true;
  }

 private:
  std::shared_ptr<const cuda_queue<Api>> copies_;
};

}  // namespace hetsched
