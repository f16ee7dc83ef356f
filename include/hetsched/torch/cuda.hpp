// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compiled, and run by nobody yet. Tested by tests/torch/stub/cuda.cpp.

#include <cstddef>
#include <string>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/runtime.hpp>
#include <hetsched/torch/device.hpp>

namespace hetsched {

/// LibTorch on CUDA's GPUs, for torch_device_layer and what else is on a torch_place. Needs a LibTorch made for CUDA, whose
/// libc10_cuda and libtorch_cuda the program links, and its version of the toolkit.
struct torch_cuda {
  using api = cuda_runtime;
  static c10::Device device(int number) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(number)}; }
  /// Makes the queue's stream torch's current one.
  class scope {
   public:
    explicit scope(const cuda_queue<api>& q)
        : own_(c10::cuda::getStreamFromExternal(q.stream(), static_cast<c10::DeviceIndex>(q.device()))) {}

   private:
    c10::cuda::CUDAStreamGuard own_;
  };
};

/// For cuda_devices: buffers come from torch's caching allocator. A rank computes on the stream that is torch's current one for
/// the thread that makes its cuda_backend; on one of the library's, where that is CUDA's default stream.
/// Example:
///   cuda_devices<cuda_runtime> gpus({}, {}, torch_adoption());
[[nodiscard]] inline cuda_adoption<cuda_runtime> torch_adoption() {
  cuda_adoption<cuda_runtime> own;
  own.allocate = [](std::size_t bytes, int device, cudaStream_t stream) {
    const c10::cuda::CUDAGuard current(static_cast<c10::DeviceIndex>(device));
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
  };
  own.free = [](void* memory, std::size_t, int, cudaStream_t) { c10::cuda::CUDACachingAllocator::raw_delete(memory); };
  own.stream = [](int device, const std::string& name) -> cudaStream_t {
    if (!name.ends_with("'s computations")) return nullptr;
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
  };
  return own;
}

}  // namespace hetsched
