// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/cuda/stager.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/cuda_check.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include "../runtime/dense.hpp"

// The layers of dense.hpp for the fake: the same arithmetic, in kernels.
namespace hetsched::test {

using fake_devices = cuda_devices<cuda_check::api>;
using fake_queue = cuda_queue<cuda_check::api>;

class fake_tensor {
 public:
  fake_tensor() = default;
  fake_tensor(std::size_t rows, std::size_t columns, const fake_queue& q)
      : shape_{rows, columns}, buffer_(q, rows * columns * sizeof(double)) {}
  fake_tensor(const tensor_shape& shape, const fake_queue& q) : fake_tensor(shape.at(0), shape.at(1), q) {}
  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return shape_; }
  [[nodiscard]] std::size_t rows() const { return shape_[0]; }
  [[nodiscard]] std::size_t columns() const { return shape_[1]; }
  [[nodiscard]] std::size_t size() const { return shape_[0] * shape_[1]; }
  [[nodiscard]] double* data() { return static_cast<double*>(buffer_.data()); }
  [[nodiscard]] const double* data() const { return static_cast<const double*>(buffer_.data()); }
  cuda_buffer<cuda_check::api>& buffer() { return buffer_; }
  [[nodiscard]] const cuda_buffer<cuda_check::api>& buffer() const { return buffer_; }

 private:
  std::array<std::size_t, 2> shape_{};
  cuda_buffer<cuda_check::api> buffer_;
};

inline void kernel(const fake_queue& q, const char* name, std::initializer_list<const fake_tensor*> reads,
                   std::initializer_list<fake_tensor*> writes, cuda_check::machine::work body) {
  std::vector<cuda_check::machine::range> ranges;
  for (const auto* t : reads) ranges.push_back({t->data(), t->size() * sizeof(double), false});
  for (auto* t : writes) ranges.push_back({t->data(), t->size() * sizeof(double), true});
  cuda_check::launch(q, name, std::move(ranges), std::move(body));
}

/// A mistake of tensor_traits, planted; for a test that runs alone.
enum class mistake { none, no_begin_read, no_end_read, no_end_write, unmarked };
inline mistake planted = mistake::none;

}  // namespace hetsched::test

template <>
struct hetsched::tensor_traits<hetsched::test::fake_tensor>
    : hetsched::cuda_tensor_traits<hetsched::test::fake_tensor, double, hetsched::cuda_check::api> {
  using tensor = hetsched::test::fake_tensor;
  using mistake = hetsched::test::mistake;
  using common = hetsched::cuda_tensor_traits<tensor, double, hetsched::cuda_check::api>;
  static bool makes(mistake m) { return hetsched::test::planted == m; }

  static tensor make(const tensor_shape& shape, const queue& q) {
    return makes(mistake::unmarked) ? tensor(shape, q) : common::make(shape, q);
  }
  static void begin_read(const tensor& t, const queue& q) {
    if (!makes(mistake::no_begin_read)) common::begin_read(t, q);
  }
  static void end_read(const tensor& t, const queue& q, const moment& end) {
    if (!makes(mistake::no_end_read)) common::end_read(t, q, end);
  }
  static void end_write(tensor& t, const queue& q, const moment& end) {
    if (!makes(mistake::no_end_write)) common::end_write(t, q, end);
  }
  static void add(tensor& sum, const tensor& term, const queue& q) {
    work_on(q, {&term.buffer()}, {&sum.buffer()}, [&] {
      hetsched::test::kernel(q, "a sum", {&term}, {&sum},
                             [to = sum.data(), from = std::as_const(term).data(), n = sum.size()](const auto& v) {
                               for (std::size_t k = 0; k < n; ++k) v.write(to)[k] += v.read(from)[k];
                             });
    });
  }
  static void scale(tensor& t, double factor, const queue& q) {
    work_on(q, {}, {&t.buffer()}, [&] {
      hetsched::test::kernel(q, "a scaling", {}, {&t}, [at = t.data(), n = t.size(), factor](const auto& v) {
        for (std::size_t k = 0; k < n; ++k) v.write(at)[k] *= factor;
      });
    });
  }
};

