// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/nccl_runtime_test.cpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>

#include <hetsched/cuda/detail/nccl_calls.ipp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda/nccl_communicator.hpp>

namespace hetsched {

template <>
inline constexpr nccl_type nccl_type_of<__half> = nccl_type::f16;
template <>
inline constexpr nccl_type nccl_type_of<__nv_bfloat16> = nccl_type::bf16;

/// NCCL itself, 2.18 or later, as an nccl_api. Not part of cuda.hpp, as a toolkit may come without it.
struct nccl_runtime : detail::nccl_calls<cudaStream_t> {};

static_assert(nccl_api<nccl_runtime>);

}  // namespace hetsched
