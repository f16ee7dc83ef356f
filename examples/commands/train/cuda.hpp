// SPDX-License-Identifier: Apache-2.0
// The GPT on GPUs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gpt/config.hpp>
#include <gpt_cuda/description.hpp>
#include <train/training.hpp>

namespace train {

struct gpu_timing {
  std::string products = "bf16";
  bool half_boundaries = false;  ///< see gpt_cuda::shape
  int samples = 1;
  int warmup = 2, repeats = 5;
  std::function<void(int layer)> before = [](int) {};
};
/// Times all layers on a microbatch of a text, on a GPU or, where the place is -1, the host. Throws: cuda_error where there is
/// no GPU.
[[nodiscard]] std::vector<gpt_cuda::layer_costs> time_on_gpu(const gpt::config& m, const std::string& corpus, int place,
                                                             const gpu_timing& how);
/// How many GPUs there are. Throws: cuda_error where there is none.
[[nodiscard]] int gpu_count();

}  // namespace train
