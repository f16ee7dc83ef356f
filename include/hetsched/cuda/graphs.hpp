// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A cuda_api that captures work and does it again.
///   begin_capture(stream)       what is enqueued from here on is not done but kept; nothing else of the thread is refused
///                               meanwhile [cudaStreamBeginCapture, relaxed]
///   end_capture(stream, graph&) ends that, also after a failure, and makes it ready to be launched [cudaStreamEndCapture,
///                               cudaGraphInstantiate]
///   launch(graph, stream)       [cudaGraphLaunch]
///   destroy_graph(graph)        [cudaGraphExecDestroy]
/// Not checked: any of that.
template <class A>
concept cuda_graph_api = cuda_api<A> && requires(const A& a, typename A::stream s, typename A::graph g, typename A::graph& made) {
  { a.begin_capture(s) } -> std::same_as<int>;
  { a.end_capture(s, made) } -> std::same_as<int>;
  { a.launch(g, s) } -> std::same_as<int>;
  { a.destroy_graph(g) } -> std::same_as<int>;
};

namespace detail {

/// Work of queues that was captured, with the memory that it uses.
template <cuda_graph_api Api>
class cuda_graph {
 public:
  /// Captures what body() enqueues on q. Buffers that it makes on q live as long as this.
  /// Throws: input_error where it waits for, or is waited for by, other queues or the host; cuda_error; what body throws.
  template <class Body>
  cuda_graph(const cuda_queue<Api>& q, Body&& body) : cuda_graph(std::vector<cuda_queue<Api>>{q}, body) {}
  /// The same of several queues, which may wait for each other's moments in it. What was enqueued on them before is done.
  template <class Body>
  cuda_graph(std::vector<cuda_queue<Api>> queues, Body&& body) : queues_(std::move(queues)) {
    auto& first = *queues_.front().own();
    for (const auto& q : queues_) memory_.push_back(std::make_unique<captured_memory<Api>>(q));
    const auto current = first.make_current();
    first.require(first.begin_capture(*memory_.front(), queues_.size() > 1), "cudaStreamBeginCapture");
    std::exception_ptr failure;
    const auto unless_it_fails = [&](auto&& call) {
      try {
        call();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    unless_it_fails([&] {
      for (std::size_t k = 1; k < queues_.size(); ++k) queues_[k].own()->join_capture(*memory_[k], first);
      body();
    });
    for (std::size_t k = 1; k < queues_.size(); ++k) unless_it_fails([&] { queues_[k].own()->leave_capture(); });
    const int code = first.end_capture(graph_);
    if (failure || code != 0)
      for (auto& m : memory_) m->abandon();
    if (failure && code == 0) (void)first.api().destroy_graph(graph_);
    if (failure) std::rethrow_exception(failure);
    first.require(code, "cudaStreamEndCapture");
    for (auto& m : memory_) m->settle();
  }
  cuda_graph(const cuda_graph&) = delete;
  cuda_graph& operator=(const cuda_graph&) = delete;
  ~cuda_graph() { (void)queues_.front().api().destroy_graph(graph_); }

  /// On the first queue.
  void launch() const {
    auto& first = *queues_.front().own();
    const auto current = first.make_current();
    first.require(first.api().launch(graph_, first.stream()), "cudaGraphLaunch");
  }

 private:
  std::vector<cuda_queue<Api>> queues_;
  std::vector<std::unique_ptr<captured_memory<Api>>> memory_;  ///< by queue
  typename Api::graph graph_{};
};

}  // namespace detail

/// A stage whose work on a GPU is captured: the first time that a context is used it works as ever, the second time what each
/// of forward, backward and its halves enqueues becomes a CUDA graph, and from then on one launch does it, between copies of
/// what comes in and of what goes out. So the host's time is that of a few calls, however many kernels the layers have.
/// Schedules and transports are as ever.
/// Requires: the layers' calls depend on nothing that changes from step to step but what tensors hold; shapes and parameters
/// stay where they are. Not checked.
/// Throws: input_error for a rank on the host, whose work nobody can capture, and for layers that wait for the device or for
/// other queues, such as collectives over NCCL; cuda_error.
template <class Tensor, class Stage, cuda_graph_api Api>
class cuda_graphed_stage {
  using queue = cuda_queue<Api>;
  struct piece {
    std::unique_ptr<detail::cuda_graph<Api>> graph;  ///< ends last: the output is in its memory
    bool has_run = false;
    Tensor input, output;
  };

