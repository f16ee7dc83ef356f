// SPDX-License-Identifier: Apache-2.0
#pragma once

// HIP's headers are those of one of two platforms: see runtime.hpp.
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <rccl/rccl.h>

#include <hetsched/cuda/detail/nccl_calls.ipp>
#include <hetsched/cuda/nccl_api.hpp>
#include <hetsched/cuda/nccl_communicator.hpp>

namespace hetsched {

/// RCCL, 2.18 or later, as an nccl_api for ranks on AMD's GPUs. Not part of hip.hpp, as a machine may have HIP without it. It has
/// been compiled with the header of RCCL 2.21.5 and has run with a stand-in for the library; no GPU has run it yet. RCCL and NCCL
/// define the same symbols: a program links one of them.
struct rccl_runtime : detail::nccl_calls<hipStream_t> {};

static_assert(nccl_api<rccl_runtime>);

}  // namespace hetsched
