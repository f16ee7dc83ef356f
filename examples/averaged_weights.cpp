// SPDX-License-Identifier: Apache-2.0
// An optimizer of your own around one of the library's: it keeps a moving average of the weights, which an evaluation then uses
// in their place. The average is state like any other: cut with the plan, and part of checkpoints.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/hetsched.hpp>
#include <hetsched/runtime.hpp>

namespace {

struct tensor {
  using value_type = float;
  tensor() = default;
  explicit tensor(const hetsched::tensor_shape& s) : extents(s), values(s[0] * s[1]) {}
  const hetsched::tensor_shape& shape() const { return extents; }
  float* data() { return values.data(); }
  const float* data() const { return values.data(); }
  hetsched::tensor_shape extents;
  std::vector<float> values;
};

constexpr std::size_t width = 8;

/// y = x w, element by element.
struct gain {
  struct context {
    const tensor* input = nullptr;
  };
  tensor forward(const tensor& x, context& c) {
    c.input = &x;
    tensor y = x;
    for (std::size_t i = 0; i < width; ++i) y.values[i] *= weight[0].values[i];
    return y;
  }
  tensor backward(const tensor& dy, context& c) {
    tensor dx = dy;
    for (std::size_t i = 0; i < width; ++i) {
      gradient[0].values[i] += dy.values[i] * c.input->values[i];
      dx.values[i] *= weight[0].values[i];
    }
    return dx;
  }
  std::vector<tensor>& parameters() { return weight; }
  std::vector<tensor>& gradients() { return gradient; }
  std::vector<tensor> weight{tensor({1, width})}, gradient = weight;
};

/// Any optimizer, and a moving average of what it makes of the weights.
template <class Optimizer>
struct averaged {
  Optimizer own;
  double decay = 0.99;

  static std::string_view name() { return "averaged"; }
  std::vector<std::string_view> state_names() const {
    const auto inner = own.state_names();
    std::vector<std::string_view> names(inner.begin(), inner.end());
    names.push_back("average");
    return names;
  }
  std::vector<double> settings() const {
    const auto inner = own.settings();
    std::vector<double> all(inner.begin(), inner.end());
    all.push_back(decay);
    return all;
  }
  template <class Tensor>
  void update(Tensor& parameter, Tensor& gradient, std::span<Tensor> state, const hetsched::parameter_id& which,
              std::int64_t updates) const {
    own.update(parameter, gradient, state.first(state.size() - 1), which, updates);
    auto* const average = state.back().data();
    for (std::size_t i = 0; i < width; ++i) {
      const double now = parameter.data()[i];
      average[i] = static_cast<float>(updates == 1 ? now : decay * average[i] + (1 - decay) * now);
    }
  }
};

/// Puts averages in the place of weights, and back. For optimizers whose state is not sharded.
template <class Trainer>
void swap_averages(Trainer& trainer) {
  std::map<std::tuple<int, std::string, std::size_t>, std::span<std::byte>> averages;
  const std::string weight = "parameter.", average = "averaged.average.";
  auto slices = trainer.state();
  for (auto& s : slices)
    if (s.name.starts_with(average)) averages[{s.layer, s.name.substr(average.size()), s.first}] = s.bytes;
  for (auto& s : slices)
    if (s.name.starts_with(weight))
      std::ranges::swap_ranges(s.bytes, averages.at({s.layer, s.name.substr(weight.size()), s.first}));
}

}  // namespace

int main() {
  constexpr int layers = 6, microbatches = 4, steps = 400;
  const auto layout = hetsched::even_layout(layers, hetsched::one_f_one_b({3, 2, 1}, microbatches));
  const auto loss = [](const tensor& y, const tensor& wanted) {
    hetsched::loss_value<tensor> found{0, y};
    for (std::size_t i = 0; i < width; ++i) {
      const float d = y.values[i] - wanted.values[i];
      found.value += 0.5 * d * d;
      found.gradient.values[i] = d;
    }
    return found;
  };
  // Twice the input is wanted; what is trained on is noisy.
  const auto draw = [](std::uint64_t seed, double noise, std::vector<tensor>& inputs, std::vector<tensor>& targets) {
    hetsched::random_source random(seed);
    inputs.assign(microbatches, tensor({1, width}));
    targets = inputs;
    for (std::size_t m = 0; m < inputs.size(); ++m)
      for (std::size_t i = 0; i < width; ++i) {
        inputs[m].values[i] = static_cast<float>(random.uniform(-1, 1));
        targets[m].values[i] = 2 * inputs[m].values[i] + static_cast<float>(noise * random.uniform(-1, 1));
      }
  };
  using channels = hetsched::thread_communicator<tensor>;
  hetsched::run_on_threads(channels::connect(layout.ranks()), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<tensor>(
        layout,
        [](int) {
          gain layer;
          std::ranges::fill(layer.weight[0].values, 1.0F);
          return layer;
        },
        [](int) {
          return hetsched::tensor_shape{1, width};
        },
        channel, averaged<hetsched::sgd>{.own = {.learning_rate = 0.05}});
    std::vector<tensor> inputs, targets, test_inputs, test_targets;
    draw(1, 0, test_inputs, test_targets);
    for (int step = 0; step < steps; ++step) {
      draw(static_cast<std::uint64_t>(step) + 2, 1, inputs, targets);
      (void)trainer.step(inputs, targets, loss);
    }
    const double last = trainer.evaluate(test_inputs, test_targets, loss);
    swap_averages(trainer);
    const double average = trainer.evaluate(test_inputs, test_targets, loss);
    swap_averages(trainer);
    if (channel.rank() == 0) std::printf("loss without noise: %.5f by the last weights, %.5f by their average\n", last, average);
    // To go on as if nothing had been swapped.
    if (trainer.evaluate(test_inputs, test_targets, loss) != last) throw hetsched::error("the weights are not back");
  });
  return 0;
}
