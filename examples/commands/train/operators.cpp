// SPDX-License-Identifier: Apache-2.0
#include <train/operators.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

#include <gpt/host_operator.hpp>

hetsched::measured_time train::time_on_host(const hetsched::operator_row& row, int warmup, int repeats) {
  using clock = std::chrono::steady_clock;
  const auto made = gpt::make_host_operator(row);
  const auto seconds_of = [&](int calls) {
    const auto start = clock::now();
    for (int i = 0; i < calls; ++i) made.run();
    return std::chrono::duration<double>(clock::now() - start).count() / calls;
  };
  double once_s = seconds_of(1);
  for (int i = 0; i < warmup; ++i) once_s = std::min(once_s, seconds_of(1));
  constexpr double long_enough_s = 2e-4;
  const int calls = static_cast<int>(std::clamp(long_enough_s / std::max(once_s, 1e-9), 1.0, 1e5));
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(seconds_of(calls));
  return hetsched::median_and_spread(std::move(all));
}

std::vector<hetsched::operator_row> train::usual_operators(bool on_gpu) {
  using hetsched::number_format;
  std::vector<hetsched::operator_row> all;
  if (on_gpu) {
    for (const auto f : {number_format::fp32, number_format::bf16})
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{256, 256, 256},
                                    {512, 1024, 512},
                                    {512, 4096, 1024},
                                    {1024, 1024, 1024},
                                    {2048, 2048, 512},
                                    {2048, 2048, 4096},
                                    {2048, 12288, 4096},
                                    {4096, 4096, 4096},
                                    {8192, 1024, 4096},
                                    {8192, 8192, 1024},
                                    {300, 5000, 700},
                                    {128, 50304, 2048}})
        all.push_back({"gemm", {1, m, n, k}, f});
    return all;
  }
  return {{"gemm", {1, 64, 64, 64}},
          {"gemm", {1, 128, 512, 128}},
          {"gemm", {1, 300, 500, 70}},
          {"gemm", {1, 256, 256, 256}},
          {"gemm", {1, 512, 512, 512}},
          {"gemm", {1, 64, 2048, 512}},
          {"gemm", {1, 1024, 1024, 1024}},
          {"gemm", {1, 2048, 512, 256}},
          {"bmm", {16, 128, 128, 64}},
          {"bmm", {64, 64, 64, 32}},
          {"layernorm", {1, 512, 768}},
          {"layernorm", {1, 4096, 1024}},
          {"rmsnorm", {1, 1024, 2048}},
          {"softmax", {1, 2048, 128}},
          {"softmax", {1, 4096, 1024}},
          {"cross_entropy", {1, 512, 8192}},
          {"gelu", {1, 512, 2048}},
          {"silu", {1, 256, 1024}},
          {"relu", {1, 1024, 4096}},
          {"elementwise_add", {1, 256, 512}},
          {"elementwise_add", {1, 2048, 4096}},
          {"copy", {1, 4096, 4096}},
          {"embedding", {1, 2048, 768}},
          {"adam", {1, 1024, 1024}},
          {"flash_attention_causal", {8, 256, 256, 64}}};
}

#ifndef HETSCHED_WITH_CUDA
hetsched::measured_time train::time_on_gpu(const hetsched::operator_row&, int, int, int) {
  throw hetsched::input_error("this program was built without CUDA");
}
#endif
