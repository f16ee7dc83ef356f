// SPDX-License-Identifier: Apache-2.0
// A small GPT of LibTorch's modules, its layers, its numbers, and what LibTorch alone makes of them.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/torch.hpp>

namespace small_gpt {

namespace nn = torch::nn;

constexpr int width = 16, length = 6, vocabulary = 11, samples = 2, layers = 8, microbatches = 8, steps = 12;

struct block_module : nn::Module {
  block_module() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    attention = register_module("attention", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    mlp = register_module("mlp", nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({width})), nn::Linear(width, 4 * width),
                                                nn::GELU(), nn::Linear(4 * width, width)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = attention(norm(x)).view({x.size(0), x.size(1), 6, width / 2}).transpose(1, 2).chunk(3, 1);
    const auto seen = torch::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    const auto y = x + out(seen.transpose(1, 2).reshape(x.sizes()));
    return y + mlp->forward(y);
  }
  nn::LayerNorm norm{nullptr};
  nn::Linear attention{nullptr}, out{nullptr};
  nn::Sequential mlp{nullptr};
};

struct tokens_module : nn::Module {
  tokens_module() {
    table = register_module("table", nn::Embedding(vocabulary, width));
    places = register_parameter("places", torch::randn({length, width}) * 0.1);
  }
  // Tokens come as floats.
  torch::Tensor forward(const torch::Tensor& x) { return table(x.to(torch::kLong)) + places; }
  nn::Embedding table{nullptr};
  torch::Tensor places;
};

// The layers of a small GPT, with the same numbers wherever they are made.
inline hetsched::torch_layer<> make_layer(int layer) {
  return hetsched::torch_seeded(static_cast<std::uint64_t>(layer) + 1, [&] {
    if (layer == 0) return hetsched::torch_layer(std::make_shared<tokens_module>());
    if (layer + 1 < layers) return hetsched::torch_layer(std::make_shared<block_module>());
    return hetsched::torch_layer(nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({width})), nn::Linear(width, vocabulary)));
  });
}
inline hetsched::tensor_shape shape_after(int layer) {
  if (layer < 0) return {samples, length};
  return {samples, length, static_cast<std::size_t>(layer + 1 < layers ? width : vocabulary)};
}
inline torch::Tensor cross_entropy(const torch::Tensor& y, const torch::Tensor& wanted) {
  return nn::functional::cross_entropy(y.flatten(0, 1), wanted.flatten());
}

inline hetsched::schedule one_f_one_b(int ranks) {
  std::vector<int> warmups;
  for (int r = ranks; r > 0; --r) warmups.push_back(r);
  return hetsched::one_f_one_b(warmups, microbatches);
}

struct batch {
  std::vector<torch::Tensor> inputs, targets;
};
inline batch numbers_of(int step) {
  batch b;
  for (int m = 0; m < microbatches; ++m) {
    const auto all = (torch::arange(samples * (length + 1)).view({samples, length + 1}) * (m + 3) + step) % vocabulary;
    b.inputs.push_back(all.narrow(1, 0, length).to(torch::kFloat).contiguous());
    b.targets.push_back(all.narrow(1, 1, length).contiguous());
  }
  return b;
}

inline const torch::optim::AdamWOptions adamw = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);

// The losses of the same model by LibTorch alone.
template <class Optimizer, class Options>
std::vector<double> losses_of_libtorch(const Options& options, int many = steps) {
  std::vector<hetsched::torch_layer<>> model;
  std::vector<torch::Tensor> parameters;
  for (int l = 0; l < layers; ++l) model.push_back(make_layer(l));
  for (auto& l : model)
    for (const auto& p : l.module().parameters()) parameters.push_back(p);
  Optimizer optimizer(parameters, options);
  std::vector<double> losses;
  for (int s = 0; s < many; ++s) {
    optimizer.zero_grad();
    double sum = 0;
    const auto b = numbers_of(s);
    for (std::size_t m = 0; m < microbatches; ++m) {
      auto x = dynamic_cast<tokens_module&>(model[0].module()).forward(b.inputs[m]);
      for (std::size_t l = 1; l + 1 < layers; ++l) x = dynamic_cast<block_module&>(model[l].module()).forward(x);
      const auto loss = cross_entropy(dynamic_cast<nn::SequentialImpl&>(model[layers - 1].module()).forward(x), b.targets[m]);
      sum += loss.item<double>();
      (loss / microbatches).backward();
    }
    losses.push_back(sum / microbatches);
    optimizer.step();
  }
  return losses;
}

}  // namespace small_gpt
