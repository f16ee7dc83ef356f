// SPDX-License-Identifier: Apache-2.0
// HIP's runtime itself.
#include <hetsched/hip.hpp>

#include <doctest/doctest.h>

#include <string>

#include "../cuda/real_runtime.hpp"

using namespace hetsched;

static_assert(device_backend<cuda_backend<hip_runtime>>);

TEST_CASE("HIP's runtime copies in the order of its queues, or there is no GPU") {
  test::check_real_runtime<hip_runtime>("hipGetDeviceCount");
}

TEST_CASE("HIP's runtime tells its errors, or knows its devices") {
  hip_runtime hip;
  int count = 0;
  bool used = true;
  if (hip.device_count(count) != 0) {
    CHECK(hip.set_device(0) != 0);
    CHECK(hip.has_context(0, used) != 0);
    CHECK_FALSE(hip.error_text(hipErrorNoDevice).empty());
    CHECK(hip.error_text(hipErrorNoDevice) != hip.error_text(hipErrorInvalidValue));
    return;
  }
  CHECK(hip.set_device(count) != 0);
  CHECK(hipPeekAtLastError() == hipSuccess);
  const cuda_devices<hip_runtime> devices;
  for (int d = 0; d < count; ++d) {
    const auto found = describe_device(devices, d);
    CHECK(!found.name.empty());
    CHECK(found.memory_bytes > 0);
    CHECK(found.multiprocessors > 0);
  }
}
