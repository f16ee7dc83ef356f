// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/eigen.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <unsupported/Eigen/CXX11/Tensor>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include "dense.hpp"
#include "set_groups.hpp"
#include "training.hpp"

using namespace hetsched;

namespace {

static_assert(pipeline_tensor<eigen::matrix<float>> && pipeline_tensor<eigen::matrix<double>>);
static_assert(pipeline_tensor<Eigen::Tensor<float, 3, Eigen::RowMajor>>);
static_assert(pipeline_tensor<Eigen::Tensor<double, 1, Eigen::RowMajor, int>>);
static_assert(split_layer<eigen::linear<float>, eigen::matrix<float>>);
static_assert(pipeline_layer<eigen::activation<float>, eigen::matrix<float>>);

constexpr int layers = 7, width = 5;

template <class Real>
any_layer<eigen::matrix<Real>> make_layer(int layer) {
  if (layer % 2 == 1) return eigen::activation<Real>(layer % 4 == 1 ? eigen::elementwise::tanh : eigen::elementwise::relu);
  random_source random(static_cast<std::uint64_t>(layer) + 1);
  return eigen::linear<Real>(width, width, random);
}

template <class Real>
eigen::matrix<Real> drawn(std::uint64_t seed, Eigen::Index rows) {
  random_source random(seed);
  eigen::matrix<Real> m(rows, width);
  for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<Real>(random.uniform(-1, 1));
  return m;
}

/// Inputs and targets of a step.
template <class Real>
std::array<std::vector<eigen::matrix<Real>>, 2> batch(int step, int microbatches, Eigen::Index rows) {
  std::array<std::vector<eigen::matrix<Real>>, 2> found;
  for (int m = 0; m < microbatches; ++m)
    for (std::size_t k = 0; k < 2; ++k)
      found[k].push_back(drawn<Real>(static_cast<std::uint64_t>(1000 * step + 2 * m) + k, rows));
  return found;
}

template <class Real>
loss_value<eigen::matrix<Real>> squared_error(const eigen::matrix<Real>& y, const eigen::matrix<Real>& wanted) {
  const eigen::matrix<Real> off = y - wanted;
  const auto rows = static_cast<Real>(y.rows());
  return {.value = 0.5 * off.template cast<double>().squaredNorm() / static_cast<double>(rows), .gradient = off / rows};
}

template <class Real>
struct trained {
  std::vector<double> losses;
  std::vector<std::vector<eigen::matrix<Real>>> parameters = std::vector<std::vector<eigen::matrix<Real>>>(layers);
  friend bool operator==(const trained&, const trained&) = default;
};

/// One device, without any of the runtime's parts but the layers.
template <class Real>
trained<Real> train_alone(int steps, int microbatches, Eigen::Index rows, Real rate) {
  using tensor = eigen::matrix<Real>;
  std::vector<any_layer<tensor>> net;
  for (int l = 0; l < layers; ++l) net.push_back(make_layer<Real>(l));
  trained<Real> result;
  for (int step = 0; step < steps; ++step) {
    const auto [inputs, targets] = batch<Real>(step, microbatches, rows);
    double loss = 0;
    for (auto& layer : net)
      for (tensor& g : layer.gradients()) g.setZero();
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      std::vector<tensor> outputs{inputs[m]};
      std::vector<typename any_layer<tensor>::context> contexts;
      outputs.reserve(net.size() + 1);
      for (auto& layer : net) {
        contexts.push_back(layer.make_context());
        outputs.push_back(layer.forward(outputs.back(), contexts.back()));
      }
      auto found = squared_error<Real>(outputs.back(), targets[m]);
      loss += found.value;
      for (std::size_t l = net.size(); l-- > 0;) found.gradient = net[l].backward(found.gradient, contexts[l]);
    }
    for (auto& layer : net) {
      auto gradients = layer.gradients();
      std::size_t k = 0;
      for (tensor& p : layer.parameters()) p -= rate * (gradients[k++].get() * static_cast<Real>(1.0 / microbatches));
    }
    result.losses.push_back(loss / microbatches);
  }
  for (std::size_t l = 0; l < net.size(); ++l)
    for (const tensor& p : net[l].parameters()) result.parameters[l].push_back(p);
  return result;
}

