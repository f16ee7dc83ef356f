// SPDX-License-Identifier: Apache-2.0
// Of a program that is also of HIP.
#include <hetsched/cuda.hpp>

int count_of_cuda() {
  try {
    return hetsched::cuda_devices<hetsched::cuda_runtime>().count();
  } catch (const hetsched::cuda_error& e) {
    return hetsched::means_no_gpu(e.code) ? 0 : -1;
  }
}
