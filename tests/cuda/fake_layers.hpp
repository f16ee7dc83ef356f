// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
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

// The layers of dense.hpp for the strict devices of any vendor: the same arithmetic, in kernels.
namespace hetsched::test {

template <class Api>
class strict_tensor {
 public:
  strict_tensor() = default;
  strict_tensor(std::size_t rows, std::size_t columns, const cuda_queue<Api>& q)
      : shape_{rows, columns}, buffer_(q, rows * columns * sizeof(double)) {}
  strict_tensor(const tensor_shape& shape, const cuda_queue<Api>& q) : strict_tensor(shape.at(0), shape.at(1), q) {}
  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return shape_; }
  [[nodiscard]] std::size_t rows() const { return shape_[0]; }
  [[nodiscard]] std::size_t columns() const { return shape_[1]; }
  [[nodiscard]] std::size_t size() const { return shape_[0] * shape_[1]; }
  [[nodiscard]] double* data() { return static_cast<double*>(buffer_.data()); }
  [[nodiscard]] const double* data() const { return static_cast<const double*>(buffer_.data()); }
  cuda_buffer<Api>& buffer() { return buffer_; }
  [[nodiscard]] const cuda_buffer<Api>& buffer() const { return buffer_; }

 private:
  std::array<std::size_t, 2> shape_{};
  cuda_buffer<Api> buffer_;
};

using fake_devices = cuda_devices<cuda_check::api>;
using fake_queue = cuda_queue<cuda_check::api>;
using fake_tensor = strict_tensor<cuda_check::api>;

template <class Api>
void kernel(const cuda_queue<Api>& q, const char* name,
            std::initializer_list<std::type_identity_t<const strict_tensor<Api>*>> reads,
            std::initializer_list<std::type_identity_t<strict_tensor<Api>*>> writes, cuda_check::machine::work body) {
  std::vector<cuda_check::machine::range> ranges;
  for (const auto* t : reads) ranges.push_back({t->data(), t->size() * sizeof(double), false});
  for (auto* t : writes) ranges.push_back({t->data(), t->size() * sizeof(double), true});
  cuda_check::launch(q, name, std::move(ranges), std::move(body));
}

/// What a trainer may bring along: of each device one piece of memory, cut into blocks that serve again on the stream that they
/// were cut for, and streams by name. Outlives whoever adopts it.
class outside {
 public:
  explicit outside(cuda_check::machine& gpus, std::size_t bytes = std::size_t{1} << 20) : api_{&gpus}, bytes_(bytes) {}
  outside(const outside&) = delete;
  outside& operator=(const outside&) = delete;
  ~outside() {
    for (auto& [device, s] : slabs_) {
      (void)api_.free(s.memory, s.stream);
      (void)api_.synchronize(s.stream);
      (void)api_.destroy_stream(s.stream);
      (void)api_.destroy_pool(s.pool);
    }
    for (auto& [name, s] : streams_) (void)api_.destroy_stream(s);
  }
  [[nodiscard]] cuda_adoption<cuda_check::api> adopted() {
    return {.allocate = [this](std::size_t n, int d, auto* s) { return allocate(n, d, s); },
            .free = [this](void* p, std::size_t n, int, auto* s) { free(p, n, s); },
            .stream = [this](int d, const std::string& name) { return stream(d, name); }};
  }
  [[nodiscard]] cuda_check::api::stream stream(int device, const std::string& name) {
    const std::lock_guard lock(guard_);
    auto& found = streams_[{device, name}];
    if (!found) make(device, found);
    return found;
  }
  [[nodiscard]] int slabs() const { return static_cast<int>(slabs_.size()); }
  /// Those of names, and one for each slab.
  [[nodiscard]] int streams() const { return static_cast<int>(streams_.size() + slabs_.size()); }
  [[nodiscard]] int blocks_out() const { return blocks_out_; }
  [[nodiscard]] int blocks() const { return blocks_; }

