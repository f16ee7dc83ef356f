// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/hardware.hpp>

#include <gpt_cuda/layers.hpp>
#include <gpt_cuda/on_gpus.hpp>

namespace gpt_cuda {

template <hetsched::cuda_api Api>
std::vector<layer_costs> operations<Api>::time_layers(hetsched::cuda_devices<Api>& devices, int place, const timing& t) {
  hetsched::cuda_backend<Api> own(devices, place, "layers that are timed");
  const auto bound = own.bind();
  const auto q = own.compute_queue();
  const auto numbers = own.make_numbers(1);
  const auto targets = upload(q, t.data.targets);
  const auto in_use = [&] { return place < 0 ? std::size_t{0} : devices.memory(place).now_bytes; };
  const int runs = t.warmup + t.repeats;
  std::vector<layer_costs> found;
  tensor<Api> input = upload(q, t.data.inputs);
  std::vector<int> like;  // layers that are timed
  for (int l = 0; l < t.model.layer_count(); ++l) {
    const bool last = l + 1 == t.model.layer_count();
    const auto same = std::find_if(like.begin(), like.end(), [&](int k) {
      return k > 0 && l > 0 && !last && t.model.has_experts(k - 1) == t.model.has_experts(l - 1);
    });
    if (same != like.end()) {
      found.push_back(found[static_cast<std::size_t>(*same)]);
      continue;
    }
    like.push_back(l);
    t.before(l);
    const auto parameters = make_parameters<Api>(t.model, l, t.first_weights(l), q);
    auto layer = gpt_cuda::make_layer<Api>(t.model, l, parameters, {}, q);
    auto context = layer.make_context();
    auto clock = own.make_clock(std::vector<std::string>(static_cast<std::size_t>(2 * runs), "layer " + std::to_string(l)));
    tensor<Api> output;
    layer_costs one;
    for (int run = 0; run < runs; ++run) {
      const auto k = static_cast<std::size_t>(2 * run);
      const auto before = in_use();
      tensor<Api> gradient;
      clock.time(k, [&] {
        output = layer.forward(input, context, q);
        if (run == 0) one.activation_bytes = static_cast<hetsched::bytes_t>(in_use() - before);
        one.took.output_bytes = static_cast<hetsched::bytes_t>(output.buffer().bytes());
        if (last) gradient = cross_entropy_part(std::move(output), targets, targets.shape()[0], q, *numbers.data());
      });
      // Outputs are of an ordinary size.
      clock.time(k + 1, [&] { (void)layer.backward(last ? gradient : output, context, q); });
    }
    q.finish();
    clock.read();
    std::vector<double> forward_s, backward_s;
    for (int run = t.warmup; run < runs; ++run) {
      const auto k = static_cast<std::size_t>(2 * run);
      forward_s.push_back(clock.end_s(k) - clock.start_s(k));
      backward_s.push_back(clock.end_s(k + 1) - clock.start_s(k + 1));
    }
    one.took.forward = hetsched::median_and_spread(std::move(forward_s));
    one.took.backward = hetsched::median_and_spread(std::move(backward_s));
    for (const auto& p : *parameters) {
      one.half_bytes += p.rounded ? static_cast<hetsched::bytes_t>(p.rounded->half.buffer().bytes()) : 0;
      one.took.parameter_bytes += static_cast<hetsched::bytes_t>(p.value.buffer().bytes());
    }
    found.push_back(one);
    input = std::move(output);
  }
  return found;
}

/// Seconds of each of `runs` products (m x k)(k x n), by the clock of the GPU.
/// Throws: cuda_error.
template <class Real, hetsched::cuda_api Api>
[[nodiscard]] std::vector<double> time_product(hetsched::cuda_devices<Api>& devices, int place, const product_sizes& sizes,
                                               int runs) {
  hetsched::cuda_backend<Api> own(devices, place, "products that are timed");
  const auto bound = own.bind();
  const auto q = own.compute_queue();
  const auto ones = [&](std::size_t rows, std::size_t columns) {
    matrix<Api, Real> made(rows, columns, q);
    if constexpr (std::is_same_v<Real, bf16>) {
      tensor<Api> wide(rows, columns, q);
      each(q, wide.size(), fill_with{}, 1.0f, out(wide));
      each(q, made.size(), round_to_bf16{}, in(wide), out(made));
    } else {
      each(q, made.size(), fill_with{}, 1.0f, out(made));
    }
    return made;
  };
  const auto a = ones(sizes.m, sizes.k), b = ones(sizes.k, sizes.n);
  tensor<Api> c(sizes.m, sizes.n, q);
  const auto count = static_cast<std::size_t>(runs);
  auto clock = own.make_clock(std::vector<std::string>(count, "product"));
  for (std::size_t run = 0; run < count; ++run) clock.time(run, [&] { multiply(q, c, 0, factor_of(a), factor_of(b)); });
  q.finish();
  clock.read();
  std::vector<double> seconds;
  for (std::size_t run = 0; run < count; ++run) seconds.push_back(clock.end_s(run) - clock.start_s(run));
  return seconds;
}

/// FLOP/s of products of square matrices of `n` rows, the best of a few.
/// Throws: cuda_error.
template <class Real, hetsched::cuda_api Api>
[[nodiscard]] double rate_of_products(hetsched::cuda_devices<Api>& devices, int place, int n) {
  const auto rows = static_cast<std::size_t>(n);
  const auto seconds = time_product<Real>(devices, place, {rows, rows, rows}, 8);
  return 2.0 * n * n * n / *std::min_element(seconds.begin(), seconds.end());
}

/// A GPU with its rates as measured: of products of `n` rows, and of copies within it, which read and write.
/// Throws: cuda_error.
template <hetsched::cuda_query_api Api>
[[nodiscard]] hetsched::device measure_device(hetsched::cuda_devices<Api>& devices, int place, int n,
                                              const hetsched::copy_options& copies = {}) {
  auto found = hetsched::describe_device(devices, place);
  found.peak_flops[static_cast<std::size_t>(hetsched::precision::fp32)] = rate_of_products<float>(devices, place, n);
  found.peak_flops[static_cast<std::size_t>(hetsched::precision::bf16)] = rate_of_products<bf16>(devices, place, n);
  const auto largest = hetsched::profile_copies(devices, place, place, copies).back();
  found.memory_bandwidth = 2 * static_cast<double>(largest.bytes) / largest.took.median_s;
  return found;
}

}  // namespace gpt_cuda
