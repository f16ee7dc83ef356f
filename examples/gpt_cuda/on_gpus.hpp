// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

namespace gpt_cuda {

/// The GPU with its rates as measured. Throws: cuda_error.
[[nodiscard]] hetsched::device measure_gpu(int place);
/// A product (m x k)(k x n).
struct product_sizes {
  std::size_t m = 1, n = 1, k = 1;
};
/// Seconds of each of `runs` products with sums in fp32. Throws: cuda_error.
[[nodiscard]] std::vector<double> time_gpu_product(int place, const product_sizes& sizes, bool in_bf16, int runs);
/// Copies from one GPU to another, by size, and whether they go directly. Throws: cuda_error.
struct gpu_link {
  std::vector<hetsched::link_sample> samples;
  bool direct = false;
};
[[nodiscard]] gpu_link time_gpu_link(int from, int to);

}  // namespace gpt_cuda
