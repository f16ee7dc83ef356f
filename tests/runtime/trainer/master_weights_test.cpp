// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/master_weights.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include "../training.hpp"

using namespace hetsched;

namespace {

/// IEEE binary16: nothing but conversions.
class half {
 public:
  half() = default;
  explicit half(float f) {
    __extension__ const auto h = static_cast<_Float16>(f);
    std::memcpy(&bits_, &h, sizeof bits_);
  }
  explicit operator float() const {
    __extension__ _Float16 h;
    std::memcpy(&h, &bits_, sizeof h);
    return static_cast<float>(h);
  }
  friend bool operator==(const half&, const half&) = default;

 private:
  std::uint16_t bits_ = 0;
};

struct row {
  using value_type = half;
  row() = default;
  explicit row(const tensor_shape& s) : extents{s.at(0), s.at(1)}, values(s[0] * s[1]) {}
  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return extents; }
  [[nodiscard]] half* data() { return values.data(); }
  [[nodiscard]] const half* data() const { return values.data(); }
  std::array<std::size_t, 2> extents{};
  std::vector<half> values;
};
static_assert(optimizer<master_weights<adamw>, row>);

float wide(half h) { return static_cast<float>(h); }

}  // namespace

TEST_CASE("master weights: the update of floats, rounded; what is below the rounding of a weight adds up") {
  constexpr std::size_t n = 7;
  random_source random(3);
  master_weights<adamw> o({.learning_rate = 1e-5, .weight_decay = 0.1});
  CHECK(o.state_names() == std::vector<std::string>{"first_moment_high", "first_moment_low", "second_moment_high",
                                                    "second_moment_low", "master_high", "master_low"});
  row p(tensor_shape{1, n}), g(tensor_shape{1, n});
  for (auto& x : p.values) x = half(static_cast<float>(random.uniform(0.5, 1)));
  std::vector<row> state(o.state_names().size(), row(tensor_shape{1, n}));
  test::matrix<float> floats(1, n), slope(1, n);
  std::vector<test::matrix<float>> moments(2, test::matrix<float>(1, n));
  for (std::size_t i = 0; i < n; ++i) floats.data()[i] = wide(p.values[i]);
  const auto begin = p;
  for (int update = 1; update <= 300; ++update) {
    o.gradient_factor = update % 2 == 0 ? 1 : 0.25;
    for (std::size_t i = 0; i < n; ++i) {
      g.values[i] = half(static_cast<float>(random.uniform(0.5, 1.5) / o.gradient_factor));
      slope.data()[i] = static_cast<float>(wide(g.values[i]) * o.gradient_factor);
    }
    o.update(p, g, std::span<row>(state), {}, update);
    o.own.update(floats, slope, std::span<test::matrix<float>>(moments), {}, update);
    for (std::size_t i = 0; i < n; ++i) REQUIRE(p.values[i] == half(floats.data()[i]));
    // One step is less than half of what tells two weights apart.
    if (update == 1) CHECK(p.values == begin.values);
  }
  for (std::size_t i = 0; i < n; ++i) CHECK(wide(p.values[i]) < wide(begin.values[i]) - 0.002f);
}

namespace {

/// y = x w, element by element, in floats.
struct gain {
  struct context {
    const row* input = nullptr;
  };
  explicit gain(int layer) : weights(1, row(tensor_shape{1, 4})), sums(weights) {
    for (std::size_t i = 0; i < 4; ++i) weights[0].values[i] = half(1 + 0.125f * static_cast<float>(layer + static_cast<int>(i)));
  }
  row forward(const row& x, context& c) {
    c.input = &x;
    row y = x;
    for (std::size_t k = 0; k < y.values.size(); ++k) y.values[k] = half(wide(x.values[k]) * wide(weights[0].values[k % 4]));
    return y;
  }
  row backward(const row& dy, context& c) {
    row dx = dy;
    for (std::size_t k = 0; k < dy.values.size(); ++k) {
      const float d = wide(dy.values[k]);
      sums[0].values[k % 4] = half(wide(sums[0].values[k % 4]) + d * wide(c.input->values[k]));
      dx.values[k] = half(d * wide(weights[0].values[k % 4]));
    }
    return dx;
  }
  std::vector<row>& parameters() { return weights; }
  std::vector<row>& gradients() { return sums; }
  std::vector<row> weights, sums;
};

constexpr int layers = 4, microbatches = 4, rows = 2;

/// The weights after some steps where inputs are `input` and the loss has the gradient `slope`, everywhere.
std::vector<std::vector<half>> trained(const training_layout& layout, const trainer_options& options, double slope, int steps,
                                       double input = 1) {
  std::vector<std::vector<half>> weights(layers);
  using channel = thread_communicator<row>;
  run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
    auto trainer = make_trainer<row>(
        layout, [](int l) { return gain(l); },
        [](int, int n) {
          return tensor_shape{static_cast<std::size_t>(n), 4};
        },
        comm, master_weights<adamw>({.learning_rate = 1e-4, .epsilon = 1e-12}), options);
    const auto mine = trainer.samples();
    row one(tensor_shape{static_cast<std::size_t>(mine.size()), 4});
    for (auto& v : one.values) v = half(static_cast<float>(input));
    const std::vector<row> inputs(microbatches, one), targets = inputs;
    for (int step = 0; step < steps; ++step) {
      const auto report =
          trainer.step(std::span<const row>(inputs), std::span<const row>(targets), [&](const row& y, const row&) {
            loss_value<row> found{1, y};
            for (auto& v : found.gradient.values) v = half(static_cast<float>(slope));
            return found;
          });
      CHECK(report.updated);
    }
    if (comm.rank() % 2 == 0 || layout.ranks() < 4)
      for (const auto& [number, layer] : trainer.layers()) weights[static_cast<std::size_t>(number)] = layer->weights[0].values;
  });
  return weights;
}

}  // namespace

TEST_CASE("[threads] master weights: the same bits on one rank, several stages, and with state shared out by data ranks") {
  const auto one = even_layout(layers, test::schedule_of("1f1b", 1, microbatches), rows);
  const auto expected = trained(one, {.clip_norm = 0.5}, 1, 20);
  CHECK(trained(even_layout(layers, test::schedule_of("1f1b", 2, microbatches), rows), {.clip_norm = 0.5}, 1, 20) == expected);
  auto wide_layout = even_layout(layers, test::schedule_of("1f1b", 2, microbatches), rows);
  wide_layout.pipelines[0].groups.assign(2, {.degrees = {.data = 2}});
  validate(wide_layout);
  const auto whole = trained(wide_layout, {}, 1, 20);
  CHECK(trained(wide_layout, {.shard_optimizer = true}, 1, 20) == whole);
  CHECK(whole != trained(wide_layout, {}, -1, 20));
}

TEST_CASE("[threads] a scaled loss keeps gradients that vanish in 16 bits without") {
  const auto layout = even_layout(layers, test::schedule_of("1f1b", 2, microbatches), rows);
  // A weight's gradient is the square of this, times a few gains; the least half is 6e-8.
  constexpr double small = 5e-5;
  constexpr int steps = 100;
  const auto still = trained(layout, {}, 0, steps);
  CHECK(trained(layout, {}, small, steps, small) == still);
  const auto moved = trained(layout, {.scaling = loss_scaling::dynamic()}, small, steps, small);
  // Adam's steps have the learning rate's size, 0.01 in all.
  for (std::size_t l = 0; l < layers; ++l)
    for (std::size_t i = 0; i < 4; ++i) CHECK(wide(moved[l][i]) == doctest::Approx(wide(still[l][i]) - 0.01f).epsilon(1e-3));
}
