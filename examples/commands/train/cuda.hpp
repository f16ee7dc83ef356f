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

/// `products`: bf16 or fp32.
[[nodiscard]] gpt_cuda::shape to_shape(const gpt::config& m, const std::string& products);

struct gpu_timing {
  int place = 0;  ///< a GPU; -1: the host
  std::string products = "bf16";
  int samples = 1;
  int warmup = 2, repeats = 5;
  std::function<void(int layer)> before = [](int) {};
};
/// Times all layers on a microbatch of a text. Throws: cuda_error where there is no GPU.
[[nodiscard]] std::vector<gpt_cuda::layer_costs> time_on_gpu(const gpt::config& m, const std::string& corpus,
                                                             const gpu_timing& how);

}  // namespace train
