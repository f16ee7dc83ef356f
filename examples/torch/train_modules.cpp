// SPDX-License-Identifier: Apache-2.0
// Trains eight modules of LibTorch with its own AdamW, on one rank and in pipelines of two and four: the same bits.
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/torch.hpp>

namespace nn = torch::nn;

constexpr int layers = 8, microbatches = 8, samples = 4, features = 32, classes = 10;

int main() {
  torch::set_num_threads(1);  // ranks are threads already
  const auto make_layer = [](int layer) {
    // Ranks make their layers at the same time, and torch's generator is one for all of them.
    return hetsched::torch_seeded(static_cast<std::uint64_t>(layer), [&] {
      const int outputs = layer + 1 < layers ? features : classes;
      return hetsched::torch_layer(
          nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({features})), nn::Linear(features, outputs), nn::GELU()));
    });
  };
  const auto shape_after = [](int layer) {
    return hetsched::tensor_shape{samples, static_cast<std::size_t>(layer + 1 < layers ? features : classes)};
  };
  torch::manual_seed(1);
  std::vector<torch::Tensor> inputs, targets;
  for (int m = 0; m < microbatches; ++m) {
    inputs.push_back(torch::randn({samples, features}));
    targets.push_back(torch::randint(classes, {samples}));
  }
  const auto loss = hetsched::torch_loss(
      [](const torch::Tensor& y, const torch::Tensor& wanted) { return nn::functional::cross_entropy(y, wanted); });
  const hetsched::torch_optimizer<torch::optim::AdamW> adamw{torch::optim::AdamWOptions(1e-2)};

  const auto train = [&](int ranks, const hetsched::schedule& order) {
    std::vector<double> losses;
    using channels = hetsched::thread_communicator<torch::Tensor>;
    hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
      auto trainer = hetsched::make_trainer<torch::Tensor>(hetsched::even_layout(layers, order), make_layer, shape_after, channel,
                                                           adamw, {.clip_norm = 1});
      for (int step = 0; step < 40; ++step) {
        const auto report = trainer.step(inputs, targets, loss);
        if (channel.rank() == 0) losses.push_back(report.loss);
      }
    });
    return losses;
  };
  const auto one = train(1, hetsched::gpipe(1, microbatches));
  const bool same =
      train(2, hetsched::zb_h1(2, microbatches)) == one && train(4, hetsched::interleaved_1f1b(4, 2, microbatches)) == one;
  std::printf("loss %.3f, then %.3f; %s\n", one.front(), one.back(), same ? "the same bits on 1, 2 and 4 ranks" : "other bits");
  return same ? 0 : 1;
}