 private:
  struct slab {
    cuda_check::api::pool pool{};
    cuda_check::api::stream stream{};
    void* memory = nullptr;
    std::size_t used = 0;
  };
  static std::size_t whole(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  void make(int device, cuda_check::api::stream& s) {
    const cuda_device_scope<cuda_check::api> current(api_, device, "a stream from outside");
    (void)api_.create_stream(s);
  }
  void* allocate(std::size_t bytes, int device, cuda_check::api::stream s) {
    const std::lock_guard lock(guard_);
    api_.gpus->threads_meet();  // a lock is where they do
    auto& from = slabs_[device];
    if (!from.memory) {
      (void)api_.create_pool(device, from.pool);
      make(device, from.stream);
      (void)api_.allocate(from.memory, bytes_, from.pool, from.stream);
      (void)api_.synchronize(from.stream);
    }
    auto& idle = idle_[{s, whole(bytes)}];
    if (idle.empty()) {
      if (from.used + whole(bytes) > bytes_) return nullptr;
      idle.push_back(static_cast<std::byte*>(from.memory) + from.used);
      from.used += whole(bytes);
      ++blocks_;
    }
    void* const p = idle.back();
    idle.pop_back();
    ++blocks_out_;
    return p;
  }
  void free(void* p, std::size_t bytes, cuda_check::api::stream s) {
    const std::lock_guard lock(guard_);
    idle_[{s, whole(bytes)}].push_back(p);
    --blocks_out_;
  }

  cuda_check::api api_;
  std::size_t bytes_;
  std::mutex guard_;
  std::map<int, slab> slabs_;
  std::map<std::pair<int, std::string>, cuda_check::api::stream> streams_;
  std::map<std::pair<cuda_check::api::stream, std::size_t>, std::vector<void*>> idle_;
  int blocks_out_ = 0, blocks_ = 0;
};

/// A mistake of tensor_traits, planted; for a test that runs alone.
enum class mistake { none, no_begin_read, no_end_read, no_end_write, unmarked };
inline mistake planted = mistake::none;

}  // namespace hetsched::test

