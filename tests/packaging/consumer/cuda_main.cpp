// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <hetsched/cuda.hpp>

int main() {
  try {
    const hetsched::cuda_devices<hetsched::cuda_runtime> devices;
    return devices.count() > 0 ? 0 : 1;
  } catch (const hetsched::cuda_error& e) {
    std::puts(e.what());
    return hetsched::means_no_gpu(e.code) ? 0 : 1;
  }
}
