// SPDX-License-Identifier: Apache-2.0
// All that is compiled with kernels.
#include <gpt_cuda/on_gpus.hpp>

#include <hetsched/cuda/runtime.hpp>

#include <gpt_cuda/cuda_launcher.cuh>
#include <gpt_cuda/layers.hpp>
#include <gpt_cuda/timing.hpp>

template struct gpt_cuda::operations<hetsched::cuda_runtime>;

hetsched::device gpt_cuda::measure_gpu(int place) {
  constexpr int rows = 4096;
  hetsched::cuda_devices<hetsched::cuda_runtime> devices;
  return measure_device(devices, place, rows);
}

std::vector<double> gpt_cuda::time_gpu_product(int place, const product_sizes& sizes, bool in_bf16, int runs) {
  hetsched::cuda_devices<hetsched::cuda_runtime> devices;
  return in_bf16 ? time_product<bf16>(devices, place, sizes, runs) : time_product<float>(devices, place, sizes, runs);
}

gpt_cuda::gpu_link gpt_cuda::time_gpu_link(int from, int to) {
  hetsched::cuda_devices<hetsched::cuda_runtime> devices;
  hetsched::cuda_peer peer;
  hetsched::detail::require_cuda(devices.api(), devices.api().peer(peer, from, to), "cudaDeviceCanAccessPeer", "a link", from);
  return {hetsched::profile_copies(devices, from, to), peer.direct};
}
