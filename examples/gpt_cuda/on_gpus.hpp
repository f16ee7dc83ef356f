// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

#include <gpt_cuda/description.hpp>

namespace gpt_cuda {

/// How many GPUs there are. Throws: cuda_error where there is none.
[[nodiscard]] int gpu_count();
/// Trains on the GPUs at hand, and on the host where a rank's place is -1. Throws: as train; error where cuBLAS fails.
[[nodiscard]] trained train_on_gpus(const training& t);
/// Times the layers on a GPU, or on the host where `place` is -1. Throws: as time_layers.
[[nodiscard]] std::vector<layer_costs> time_on_gpu(int place, const timing& t);
/// The GPU with its rates as measured. Throws: cuda_error.
[[nodiscard]] hetsched::device measure_gpu(int place);
/// Copies from one GPU to another, by size, and whether they go directly. Throws: cuda_error.
struct gpu_link {
  std::vector<hetsched::link_sample> samples;
  bool direct = false;
};
[[nodiscard]] gpu_link time_gpu_link(int from, int to);

}  // namespace gpt_cuda