namespace hetsched::test {

inline fake_tensor upload(const fake_queue& q, const matrix<double>& m) {
  fake_tensor t(m.rows(), m.columns(), q);
  kernel(q, "an upload", {}, {&t}, [m, at = t.data()](const auto& v) {
    for (std::size_t k = 0; k < m.rows() * m.columns(); ++k) v.write(at)[k] = m.data()[k];
  });
  return t;
}
/// Waits for all that is on the queue.
inline matrix<double> download(const fake_queue& q, const fake_tensor& t) {
  matrix<double> m(t.rows(), t.columns());
  kernel(q, "a download", {&t}, {}, [&m, from = t.data()](const auto& v) {
    for (std::size_t k = 0; k < m.rows() * m.columns(); ++k) m.data()[k] = v.read(from)[k];
  });
  q.finish();
  return m;
}

struct fake_linear {
  using tensor = fake_tensor;
  struct context {
    const tensor* input = nullptr;
  };
  fake_linear(const linear<double>& like, const fake_queue& q) {
    weights.push_back(upload(q, like.weights[0]));
    sums.push_back(upload(q, like.sums[0]));
  }
  tensor forward(const tensor& x, context& c, const fake_queue& q) {
    c.input = &x;
    const auto& w = weights[0];
    tensor y(x.rows(), w.columns(), q);
    kernel(q, "linear", {&x, &w}, {&y},
           [x = x.data(), w = w.data(), y = y.data(), rows = x.rows(), in = w.rows(), out = w.columns()](const auto& v) {
             for (std::size_t i = 0; i < rows; ++i)
               for (std::size_t j = 0; j < out; ++j) {
                 double sum = 0;
                 for (std::size_t k = 0; k < in; ++k) sum += v.read(x)[i * in + k] * v.read(w)[k * out + j];
                 v.write(y)[i * out + j] = sum;
               }
           });
    return y;
  }
  tensor backward_input(const tensor& dy, context&, const fake_queue& q) {
    const auto& w = weights[0];
    tensor dx(dy.rows(), w.rows(), q);
    kernel(q, "backward of linear", {&dy, &w}, {&dx},
           [dy = dy.data(), w = w.data(), dx = dx.data(), rows = dy.rows(), in = w.rows(), out = w.columns()](const auto& v) {
             for (std::size_t i = 0; i < rows; ++i)
               for (std::size_t k = 0; k < in; ++k) {
                 double sum = 0;
                 for (std::size_t j = 0; j < out; ++j) sum += v.read(dy)[i * out + j] * v.read(w)[k * out + j];
                 v.write(dx)[i * in + k] = sum;
               }
           });
    return dx;
  }
  void backward_weight(const tensor& dy, context& c, const fake_queue& q) {
    auto& sum = sums[0];
    const auto& x = *c.input;
    kernel(
        q, "weight gradient of linear", {&dy, &x}, {&sum},
        [dy = dy.data(), x = x.data(), sum = sum.data(), rows = dy.rows(), in = sum.rows(), out = sum.columns()](const auto& v) {
          for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t k = 0; k < in; ++k)
              for (std::size_t j = 0; j < out; ++j) v.write(sum)[k * out + j] += v.read(x)[i * in + k] * v.read(dy)[i * out + j];
        });
  }
  tensor backward(const tensor& dy, context& c, const fake_queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }
  std::vector<tensor>& parameters() { return weights; }
  std::vector<tensor>& gradients() { return sums; }
  std::vector<tensor> weights, sums;
};

struct fake_activation {
  using tensor = fake_tensor;
  struct context {
    tensor kept;
  };
  explicit fake_activation(const fake_queue& q) {
    const activation<double> like;
    gain.push_back(upload(q, like.gain[0]));
    sum.push_back(upload(q, like.sum[0]));
  }
  tensor forward(const tensor& x, context& c, const fake_queue& q) {
    tensor y(x.rows(), x.columns(), q);
    c.kept = tensor(x.rows(), x.columns(), q);
    kernel(q, "activation", {&x, &gain[0]}, {&y, &c.kept},
           [x = x.data(), g = std::as_const(gain[0]).data(), y = y.data(), kept = c.kept.data(), n = x.size()](const auto& v) {
             for (std::size_t k = 0; k < n; ++k) {
               v.write(kept)[k] = std::tanh(v.read(x)[k]);
               v.write(y)[k] = v.write(kept)[k] * *v.read(g);
             }
           });
    return y;
  }
  tensor backward(const tensor& dy, context& c, const fake_queue& q) {
    tensor dx(dy.rows(), dy.columns(), q);
    kernel(q, "backward of activation", {&dy, &gain[0], &c.kept}, {&dx, &sum[0]},
           [dy = dy.data(), g = std::as_const(gain[0]).data(), kept = std::as_const(c.kept).data(), dx = dx.data(),
            sum = sum[0].data(), n = dy.size()](const auto& v) {
             for (std::size_t k = 0; k < n; ++k) {
               const double t = v.read(kept)[k];
               v.write(dx)[k] = v.read(dy)[k] * *v.read(g) * (1 - t * t);
               *v.write(sum) += v.read(dy)[k] * t;
             }
           });
    return dx;
  }
  std::vector<tensor>& parameters() { return gain; }
  std::vector<tensor>& gradients() { return sum; }
  std::vector<tensor> gain, sum;
};

