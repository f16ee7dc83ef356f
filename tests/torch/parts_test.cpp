// SPDX-License-Identifier: Apache-2.0
// Several tensors of LibTorch between stages, and such of other elements than parameters are.
#include <torch/torch.h>

// Of c10's logging, which has the names of the test's.
#undef CHECK

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/torch.hpp>

namespace {

namespace nn = torch::nn;
// Gradients are divided by the number of microbatches, a power of two: before rounding or behind it is the same.
constexpr int linears = 6, width = 16, length = 6, samples = 2, microbatches = 8, steps = 12;

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

std::shared_ptr<nn::LinearImpl> linear_of(int layer) {
  return hetsched::torch_seeded(static_cast<std::uint64_t>(layer) + 1, [] { return nn::Linear(width, width).ptr(); });
}
std::vector<torch::Tensor> waves_of(int step) {
  std::vector<torch::Tensor> all;
  for (int m = 0; m < microbatches; ++m)
    all.push_back(torch::sin(torch::arange(samples * length * width).view({samples, length, width}) * (0.1 * (m + 1)) + step));
  return all;
}
torch::Tensor squares(const torch::Tensor& y, const torch::Tensor& x) { return (y - 0.5 * x).square().mean(); }

/// The losses of LibTorch alone; forward(linears, input) -> output.
template <class Forward>
std::vector<double> losses_of_linears(const Forward& forward) {
  torch::set_num_threads(1);
  std::vector<std::shared_ptr<nn::LinearImpl>> model;
  std::vector<torch::Tensor> parameters;
  for (int l = 0; l < linears; ++l) {
    model.push_back(linear_of(l));
    for (const auto& p : model.back()->parameters()) parameters.push_back(p);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.5));
  std::vector<double> losses;
  for (int s = 0; s < steps; ++s) {
    optimizer.zero_grad();
    double sum = 0;
    for (const auto& x : waves_of(s)) {
      const auto loss = squares(forward(model, x), x);
      sum += loss.template item<double>();
      (loss / microbatches).backward();
    }
    losses.push_back(sum / microbatches);
    optimizer.step();
  }
  return losses;
}