 public:
  struct context {
    piece forward, backward, input, weight;
    typename Stage::context own;  ///< ends first: what is in it may be a graph's
  };

  /// Not `captures`: it works as the stage itself.
  explicit cuda_graphed_stage(Stage stage, bool captures = true) : stage_(std::move(stage)), captures_(captures) {}

  [[nodiscard]] context make_context() {
    return {.forward = {}, .backward = {}, .input = {}, .weight = {}, .own = detail::make_context(stage_)};
  }
  [[nodiscard]] Tensor forward(const Tensor& x, context& c, const queue& q) {
    return run(c.forward, x, q, [&](const Tensor& in) { return detail::forward<Tensor>(stage_, in, c.own, q); });
  }
  [[nodiscard]] Tensor backward(const Tensor& dy, context& c, const queue& q) {
    return run(c.backward, dy, q, [&](const Tensor& in) { return detail::backward<Tensor>(stage_, in, c.own, q); });
  }
  [[nodiscard]] Tensor backward_input(const Tensor& dy, context& c, const queue& q) {
    return run(c.input, dy, q, [&](const Tensor& in) { return detail::backward_input<Tensor>(stage_, in, c.own, q); });
  }
  /// Of the gradient that backward_input has got.
  void backward_weight(const Tensor& dy, context& c, const queue& q) {
    const auto body = [&] { detail::backward_weight<Tensor>(stage_, c.input.input, c.own, q); };
    auto& p = c.weight;
    if (!captures_) return detail::backward_weight<Tensor>(stage_, dy, c.own, q);
    if (!std::exchange(p.has_run, true)) return body();
    if (!p.graph) p.graph = std::make_unique<detail::cuda_graph<Api>>(q, body);
    p.graph->launch();
  }
  [[nodiscard]] decltype(auto) parameters() { return stage_.parameters(); }
  [[nodiscard]] decltype(auto) gradients() { return stage_.gradients(); }
  [[nodiscard]] Stage& stage() { return stage_; }

 private:
  template <class Body>
  [[nodiscard]] Tensor run(piece& p, const Tensor& in, const queue& q, Body&& body) const {
    using traits = tensor_traits<Tensor>;
    if (!captures_) return body(in);
    if (q.on_host()) throw input_error("a rank on the host has no CUDA graphs: its stage is to be used as it is");
    const bool is_first = !std::exchange(p.has_run, true);
    if (is_first) p.input = traits::make(detail::shape_of(in), q);
    traits::assign(p.input, in, q);
    if (is_first) return body(std::as_const(p.input));
    if (!p.graph) p.graph = std::make_unique<detail::cuda_graph<Api>>(q, [&] { p.output = body(std::as_const(p.input)); });
    p.graph->launch();
    traits::buffer(p.output).end_write(q, q.record());
    Tensor out = traits::make(detail::shape_of(std::as_const(p.output)), q);
    traits::assign(out, p.output, q);
    return out;
  }

  Stage stage_;
  bool captures_;
};

/// A cuda_backend for trainers whose stages are captured. Gradients have to stay where they are: not at ZeRO stage 2.
template <cuda_graph_api Api>
class cuda_graph_backend : public cuda_backend<Api> {
 public:
  template <class Tensor, class Stage>
  using stage = cuda_graphed_stage<Tensor, Stage, Api>;

  /// As cuda_backend. Not `captures`: stages work as without it, and the rank may be on the host.
  cuda_graph_backend(cuda_devices<Api>& all, int device, const std::string& name, bool captures = true)
      : cuda_backend<Api>(all, device, name), captures_(captures) {}

  template <class Tensor, class Stage>
  [[nodiscard]] stage<Tensor, Stage> make_stage(Stage s) const {
    return stage<Tensor, Stage>(std::move(s), captures_);
  }
  [[nodiscard]] bool captures() const { return captures_; }

 private:
  bool captures_;
};

}  // namespace hetsched
