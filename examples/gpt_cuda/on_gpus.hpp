// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gpt_cuda/training.hpp>

namespace gpt_cuda {

/// How many GPUs there are. Throws: cuda_error where there is none.
[[nodiscard]] int gpu_count();
/// Trains on the GPUs at hand, and on the host where a rank's place is -1. Throws: as train; error where cuBLAS fails.
[[nodiscard]] trained train_on_gpus(const training& t);

}  // namespace gpt_cuda