/// Ranks on threads; `rows` of each data rank.
template <class Real>
trained<Real> train(const training_layout& layout, int steps, Real rate) {
  using tensor = eigen::matrix<Real>;
  using channel = thread_communicator<tensor>;
  std::vector<trained<Real>> by_rank(static_cast<std::size_t>(layout.ranks()));
  const auto& line = layout.pipelines[0];
  run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
    auto trainer = make_trainer<tensor>(
        layout, [](int layer) { return make_layer<Real>(layer); },
        [](int, int rows) {
          return tensor_shape{static_cast<std::size_t>(rows), width};
        },
        comm, sgd{.learning_rate = static_cast<double>(rate)});
    auto& own = by_rank[static_cast<std::size_t>(comm.rank())];
    for (int step = 0; step < steps; ++step) {
      auto [inputs, targets] = batch<Real>(step, line.order.microbatches, line.microbatch_size);
      const auto samples = trainer.samples();
      for (auto* all : {&inputs, &targets})
        for (auto& m : *all) m = tensor(m.middleRows(samples.first, samples.size()));
      own.losses.push_back(trainer.step(inputs, targets, squared_error<Real>).loss);
    }
    for (const auto& [number, layer] : trainer.layers())
      for (const tensor& p : layer->parameters()) own.parameters[static_cast<std::size_t>(number)].push_back(p);
  });
  auto all = by_rank[0];
  for (const auto& r : by_rank) {
    CHECK(r.losses == all.losses);
    for (std::size_t l = 0; l < layers; ++l) {
      if (all.parameters[l].empty()) all.parameters[l] = r.parameters[l];
      if (!r.parameters[l].empty()) CHECK(r.parameters[l] == all.parameters[l]);
    }
  }
  return all;
}

template <class Real>
void check_bits() {
  constexpr int microbatches = 4, rows = 3, steps = 3;
  const auto expected = train_alone<Real>(steps, microbatches, rows, Real{0.125});
  CHECK(expected.losses.front() > expected.losses.back());
  for (const auto* name : {"gpipe", "1f1b", "zb_h1", "zb_v", "interleaved_1f1b"})
    for (const int ranks : {1, 2, 3}) {
      if (ranks == 3 && std::string(name) == "interleaved_1f1b") continue;  // four microbatches do not go round three ranks
      CAPTURE(name);
      CAPTURE(ranks);
      CHECK(train<Real>(even_layout(layers, test::schedule_of(name, ranks, microbatches), rows), steps, Real{0.125}) == expected);
    }
}

}  // namespace

TEST_CASE("[threads] layers on Eigen's matrices train as on one device, to the last bit") {
  check_bits<float>();
  check_bits<double>();
}

TEST_CASE("[threads] Eigen's matrices are cut by rows between stages of unlike data degrees") {
  constexpr int microbatches = 4, rows = 6, steps = 3;
  const auto expected = train_alone<double>(steps, microbatches, rows, 0.125);
  auto layout = even_layout(layers, test::schedule_of("1f1b", 3, microbatches), rows);
  test::set_groups(layout.pipelines[0], &group_layout::degrees, {{.data = 2}, {.data = 1}, {.data = 3}});
  validate(layout);
  const auto found = train<double>(layout, steps, 0.125);
  for (std::size_t i = 0; i < steps; ++i) CHECK(found.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-13));
  for (std::size_t l = 0; l < layers; ++l)
    for (std::size_t p = 0; p < expected.parameters[l].size(); ++p)
      CHECK((found.parameters[l].at(p) - expected.parameters[l][p]).cwiseAbs().maxCoeff() < 1e-13);
}

