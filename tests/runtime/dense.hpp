// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/measured.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

namespace hetsched::test {

/// Rows x columns.
template <class Real>
class matrix {
 public:
  using value_type = Real;
  matrix() = default;
  explicit matrix(const tensor_shape& shape) : matrix(shape.at(0), shape.at(1)) {}
  matrix(std::size_t rows, std::size_t columns) : shape_{rows, columns}, data_(rows * columns) {}
  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return shape_; }
  [[nodiscard]] Real* data() { return data_.data(); }
  [[nodiscard]] const Real* data() const { return data_.data(); }
  [[nodiscard]] std::size_t rows() const { return shape_[0]; }
  [[nodiscard]] std::size_t columns() const { return shape_[1]; }
  Real& operator()(std::size_t i, std::size_t j) { return data_[i * shape_[1] + j]; }
  Real operator()(std::size_t i, std::size_t j) const { return data_[i * shape_[1] + j]; }
  friend bool operator==(const matrix&, const matrix&) = default;

 private:
  std::array<std::size_t, 2> shape_{};
  std::vector<Real> data_;
};

template <class Real>
matrix<Real> random_matrix(random_source& random, std::size_t rows, std::size_t columns) {
  matrix<Real> m(rows, columns);
  for (std::size_t k = 0; k < rows * columns; ++k) m.data()[k] = static_cast<Real>(random.uniform(-1, 1));
  return m;
}

/// y = x W; points to its input. Can put its weight gradient off.
template <class Real>
struct linear {
  using tensor = matrix<Real>;
  struct context {
    const tensor* input = nullptr;
  };
  linear(std::size_t in, std::size_t out, random_source& random)
      : weights{random_matrix<Real>(random, in, out)}, sums{tensor(in, out)} {}
  tensor forward(const tensor& x, context& c) {
    c.input = &x;
    const auto& w = weights[0];
    tensor y(x.rows(), w.columns());
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < w.columns(); ++j) {
        Real sum = 0;
        for (std::size_t k = 0; k < w.rows(); ++k) sum += x(i, k) * w(k, j);
        y(i, j) = sum;
      }
    return y;
  }
  tensor backward_input(const tensor& dy, context&) {
    const auto& w = weights[0];
    tensor dx(dy.rows(), w.rows());
    for (std::size_t i = 0; i < dy.rows(); ++i)
      for (std::size_t k = 0; k < w.rows(); ++k) {
        Real sum = 0;
        for (std::size_t j = 0; j < w.columns(); ++j) sum += dy(i, j) * w(k, j);
        dx(i, k) = sum;
      }
    return dx;
  }
  void backward_weight(const tensor& dy, context& c) {
    for (std::size_t i = 0; i < dy.rows(); ++i)
      for (std::size_t k = 0; k < sums[0].rows(); ++k)
        for (std::size_t j = 0; j < sums[0].columns(); ++j) sums[0](k, j) += (*c.input)(i, k) * dy(i, j);
  }
  tensor backward(const tensor& dy, context& c) {
    auto dx = backward_input(dy, c);
    backward_weight(dy, c);
    return dx;
  }
  std::vector<tensor>& parameters() { return weights; }
  std::vector<tensor>& gradients() { return sums; }
  std::vector<tensor> weights, sums;
};

/// y = tanh(x) * gain, element by element; keeps tanh(x). Its backward is whole.
template <class Real>
struct activation {
  using tensor = matrix<Real>;
  struct context {
    tensor kept;
  };
  activation() : gain{tensor(1, 1)}, sum{tensor(1, 1)} { gain[0](0, 0) = static_cast<Real>(1.25); }
  tensor forward(const tensor& x, context& c) {
    tensor y = x;
    c.kept = x;
    for (std::size_t k = 0; k < x.rows() * x.columns(); ++k) {
      c.kept.data()[k] = std::tanh(x.data()[k]);
      y.data()[k] = c.kept.data()[k] * gain[0](0, 0);
    }
    return y;
  }
  tensor backward(const tensor& dy, context& c) {
    tensor dx = dy;
    for (std::size_t k = 0; k < dy.rows() * dy.columns(); ++k) {
      const Real t = c.kept.data()[k];
      dx.data()[k] = dy.data()[k] * gain[0](0, 0) * (1 - t * t);
      sum[0](0, 0) += dy.data()[k] * t;
    }
    return dx;
  }
  std::vector<tensor>& parameters() { return gain; }
  std::vector<tensor>& gradients() { return sum; }
  std::vector<tensor> gain, sum;
};

