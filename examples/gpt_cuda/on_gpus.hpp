// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

namespace gpt_cuda {

/// The GPU with its rates as measured. Throws: cuda_error.
[[nodiscard]] hetsched::device measure_gpu(int place);
/// Copies from one GPU to another, by size, and whether they go directly. Throws: cuda_error.
struct gpu_link {
  std::vector<hetsched::link_sample> samples;
  bool direct = false;
};
[[nodiscard]] gpu_link time_gpu_link(int from, int to);

}  // namespace gpt_cuda
