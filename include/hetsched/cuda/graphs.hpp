// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
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
///   end_update(stream, graph&, bool& updated)
///                               ends it, too, and makes the graph do this work from its next launch on. Work of the same form
///                               (as many nodes, of the same kinds, in the same order) gives the graph's nodes new arguments;
///                               otherwise the old graph is destroyed, and the new one is not `updated`
///                               [cudaStreamEndCapture, cudaGraphExecUpdate]. A failure changes nothing
///   launch(graph, stream)       [cudaGraphLaunch]
///   destroy_graph(graph)        [cudaGraphExecDestroy]
/// Not checked: any of that.
template <class A>
concept cuda_graph_api = cuda_api<A> &&
    requires(const A& a, typename A::stream s, typename A::graph g, typename A::graph& made, bool& updated) {
  { a.begin_capture(s) } -> std::same_as<int>;
  { a.end_capture(s, made) } -> std::same_as<int>;
  { a.end_update(s, made, updated) } -> std::same_as<int>;
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
    for (const auto& q : queues_) memory_.push_back(std::make_unique<captured_memory<Api>>(q));
    capture(
        body, [&](auto& first) { return first.end_capture(graph_); }, [&] { (void)first().api().destroy_graph(graph_); });
  }
  cuda_graph(const cuda_graph&) = delete;
  cuda_graph& operator=(const cuda_graph&) = delete;
  ~cuda_graph() { end(); }
  /// Before its memory goes: it cannot be launched any more. What has been launched comes to its end.
  void end() {
    if (!std::exchange(has_ended_, true)) (void)first().api().destroy_graph(graph_);
  }

  /// Captures what body() enqueues on the same queues now, in place of what there was. Where that is the same work with other
  /// arguments, and CUDA takes it, the graph is not made again. Launches from before are as they were.
  /// Requires: no other graph uses memory of this one, unless it is captured again before its next launch.
  /// Returns whether the graph was updated, not made again.
  /// Throws: as the constructor; then it must not be launched any more.
  template <class Body>
  bool update(Body&& body) {
    for (auto& m : memory_) m->restart();
    bool updated = false;
    capture(
        body, [&](auto& first) { return first.end_update(graph_, updated); }, [] {});
    return updated;
  }
  /// On the first queue. Throws: input_error behind end(); cuda_error.
  void launch() const {
    if (has_ended_) throw input_error("a CUDA graph is launched that has ended");
    const auto current = first().make_current();
    first().require(first().api().launch(graph_, first().stream()), "cudaGraphLaunch");
  }

 private:
  [[nodiscard]] cuda_stream<Api>& first() const { return *queues_.front().own(); }
  /// end(stream) -> code ends a capture; undo() where that has worked, but body has not.
  template <class Body, class End, class Undo>
  void capture(Body&& body, End&& end, Undo&& undo) {
    auto& first = this->first();
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
    const int code = end(first);
    if (failure || code != 0)
      for (auto& m : memory_) m->abandon();
    if (failure && code == 0) undo();
    if (failure) std::rethrow_exception(failure);
    first.require(code, "cudaStreamEndCapture");
    for (auto& m : memory_) m->settle();
  }

  std::vector<cuda_queue<Api>> queues_;
  std::vector<std::unique_ptr<captured_memory<Api>>> memory_;  ///< by queue
  typename Api::graph graph_{};
  bool has_ended_ = false;
};

}  // namespace detail

/// A stage whose work on a GPU is captured: the first time that a context is used it works as ever, the second time what each
/// of forward, backward and its halves enqueues becomes a CUDA graph, and from then on one launch does it, between copies of
/// what comes in and of what goes out. So the host's time is that of a few calls, however many kernels the layers have.
/// Schedules and transports are as ever.
/// What else changes, such as a number or a place in memory that is an argument of a kernel, is told by arguments_changed().
/// Requires: the layers' calls depend on nothing that changes from step to step but what tensors hold and what is told; shapes
/// and parameters stay where they are. Not checked.
/// Throws: input_error for a rank on the host, whose work nobody can capture, and for layers that wait for the device or for
/// other queues, such as collectives over NCCL; cuda_error.
template <class Tensor, class Stage, cuda_graph_api Api>
class cuda_graphed_stage {
  using queue = cuda_queue<Api>;
  struct piece {
    std::unique_ptr<detail::cuda_graph<Api>> graph;  ///< ends last: the output is in its memory
    bool has_run = false;
    std::uint64_t arguments = 0;  ///< the version that is captured
    Tensor input, output;
  };

 public:
  struct context {
    piece forward, backward, input, weight;
    typename Stage::context own;  ///< ends first: what is in it may be a graph's
  };

  /// Not `captures`: it works as the stage itself. `arguments`: a number that changes when those do; null: one of its own.
  explicit cuda_graphed_stage(Stage stage, bool captures = true, std::shared_ptr<std::uint64_t> arguments = nullptr)
      : stage_(std::move(stage)),
        captures_(captures),
        arguments_(arguments ? std::move(arguments) : std::make_shared<std::uint64_t>(0)) {}

  /// What is captured is captured again when it is next used, with the arguments that calls have then, and its graphs are
  /// updated, or made again where work has another form. Between steps; on the thread of the stage.
  void arguments_changed() { ++*arguments_; }

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
    capture(p, q, body);
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
    const bool may_differ = !p.graph || p.arguments != *arguments_;
    if (is_first || (may_differ && !std::ranges::equal(detail::shape_of(in), detail::shape_of(std::as_const(p.input)))))
      p.input = traits::make(detail::shape_of(in), q);
    traits::assign(p.input, in, q);
    if (is_first) return body(std::as_const(p.input));
    capture(p, q, [&] { p.output = body(std::as_const(p.input)); });
    p.graph->launch();
    traits::buffer(p.output).end_write(q, q.record());
    Tensor out = traits::make(detail::shape_of(std::as_const(p.output)), q);
    traits::assign(out, p.output, q);
    return out;
  }

  /// Unless it is captured as it would be now.
  template <class Body>
  void capture(piece& p, const queue& q, Body&& body) const {
    if (!p.graph)
      p.graph = std::make_unique<detail::cuda_graph<Api>>(q, body);
    else if (p.arguments != *arguments_)
      p.graph->update(body);
    p.arguments = *arguments_;
  }

  Stage stage_;
  bool captures_;
  std::shared_ptr<std::uint64_t> arguments_;
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
    return stage<Tensor, Stage>(std::move(s), captures_, arguments_);
  }
  [[nodiscard]] bool captures() const { return captures_; }
  /// Of all stages that it has made: see cuda_graphed_stage.
  void arguments_changed() const { ++*arguments_; }

 private:
  bool captures_;
  std::shared_ptr<std::uint64_t> arguments_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace hetsched
