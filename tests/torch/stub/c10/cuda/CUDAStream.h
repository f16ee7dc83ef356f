// SPDX-License-Identifier: Apache-2.0
#pragma once
// What component torch uses of a LibTorch made for CUDA.

#include <cuda_runtime_api.h>
#include <torch/types.h>

namespace c10::cuda {

struct CUDAStream {
  cudaStream_t stream() const;
};
CUDAStream getStreamFromExternal(cudaStream_t, DeviceIndex);
CUDAStream getCurrentCUDAStream(DeviceIndex = -1);

}  // namespace c10::cuda
