// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

#include <gpt_cuda/on_gpus.hpp>
#include <train/cuda.hpp>
#include <train/device.hpp>
#include <train/measure.hpp>
#include <train/model.hpp>
#include <train/operators.hpp>

void train::measure_on_gpus(measuring& m) {
  const auto refuse = [&](bool asked, const std::string& what) {
    if (asked) throw hetsched::input_error(what + " is not for --device " + m.device);
  };
  refuse(m.given.transport != "threads", "--transport gloo");
  refuse(m.wide, "--precision fp64");
  refuse(m.how.tensors != std::vector{1}, "--tensor");
  const int gpus = gpu_count(), ranks = m.given.ranks.value_or(m.device == "cuda" ? gpus : names_in(m.device));
  const auto places = places_of(m.device, ranks, gpus);
  auto& found = m.found;
  found.nics = hetsched::find_nics();
  for (int r = 0; r < ranks; ++r) {
    const int place = places[static_cast<std::size_t>(r)];
    if (place < 0) throw hetsched::input_error("--device: hosts are profiled without GPUs");
    m.before("GPU " + std::to_string(place));
    found.gpus.push_back(gpt_cuda::measure_gpu(place));
    const auto& gpu = found.gpus.back();
    found.flops.push_back(gpu.peak_flops[static_cast<std::size_t>(hetsched::precision::fp32)]);
    found.memory_bytes.push_back(static_cast<double>(gpu.memory_bytes));
    if (r == 0 || m.how.each_rank || gpu.name != found.gpus[static_cast<std::size_t>(r) - 1].name) found.groups.push_back({r, r});
    found.groups.back().last = r;
    auto& layers = found.layers.emplace_back();
    auto& activation = found.activation.emplace_back();
    for (const int size : m.how.microbatch_sizes) {
      const auto costs = time_on_gpu(
          m.config, m.corpus, place,
          {.products = m.products,
           .half_boundaries = m.half_boundaries,
           .samples = size,
           .warmup = m.how.warmup,
           .repeats = m.how.repeats,
           .before = [&](int l) {
             m.before(layer_name(m.config, l) + " on GPU " + std::to_string(place) + ", microbatch size " + std::to_string(size));
           }});
      auto& took = layers.emplace_back();
      auto& bytes = activation.emplace_back();
      found.half.clear();
      for (const auto& l : costs) {
        took.push_back(l.took);
        bytes.push_back(l.activation_bytes);
        found.half.push_back(l.half_bytes);
      }
    }
  }
  // Ranks of a group have one GPU each if there are as many: what they share otherwise is no link.
  const auto time_link = [&](std::size_t a, std::size_t b, int from, int to) {
    const int here = places[static_cast<std::size_t>(from)], there = places[static_cast<std::size_t>(to)];
    m.before("copies from GPU " + std::to_string(here) + " to GPU " + std::to_string(there));
    found.links.push_back({static_cast<int>(a), static_cast<int>(b), gpt_cuda::time_gpu_link(here, there).samples});
  };
  for (std::size_t a = 0; a < found.groups.size(); ++a) {
    const auto& g = found.groups[a];
    if (g.size() > 1) time_link(a, a, g.first, g.first + 1);
    for (std::size_t b = a + 1; b < found.groups.size(); ++b) time_link(a, b, g.first, found.groups[b].first);
  }
}

hetsched::measured_time train::time_on_gpu(const hetsched::operator_row& row, int place, int warmup, int repeats) {
  using hetsched::number_format;
  const bool in_bf16 = row.format == number_format::bf16;
  if (row.name != "gemm" || row.sizes.batch != 1 || (!in_bf16 && row.format != number_format::fp32))
    throw hetsched::input_error("on GPUs only single products in fp32 and bf16 are timed");
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  auto seconds =
      gpt_cuda::time_gpu_product(place, {size(row.sizes.m), size(row.sizes.n), size(row.sizes.k)}, in_bf16, warmup + repeats);
  seconds.erase(seconds.begin(), seconds.begin() + warmup);
  return hetsched::median_and_spread(std::move(seconds));
}