TEST_CASE("gradients on Eigen are slopes of the loss") {
  using tensor = eigen::matrix<double>;
  const tensor x = drawn<double>(1, 4), wanted = drawn<double>(2, 4);
  const auto loss_of = [&](auto& layer, const tensor& in) {
    typename std::decay_t<decltype(layer)>::context c;
    return squared_error<double>(layer.forward(in, c), wanted).value;
  };
  const auto check = [&](auto layer) {
    typename decltype(layer)::context c;
    const auto dy = squared_error<double>(layer.forward(x, c), wanted).gradient;
    const tensor dx = layer.backward(dy, c);
    constexpr double step = 1e-6;
    const auto slope = [&](double& at, auto now) {
      const double before = at;
      at = before + step;
      const double up = now();
      at = before - step;
      const double down = now();
      at = before;
      return (up - down) / (2 * step);
    };
    tensor moved = x;
    for (Eigen::Index i = 0; i < x.size(); ++i)
      CHECK(slope(moved.data()[i], [&] { return loss_of(layer, moved); }) == doctest::Approx(dx.data()[i]).epsilon(1e-6));
    std::size_t k = 0;
    auto&& gradients = layer.gradients();
    for (tensor& p : layer.parameters()) {
      for (Eigen::Index i = 0; i < p.size(); ++i)
        CHECK(slope(p.data()[i], [&] { return loss_of(layer, x); }) == doctest::Approx(gradients[k].data()[i]).epsilon(1e-6));
      ++k;
    }
    return k;
  };
  random_source random(3);
  CHECK(check(eigen::linear<double>(width, width, random)) == 2);
  CHECK(check(eigen::activation<double>(eigen::elementwise::tanh)) == 0);
  CHECK(check(eigen::activation<double>(eigen::elementwise::relu)) == 0);
}

TEST_CASE("weights are the same numbers in float, rounded") {
  random_source a(9), b(9);
  eigen::linear<float> small(3, 4, a);
  eigen::linear<double> large(3, 4, b);
  CHECK(small.parameters()[0] == large.parameters()[0].cast<float>());
  CHECK(small.parameters()[1].isZero(0));
  CHECK(large.parameters()[0].cwiseAbs().maxCoeff() <= 1);
  CHECK(large.parameters()[0].norm() > 0);
}

TEST_CASE("shapes of Eigen's matrices and tensors") {
  using matrix_traits = tensor_traits<eigen::matrix<float>>;
  using tensor = Eigen::Tensor<double, 3, Eigen::RowMajor>;
  using traits = tensor_traits<tensor>;
  const auto m = matrix_traits::make({2, 3});
  CHECK(matrix_traits::shape(m) == std::array<std::size_t, 2>{2, 3});
  CHECK(matrix_traits::shape(matrix_traits::make({7})) == std::array<std::size_t, 2>{1, 7});
  CHECK(matrix_traits::shape(matrix_traits::make({1, 1, 2, 3})) == std::array<std::size_t, 2>{2, 3});
  CHECK_THROWS_WITH_AS(matrix_traits::make({4, 2, 3}), doctest::Contains("expected at most 2"), input_error);

  auto t = traits::make({2, 3, 4});
  CHECK(traits::shape(t) == std::array<std::size_t, 3>{2, 3, 4});
  CHECK(traits::shape(traits::make({1, 5})) == std::array<std::size_t, 3>{1, 1, 5});
  CHECK(traits::shape(tensor()) == std::array<std::size_t, 3>{0, 0, 0});
  CHECK(tensor_traits<Eigen::Tensor<float, 1, Eigen::RowMajor>>::shape(
            tensor_traits<Eigen::Tensor<float, 1, Eigen::RowMajor>>::make({1, 5})) == std::array<std::size_t, 1>{5});
  // The last extent lies side by side.
  t(1, 2, 3) = 8;
  t(1, 2, 2) = 7;
  CHECK(traits::data(t)[23] == 8);
  CHECK(traits::data(t)[22] == 7);
}

TEST_CASE("any tensor's numbers are a matrix") {
  test::matrix<float> own(2, 3);
  eigen::map(own)(1, 2) = 4;
  CHECK(own(1, 2) == 4);
  CHECK(eigen::map(std::as_const(own)).sum() == 4);
  Eigen::Tensor<double, 3, Eigen::RowMajor> t(2, 3, 4);
  t.setConstant(1);
  CHECK(eigen::map(t).rows() == 6);
  CHECK(eigen::map(t).cols() == 4);
  eigen::map(t)(5, 3) = 9;
  CHECK(t(1, 2, 3) == 9);
}