/// The losses of a training on threads; layer(number) makes the layers, `behind` is the shape of what they hand on.
template <class Layer>
std::vector<double> losses_of_parts(const Layer& layer, const hetsched::boundary_shape& behind, const hetsched::schedule& order,
                                    int ranks) {
  torch::set_num_threads(1);
  std::vector<double> losses;
  using channels = hetsched::thread_communicator<torch::Tensor>;
  hetsched::run_on_threads(channels::connect(ranks), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<torch::Tensor>(
        hetsched::even_layout(linears, order, samples), layer, [&](int) { return behind; }, channel,
        hetsched::sgd{.learning_rate = 0.5});
    for (int s = 0; s < steps; ++s) {
      const auto x = waves_of(s);
      const auto report = trainer.step(x, x, hetsched::torch_loss(squares));
      if (channel.rank() == 0) losses.push_back(report.loss);
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("torch: hidden states and a mask of integers between stages, with LibTorch's losses and the same bits on any ranks") {
  using pair = std::tuple<torch::Tensor, hetsched::torch_tensor<std::int64_t>>;
  const auto masked = [](nn::LinearImpl& linear, const torch::Tensor& x, const torch::Tensor& m) {
    return x + torch::tanh(linear.forward(x)) * m.unsqueeze(-1).to(torch::kFloat);
  };
  const auto mask_of = [](const torch::Tensor& x) { return (x.sum(-1) > 0).to(torch::kLong); };
  const auto layer = [&](int l) -> hetsched::any_layer<torch::Tensor> {
    const auto linear = linear_of(l);
    if (l == 0)
      return hetsched::torch_parts_layer<torch::Tensor, pair>(linear, [=](const torch::Tensor& x) {
        return pair{linear->forward(x), mask_of(x)};
      });
    if (l + 1 == linears)
      return hetsched::torch_parts_layer<pair, torch::Tensor>(
          linear, [=](const pair& x) { return masked(*linear, std::get<0>(x), std::get<1>(x)); });
    return hetsched::torch_parts_layer<pair, pair>(linear, [=](const pair& x) {
      return pair{masked(*linear, std::get<0>(x), std::get<1>(x)), std::get<1>(x)};
    });
  };
  const auto expected = losses_of_linears([&](const auto& model, const torch::Tensor& x) {
    auto y = model[0]->forward(x);
    for (std::size_t l = 1; l < model.size(); ++l) y = masked(*model[l], y, mask_of(x));
    return y;
  });
  const auto behind = hetsched::packed_shape<torch::Tensor, pair>({{samples, length, width}, {samples, length}});
  CHECK(behind == hetsched::boundary_shape({samples, 6 + length * width + 2 * length}, {samples, 5 + length * width}));
  const auto one = losses_of_parts(layer, behind, hetsched::gpipe(1, microbatches), 1);
  CHECK(farthest(one, expected) < 1e-6);
  CHECK(one.back() < 0.5 * one.front());
  CHECK(losses_of_parts(layer, behind, hetsched::interleaved_1f1b(2, 3, microbatches), 2) == one);
  CHECK(losses_of_parts(layer, behind, hetsched::zb_h1(2, microbatches), 2) == one);
}

TEST_CASE("torch: boundaries in bf16 between parameters and gradients in fp32, with LibTorch's losses of the same rounding") {
  using halves = std::tuple<hetsched::torch_tensor<at::BFloat16>>;
  const auto computed = [](nn::LinearImpl& linear, const torch::Tensor& x) { return x + torch::tanh(linear.forward(x)); };
  const auto narrow = [](const torch::Tensor& x) { return x.to(torch::kBFloat16); };
  const auto wide = [](const torch::Tensor& x) { return x.to(torch::kFloat); };
  const auto layer = [&](int l) -> hetsched::any_layer<torch::Tensor> {
    const auto linear = linear_of(l);
    if (l == 0)
      return hetsched::torch_parts_layer<torch::Tensor, halves>(
          linear, [=](const torch::Tensor& x) { return halves{narrow(computed(*linear, x))}; });
    if (l + 1 == linears)
      return hetsched::torch_parts_layer<halves, torch::Tensor>(
          linear, [=](const halves& x) { return computed(*linear, wide(std::get<0>(x))); });
    return hetsched::torch_parts_layer<halves, halves>(
        linear, [=](const halves& x) { return halves{narrow(computed(*linear, wide(std::get<0>(x))))}; });
  };
  const auto libtorch = [&](bool rounded) {
    return losses_of_linears([&](const auto& model, torch::Tensor x) {
      for (std::size_t l = 0; l < model.size(); ++l) {
        x = computed(*model[l], x);
        if (rounded && l + 1 < model.size()) x = wide(narrow(x));
      }
      return x;
    });
  };
  const auto behind = hetsched::packed_shape<torch::Tensor, halves>({{samples, length, width}});
  CHECK(behind.output[1] < length * width * 0.6);
  CHECK(behind.gradient == behind.output);
  const auto one = losses_of_parts(layer, behind, hetsched::gpipe(1, microbatches), 1);
  CHECK(farthest(one, libtorch(true)) < 1e-6);
  CHECK(farthest(one, libtorch(false)) > 1e-5);
  CHECK(one.back() < 0.5 * one.front());
  CHECK(losses_of_parts(layer, behind, hetsched::interleaved_1f1b(2, 3, microbatches), 2) == one);
  CHECK(losses_of_parts(layer, behind, hetsched::zb_h1(2, microbatches), 2) == one);

  // What comes in, and goes back, is of 16 bits; what the layer adds up is not.
  const auto linear = linear_of(1);
  hetsched::torch_layer<torch::Tensor, halves, halves> inner(
      linear, [&](const halves& x) { return halves{narrow(computed(*linear, wide(std::get<0>(x))))}; });
  decltype(inner)::context c;
  const halves x{narrow(waves_of(0).front())};
  const auto dx = inner.backward(inner.forward(x, c), c);
  CHECK((std::get<0>(dx).scalar_type() == torch::kBFloat16));
  CHECK((inner.gradients()[0].scalar_type() == torch::kFloat));
  CHECK(!inner.gradients()[0].equal(wide(narrow(inner.gradients()[0]))));
}