template <class Real>
using dense_stage = layer_list<matrix<Real>, any_layer<matrix<Real>>>;

/// A network, its microbatches and its loss, half the squared distance to the target.
template <class Real>
struct task {
  using tensor = matrix<Real>;
  static constexpr std::size_t rows = 2;

  /// layers[s] pairs of a linear and an activation in stage s; widths differ from stage to stage.
  task(std::uint64_t from, std::vector<int> counts, int microbatches) : layers(std::move(counts)), seed(from) {
    random_source random(from + 1);
    for (std::size_t s = 0; s <= layers.size(); ++s) widths.push_back(static_cast<std::size_t>(random.integer(1, 5)));
    for (int m = 0; m < microbatches; ++m) {
      inputs.push_back(random_matrix<Real>(random, rows, widths.front()));
      targets.push_back(random_matrix<Real>(random, rows, widths.back()));
    }
  }

  [[nodiscard]] dense_stage<Real> stage(int s) const {
    random_source random(seed + 100 + static_cast<std::uint64_t>(s));
    std::vector<any_layer<tensor>> list;
    const auto k = static_cast<std::size_t>(s);
    for (int i = 0; i < layers[k]; ++i) {
      list.emplace_back(linear<Real>(widths[i == 0 ? k : k + 1], widths[k + 1], random));
      list.emplace_back(activation<Real>());
    }
    return dense_stage<Real>(std::move(list));
  }
  [[nodiscard]] std::vector<tensor_shape> boundaries() const {
    std::vector<tensor_shape> shapes;
    for (std::size_t s = 1; s + 1 < widths.size(); ++s) shapes.push_back({rows, widths[s]});
    return shapes;
  }
  static loss_value<tensor> loss(const tensor& output, const tensor& target) {
    loss_value<tensor> found{0, output};
    for (std::size_t k = 0; k < output.rows() * output.columns(); ++k) {
      const Real d = output.data()[k] - target.data()[k];
      found.gradient.data()[k] = d;
      found.value += 0.5 * static_cast<double>(d) * static_cast<double>(d);
    }
    return found;
  }

  std::vector<int> layers;
  std::uint64_t seed;
  std::vector<std::size_t> widths;
  std::vector<tensor> inputs, targets;
};

template <class Real>
std::vector<matrix<Real>> copies_of(std::vector<std::reference_wrapper<matrix<Real>>> tensors) {
  std::vector<matrix<Real>> copies;
  for (const matrix<Real>& t : tensors) copies.push_back(t);
  return copies;
}

template <class Real>
struct outcome_of_step {
  std::vector<double> losses;
  std::vector<std::vector<matrix<Real>>> gradients;  ///< per direction and stage
  friend bool operator==(const outcome_of_step&, const outcome_of_step&) = default;
};

