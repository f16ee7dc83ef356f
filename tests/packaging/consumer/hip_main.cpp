// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <hetsched/hip.hpp>

#ifdef WITH_CUDA
int count_of_cuda();
#else
static int count_of_cuda() { return 0; }
#endif

int main() {
  if (count_of_cuda() < 0) return 1;
  try {
    const hetsched::cuda_devices<hetsched::hip_runtime> devices;
    return devices.count() > 0 ? 0 : 1;
  } catch (const hetsched::cuda_error& e) {
    std::puts(e.what());
    return hetsched::means_no_gpu(e.code) ? 0 : 1;
  }
}
