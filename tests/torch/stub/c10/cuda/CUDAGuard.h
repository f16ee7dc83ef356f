// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

struct CUDAGuard {
  explicit CUDAGuard(DeviceIndex);
  ~CUDAGuard();
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream);
  CUDAStreamGuard(CUDAStreamGuard&&) = delete;
};

}  // namespace c10::cuda
