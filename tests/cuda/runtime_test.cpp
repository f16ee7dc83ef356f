// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime itself.
#include <hetsched/cuda.hpp>

#include <doctest/doctest.h>

#include "real_runtime.hpp"

using namespace hetsched;

static_assert(device_backend<cuda_backend<cuda_runtime>>);

TEST_CASE("the runtime copies in the order of its queues, or there is no GPU") {
  test::check_real_runtime<cuda_runtime>("cudaGetDeviceCount");
}
