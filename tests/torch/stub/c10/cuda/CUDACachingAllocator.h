// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda::CUDACachingAllocator {

void* raw_alloc_with_stream(std::size_t, cudaStream_t);
void raw_delete(void*);

}  // namespace c10::cuda::CUDACachingAllocator