template <class Api>
struct hetsched::tensor_traits<hetsched::test::strict_tensor<Api>>
    : hetsched::cuda_tensor_traits<hetsched::test::strict_tensor<Api>, double, Api> {
  using tensor = hetsched::test::strict_tensor<Api>;
  using mistake = hetsched::test::mistake;
  using common = hetsched::cuda_tensor_traits<tensor, double, Api>;
  using queue = typename common::queue;
  using moment = typename common::moment;
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

template <class Api>
strict_tensor<Api> upload(const cuda_queue<Api>& q, const matrix<double>& m) {
  strict_tensor<Api> t(m.rows(), m.columns(), q);
  kernel(q, "an upload", {}, {&t}, [m, at = t.data()](const auto& v) {
    for (std::size_t k = 0; k < m.rows() * m.columns(); ++k) v.write(at)[k] = m.data()[k];
  });
  return t;
}
/// Waits for all that is on the queue.
template <class Api>
matrix<double> download(const cuda_queue<Api>& q, const strict_tensor<Api>& t) {
  matrix<double> m(t.rows(), t.columns());
  kernel(q, "a download", {&t}, {}, [&m, from = t.data()](const auto& v) {
    for (std::size_t k = 0; k < m.rows() * m.columns(); ++k) m.data()[k] = v.read(from)[k];
  });
  q.finish();
  return m;
}

template <class Api>
struct strict_linear {
  using tensor = strict_tensor<Api>;
  using queue = cuda_queue<Api>;
  struct context {
    const tensor* input = nullptr;
  };
  strict_linear(const linear<double>& like, const queue& q) {
    weights.push_back(upload(q, like.weights[0]));
    sums.push_back(upload(q, like.sums[0]));
  }
  tensor forward(const tensor& x, context& c, const queue& q) {
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
  tensor backward_input(const tensor& dy, context&, const queue& q) {
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
  void backward_weight(const tensor& dy, context& c, const queue& q) {
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
  tensor backward(const tensor& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }
  std::vector<tensor>& parameters() { return weights; }
  std::vector<tensor>& gradients() { return sums; }
  std::vector<tensor> weights, sums;
};

template <class Api>
struct strict_activation {
  using tensor = strict_tensor<Api>;
  using queue = cuda_queue<Api>;
  struct context {
    tensor kept;
  };
  explicit strict_activation(const queue& q) {
    const activation<double> like;
    gain.push_back(upload(q, like.gain[0]));
    sum.push_back(upload(q, like.sum[0]));
  }
  tensor forward(const tensor& x, context& c, const queue& q) {
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
  tensor backward(const tensor& dy, context& c, const queue& q) {
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

template <class Api>
using strict_stage = layer_list<strict_tensor<Api>, any_layer<strict_tensor<Api>, cuda_queue<Api>>, cuda_queue<Api>>;
using fake_linear = strict_linear<cuda_check::api>;
using fake_activation = strict_activation<cuda_check::api>;
using fake_stage = strict_stage<cuda_check::api>;

/// The stage of a task, its parameters on the queue's device.
template <class Api>
strict_stage<Api> stage_on(const cuda_queue<Api>& q, const task<double>& t, int s) {
  auto like = t.stage(s);
  std::vector<any_layer<strict_tensor<Api>, cuda_queue<Api>>> list;
  for (auto& l : like.layers()) {
    if (const auto* const found = l.get<linear<double>>())
      list.emplace_back(strict_linear<Api>(*found, q));
    else
      list.emplace_back(strict_activation<Api>(q));
  }
  return strict_stage<Api>(std::move(list));
}

/// As task::loss; enqueues.
template <class Api>
strict_tensor<Api> strict_loss(const strict_tensor<Api>& output, const strict_tensor<Api>& target, const cuda_queue<Api>& q,
                               double& value) {
  strict_tensor<Api> gradient(output.rows(), output.columns(), q);
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
inline fake_tensor fake_loss(const fake_tensor& output, const fake_tensor& target, const fake_queue& q, double& value) {
  return strict_loss(output, target, q, value);
}

/// Of one rank, on a thread of its own, on a device or -1, the host: `steps` steps of a task. The last one's losses and gradients
/// are told, and what was measured in it.
/// Staged: what the schedule lists as copies goes through pinned memory.
template <bool Staged, class Api, class Communicator>
void run_rank(cuda_devices<Api>& devices, Communicator& end, int place, const task<double>& t, const schedule& order,
              const executor_options& options, int steps, std::vector<double>& losses, outcome_of_step<double>& result,
              timeline* measured = nullptr) {
  using tensor = strict_tensor<Api>;
  using stager = std::conditional_t<Staged, cuda_stager<tensor, Api>, no_stager>;
  using backend = cuda_backend<Api>;
  const auto name = "rank " + std::to_string(end.rank());
  backend own(devices, place, name);
  const auto bound = own.bind();
  const auto q = own.compute_queue();
  const auto copies = stages_of_rank(order, end.rank());
  std::vector<strict_stage<Api>> stages;
  for (const auto& c : copies) stages.push_back(stage_on(q, t, c.stage));
  std::vector<tensor> inputs, targets;
  for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
  for (const auto& m : t.targets) targets.push_back(upload(q, m));
  const auto how = [&] {
    if constexpr (Staged)
      return stager(devices, place, name);
    else
      return no_stager();
  };
  pipeline_executor<tensor, strict_stage<Api>, Communicator, stager, backend> executor(order, std::span(stages), t.boundaries(),
                                                                                       end, options, how(), own);
  for (int i = 0; i < steps; ++i)
    executor.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), strict_loss<Api>);
  if (measured) *measured = executor.measured();
  losses.assign(executor.losses().begin(), executor.losses().end());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    auto& sums = result.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)];
    for (const tensor& g : stages[i].gradients()) sums.push_back(download(q, g));
  }
}

/// All ranks on their places; the last step's results, and what was measured in it, by rank.
template <bool Staged, class communicator>
outcome_of_step<double> run_on_fake(fake_devices& devices, std::vector<communicator> ends, const std::vector<int>& places,
                                    const task<double>& t, const schedule& order, const executor_options& options, int steps,
                                    std::vector<timeline>* measured = nullptr) {
  outcome_of_step<double> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(places.size());
  run_on_threads(std::move(ends), [&](communicator& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    run_rank<Staged>(devices, end, places[rank], t, order, options, steps, losses[rank], result,
                     measured ? &(*measured)[rank] : nullptr);
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
