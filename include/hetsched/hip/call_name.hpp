// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/hip/pipeline_test.cpp.

#include <string>
#include <string_view>

namespace hetsched {

/// HIP's name for a call of CUDA's runtime: cudaEventQuery is hipEventQuery. What is no call stays.
[[nodiscard]] inline std::string hip_call_name(std::string_view name) {
  constexpr std::string_view cuda = "cuda";
  if (!name.starts_with(cuda)) return std::string(name);
  if (name == "cudaHostAlloc") return "hipHostMalloc";
  if (name == "cudaFreeHost") return "hipHostFree";
  return "hip" + std::string(name.substr(cuda.size()));
}

}  // namespace hetsched
