// SPDX-License-Identifier: Apache-2.0
#pragma once

// NeuSight's whole models: transformers of an eager framework in fp32. Its program starts a clock for the forward pass, stops it
// before the loss, and starts it again for the backward pass, the loss's included, which adds to the gradients of earlier passes.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer_operators.hpp>

namespace validation {

using namespace hetsched;

/// A transformer and the library that runs it.
struct whole_model : transformer {
  eager_library library{};
};

struct kernel_list {
  std::vector<operator_use> forward{}, backward{};
};

/// One pass over `batch` sequences on one of `tensor` devices that share every layer's heads and inner width.
[[nodiscard]] inline kernel_list kernels_of(const whole_model& m, std::int64_t batch, std::int64_t sequence, bool training,
                                            bool fused, std::int64_t tensor = 1) {
  transformer sizes = m;
  sizes.sequence = sizes.positions = static_cast<int>(sequence);
  const transformer_operators model(sizes, {.format = number_format::fp32,
                                            .fusion = fused ? elementwise_fusion::absorbed : elementwise_fusion::none,
                                            .training = training,
                                            .adds_gradients = true,
                                            .library = m.library});
  const int layers = model.chain().size();
  kernel_list list;
  for (int i = 0; i < layers; ++i) {
    const bool head = i == layers - 1;
    // BERT is trained with its head for masked words and queried with a small classifier, which is left out.
    if (head && !training && m.head == output_head::masked_language_model) continue;
    auto kernels = model.operators(i, {.samples = batch, .tensor = static_cast<int>(tensor)});
    if (head && training) kernels.forward.pop_back();  // the loss
    list.forward.insert(list.forward.end(), kernels.forward.begin(), kernels.forward.end());
    list.backward.insert(list.backward.end(), kernels.backward.begin(), kernels.backward.end());
  }
  return list;
}

[[nodiscard]] inline double seconds(const tile_device& d, const std::vector<operator_use>& kernels, const tile_constants& c) {
  double sum = 0;
  for (const auto& k : kernels) sum += k.times * predict_operator(d, k.op, c).seconds;
  return sum;
}

/// The models of the table whose sizes are published.
[[nodiscard]] inline bool find_model(const std::string& name, whole_model& m) {
  if (name == "bert_large")
    m = {bert({.layers = 24, .hidden = 1024, .heads = 16}), eager_bert()};
  else if (name == "gpt2_large")
    m = {gpt({.layers = 36, .hidden = 1280, .heads = 20}), eager_gpt2()};
  else if (name == "gpt3_xl")
    m = {gpt({.layers = 24, .hidden = 3072, .heads = 24}), eager_gpt2()};
  else if (name == "gpt3_27")
    m = {gpt({.layers = 32, .hidden = 2560, .heads = 32}), eager_gpt2()};
  else if (name == "opt_13")
    m = {gpt({.layers = 24, .hidden = 2048, .heads = 32, .vocab = 50272}), eager_opt()};
  else
    return false;
  return true;
}

}  // namespace validation