/// One device: all microbatches forward and backward, one whole stage after the other. Gradients of a stage are added in
/// gradient_order(): those of linears in that of weight gradients, those of activations, which cannot put theirs off, in that
/// of input gradients; then over directions, then scaled.
template <class Real>
outcome_of_step<Real> reference(const task<Real>& t, const schedule& order) {
  const std::size_t stages = t.layers.size(), batches = t.inputs.size();
  const int directions = order.directions;
  outcome_of_step<Real> result;
  result.losses.assign(batches, 0);
  result.gradients.resize(order.rank_of.size());
  // What every stage gets as its output's gradient, with throw-away gradients.
  std::vector<std::vector<matrix<Real>>> inputs(stages, std::vector<matrix<Real>>(batches)), gradients = inputs;
  {
    std::vector<dense_stage<Real>> net;
    for (std::size_t s = 0; s < stages; ++s) net.push_back(t.stage(static_cast<int>(s)));
    for (std::size_t m = 0; m < batches; ++m) {
      std::vector<typename dense_stage<Real>::context> contexts;
      matrix<Real> x = t.inputs[m];
      for (std::size_t s = 0; s < stages; ++s) {
        inputs[s][m] = std::move(x);
        contexts.push_back(net[s].make_context());
        x = net[s].forward(inputs[s][m], contexts[s]);
      }
      auto l = task<Real>::loss(x, t.targets[m]);
      result.losses[m] = l.value;
      for (std::size_t s = stages; s-- > 0;) {
        gradients[s][m] = std::move(l.gradient);
        l.gradient = net[s].backward(gradients[s][m], contexts[s]);
      }
    }
  }
  for (std::size_t s = 0; s < stages; ++s) {
    for (int c = 0; c < directions; ++c) {
      auto& own = result.gradients[static_cast<std::size_t>(c) * stages + s];
      for (const bool split : {true, false}) {
        auto stage = t.stage(static_cast<int>(s));
        for (const int batch : gradient_order(order, c, static_cast<int>(s), split)) {
          const auto m = static_cast<std::size_t>(batch);
          auto context = stage.make_context();
          (void)stage.forward(inputs[s][m], context);
          (void)stage.backward(gradients[s][m], context);
        }
        const auto sums = copies_of<Real>(stage.gradients());
        own.resize(sums.size());
        for (std::size_t p = split ? 0 : 1; p < sums.size(); p += 2) own[p] = sums[p];
      }
    }
    auto sum = result.gradients[s];
    for (std::size_t p = 0; p < sum.size(); ++p)
      for (std::size_t k = 0; k < sum[p].rows() * sum[p].columns(); ++k) {
        if (directions == 2) sum[p].data()[k] += result.gradients[stages + s][p].data()[k];
        sum[p].data()[k] *= static_cast<Real>(1.0 / static_cast<double>(batches));
      }
    for (int c = 0; c < directions; ++c) result.gradients[static_cast<std::size_t>(c) * stages + s] = sum;
  }
  return result;
}

/// Runs body(rank) on a thread per rank and rethrows the first rank's exception, if any; or keeps them all.
template <class Body>
std::vector<std::exception_ptr> on_ranks(int ranks, Body body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (...) {
          failures[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
  }
  return failures;
}

inline void rethrow_first(const std::vector<std::exception_ptr>& failures) {
  for (const auto& f : failures)
    if (f) std::rethrow_exception(f);
}

/// What a run leaves behind besides its results.
struct run_record {
  timeline measured;            ///< of the last step, of all ranks
  std::vector<timeline> parts;  ///< by rank
  std::vector<arena_bytes> arenas;
};

/// `steps` steps over these ends, each on a thread; the last one's results.
template <class Stager = no_stager, class Real, class Communicator>
outcome_of_step<Real> run_over(std::vector<Communicator> ends, const task<Real>& t, const schedule& order,
                               const executor_options& options, int steps, run_record* record = nullptr) {
  using stage_type = dense_stage<Real>;
  using tensor = matrix<Real>;
  outcome_of_step<Real> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(order.ranks));
  run_record seen{{}, std::vector<timeline>(losses.size()), std::vector<arena_bytes>(losses.size())};
  hetsched::run_on_threads(std::move(ends), [&](Communicator& end) {
    const int rank = end.rank() - options.first_rank;
    const auto k = static_cast<std::size_t>(rank);
    std::vector<stage_type> stages;
    const auto copies = stages_of_rank(order, rank);
    for (const auto& c : copies) stages.push_back(t.stage(c.stage));
    pipeline_executor<tensor, stage_type, Communicator, Stager> executor(order, stages, t.boundaries(), end, options);
    seen.arenas[k] = executor.arena();
    for (int i = 0; i < steps; ++i)
      executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<Real>::loss);
    losses[k].assign(executor.losses().begin(), executor.losses().end());
    seen.parts[k] = executor.measured();
    for (std::size_t i = 0; i < copies.size(); ++i)
      result.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)] =
          copies_of<Real>(stages[i].gradients());
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.losses[m] += part[m];
  seen.measured = merged(seen.parts);
  if (record) *record = std::move(seen);
  return result;
}

/// The same in this process.
template <class Real>
outcome_of_step<Real> run_on_threads(const task<Real>& t, const schedule& order, const executor_options& options, int steps,
                                     timeline* measured = nullptr) {
  run_record record;
  auto result = run_over(thread_communicator<matrix<Real>>::connect(order.ranks), t, order, options, steps, &record);
  if (measured) *measured = std::move(record.measured);
  return result;
}

}  // namespace hetsched::test