using fake_stage = layer_list<fake_tensor, any_layer<fake_tensor, fake_queue>, fake_queue>;

/// The stage of a task, its parameters on the queue's device.
inline fake_stage stage_on(const fake_queue& q, const task<double>& t, int s) {
  auto like = t.stage(s);
  std::vector<any_layer<fake_tensor, fake_queue>> list;
  for (auto& l : like.layers()) {
    if (const auto* const found = l.get<linear<double>>())
      list.emplace_back(fake_linear(*found, q));
    else
      list.emplace_back(fake_activation(q));
  }
  return fake_stage(std::move(list));
}

/// As task::loss; enqueues.
inline fake_tensor fake_loss(const fake_tensor& output, const fake_tensor& target, const fake_queue& q, double& value) {
  fake_tensor gradient(output.rows(), output.columns(), q);
  auto body = [y = output.data(), t = target.data(), g = gradient.data(), n = output.size(), &value](const auto& v) {
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const double d = v.read(y)[k] - v.read(t)[k];
      v.write(g)[k] = d;
      sum += 0.5 * d * d;
    }
    *v.write(&value) = sum;
  };
  cuda_check::launch(q, "loss",
                     {{output.data(), output.size() * sizeof(double), false},
                      {target.data(), target.size() * sizeof(double), false},
                      {gradient.data(), gradient.size() * sizeof(double), true},
                      {&value, sizeof(double), true}},
                     std::move(body));
  return gradient;
}

/// `steps` steps of a task, every rank on its place (a device, or -1: the host), a thread each; the last step's results,
/// and what was measured in it, by rank.
/// Staged: what the schedule lists as copies goes through pinned memory.
template <bool Staged, class communicator>
outcome_of_step<double> run_on_fake(fake_devices& devices, std::vector<communicator> ends, const std::vector<int>& places,
                                    const task<double>& t, const schedule& order, const executor_options& options, int steps,
                                    std::vector<timeline>* measured = nullptr) {
  using stager = std::conditional_t<Staged, cuda_stager<fake_tensor, cuda_check::api>, no_stager>;
  using backend = cuda_backend<cuda_check::api>;
  outcome_of_step<double> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(places.size());
  run_on_threads(std::move(ends), [&](communicator& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    const auto name = "rank " + std::to_string(rank);
    backend own(devices, places[rank], name);
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = stages_of_rank(order, end.rank());
    std::vector<fake_stage> stages;
    for (const auto& c : copies) stages.push_back(stage_on(q, t, c.stage));
    std::vector<fake_tensor> inputs, targets;
    for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
    for (const auto& m : t.targets) targets.push_back(upload(q, m));
    const auto how = [&] {
      if constexpr (Staged)
        return stager(devices, places[rank], name);
      else
        return no_stager();
    };
    pipeline_executor<fake_tensor, fake_stage, communicator, stager, backend> executor(order, std::span(stages), t.boundaries(),
                                                                                       end, options, how(), own);
    for (int i = 0; i < steps; ++i)
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss);
    if (measured) (*measured)[rank] = executor.measured();
    losses[rank].assign(executor.losses().begin(), executor.losses().end());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      auto& sums = result.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)];
      for (const fake_tensor& g : stages[i].gradients()) sums.push_back(download(q, g));
    }
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.losses[m] += part[m];
  return result;
}
template <bool Staged = false>
outcome_of_step<double> run_on_fake(fake_devices& devices, const std::vector<int>& places, const task<double>& t,
                                    const schedule& order, const executor_options& options, int steps,
                                    std::vector<timeline>* measured = nullptr) {
  return run_on_fake<Staged>(devices, cuda_local_communicator<fake_tensor, cuda_check::api>::connect(devices, places), places, t,
                             order, options, steps, measured);
}

}  // namespace hetsched::test
