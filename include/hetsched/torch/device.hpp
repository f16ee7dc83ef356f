// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/device_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/torch/layer.hpp>
#include <hetsched/torch/tensor.hpp>

namespace hetsched {

/// Where LibTorch works for the GPUs of a runtime, as torch_cuda says for CUDA's:
///   api                              the runtime, a cuda_api
///   device(int) -> c10::Device       torch's, of this number
///   scope                            made of a queue of a GPU: while it lives, what the thread enqueues by torch is work of the
///   queue,
///                                    and memory that torch allocates is for work behind it
template <class P>
concept torch_place = cuda_api<typename P::api> && requires(int device) {
  { P::device(device) } -> std::convertible_to<c10::Device>;
} && std::constructible_from < typename P::scope, const cuda_queue<typename P::api>
& > ;

namespace detail {

/// A place's scope; of a queue of the host, none.
template <torch_place Place>
class torch_scope {
 public:
  explicit torch_scope(const cuda_queue<typename Place::api>& q) {
    if (!q.on_host()) own_.emplace(q);
  }

 private:
  std::optional<typename Place::scope> own_;
};

template <torch_place Place>
[[nodiscard]] c10::Device torch_device_of(const cuda_queue<typename Place::api>& q) {
  return q.on_host() ? c10::Device(at::kCPU) : c10::Device(Place::device(q.device()));
}

}  // namespace detail

/// A tensor of LibTorch's elements in the memory of a GPU or, chosen at run time, the host: made of a cuda_buffer, of its own or
/// in memory of a torch::Tensor, which is then kept until all queues have done with it.
template <torch_place Place, class Element = float>
class torch_device_tensor {
  using api = typename Place::api;
  using queue = cuda_queue<api>;

 public:
  torch_device_tensor() = default;
  torch_device_tensor(tensor_shape shape, cuda_buffer<api> memory) : shape_(std::move(shape)), memory_(std::move(memory)) {}
  torch_device_tensor(const tensor_shape& shape, const queue& q)
      : torch_device_tensor(shape, cuda_buffer<api>(q, size_of(shape) * sizeof(Element))) {}
  /// The memory of what torch has made behind q's work.
  /// Throws: input_error for a tensor that is undefined, of other elements, elsewhere, or strided.
  torch_device_tensor(const at::Tensor& t, const queue& q) {
    detail::require_torch<Element>(t, "a tensor", detail::torch_device_of<Place>(q));
    if (!t.is_contiguous()) throw input_error("a tensor is not contiguous: hand over t.contiguous()");
    for (const auto extent : t.sizes()) shape_.push_back(as_size(extent));
    memory_ = cuda_buffer<api>::view(q, t.mutable_data_ptr(), t.nbytes(), std::make_shared<const at::Tensor>(t));
  }
  /// A tensor from anywhere, such as a batch on the host, behind q's work. Requires: whoever makes it has done so, or does it on
  /// q.
  [[nodiscard]] static torch_device_tensor of(const at::Tensor& t, const queue& q) {
    const detail::torch_scope<Place> scope(q);
    return {t.detach().to(options(q)).contiguous(), q};
  }
  [[nodiscard]] const tensor_shape& shape() const { return shape_; }
  [[nodiscard]] cuda_buffer<api>& buffer() { return memory_; }
  [[nodiscard]] const cuda_buffer<api>& buffer() const { return memory_; }

  /// body(), in which torch reads and writes these on q, without gradients.
  /// Throws: cuda_error; what body throws.
  template <class Body>
  static void work(const queue& q, std::span<const torch_device_tensor* const> reads,
                   std::span<torch_device_tensor* const> writes, Body&& body) {
    std::vector<const cuda_buffer<api>*> read;
    std::vector<cuda_buffer<api>*> written;
    for (const auto* t : reads) read.push_back(&t->memory_);
    for (auto* t : writes) written.push_back(&t->memory_);
    work_on(q, std::span(std::as_const(read)), std::span(std::as_const(written)), [&] {
      const detail::torch_scope<Place> scope(q);
      const torch::NoGradGuard off;
      body();
    });
  }
  /// The same memory for torch, for work of this queue. Requires: this outlives it.
  [[nodiscard]] at::Tensor view(const queue& q) const {
    std::vector<std::int64_t> extents;
    for (const auto extent : shape_) extents.push_back(static_cast<std::int64_t>(extent));
    return memory_.bytes() == 0 ? at::empty(extents, options(q)) : at::from_blob(memory_.data(), extents, options(q));
  }

 private:
  [[nodiscard]] static at::TensorOptions options(const queue& q) {
    return at::device(detail::torch_device_of<Place>(q)).dtype(c10::CppTypeToScalarType<Element>::value);
  }
  [[nodiscard]] static std::size_t size_of(const tensor_shape& shape) {
    std::size_t count = 1;
    for (const auto extent : shape) count *= extent;
    return count;
  }
  tensor_shape shape_;
  cuda_buffer<api> memory_;
};

template <torch_place Place, class Element>
struct tensor_traits<torch_device_tensor<Place, Element>>
    : cuda_tensor_traits<torch_device_tensor<Place, Element>, Element, typename Place::api> {
  using tensor = torch_device_tensor<Place, Element>;
  using queue = cuda_queue<typename Place::api>;
  static void add(tensor& sum, const tensor& term, const queue& q) {
    const tensor* reads[] = {&term};
    tensor* writes[] = {&sum};
    tensor::work(q, reads, writes, [&] { sum.view(q).add_(term.view(q)); });
  }
  static void scale(tensor& t, double factor, const queue& q) {
    tensor* writes[] = {&t};
    tensor::work(q, {}, writes, [&] { t.view(q).mul_(factor); });
  }
};

/// A module of LibTorch on a GPU, as a torch_layer is one on the host, whose work is that of the rank's queue. Results are not
/// copied: they keep torch's memory, from its allocator, until all queues have done with them. Parameters, gradients and buffers
/// are the module's own memory. A rank on the host (a queue of the host) computes there.
/// Forwards that draw random numbers, see torch_layer, wait for their input.
/// Requires: all calls have the queue that it was made with, or one that works behind it; what forward gets stays where it is
/// until backward or backward_weight has ended.
template <torch_place Place, class Element = float>
class torch_device_layer {
  using api = typename Place::api;
  using queue = cuda_queue<api>;
  using tensor = torch_device_tensor<Place, Element>;
  using own_tensor = std::conditional_t<std::same_as<Element, float>, at::Tensor, torch_tensor<Element>>;
  using own_layer = torch_layer<own_tensor>;

 public:
  using context = typename own_layer::context;

  /// Moves the module to the queue's device. `forward`: see torch_layer.
  /// Throws: input_error, as torch_layer.
  torch_device_layer(std::shared_ptr<torch::nn::Module> module, std::function<at::Tensor(const at::Tensor&)> forward,
                     const queue& q)
      : torch_device_layer(q, [&] {
          module->to(detail::torch_device_of<Place>(q));
          return own_layer(module, std::move(forward), detail::torch_device_of<Place>(q));
        }) {}
  /// module: a shared_ptr of one that has a forward(Tensor) -> Tensor.
  template <std::derived_from<torch::nn::Module> Module>
  torch_device_layer(std::shared_ptr<Module> module, const queue& q)
      : torch_device_layer(
            module, [module](const at::Tensor& x) -> at::Tensor { return module->forward(x); }, q) {}

  [[nodiscard]] tensor forward(const tensor& x, context& c, const queue& q) {
    return on(q, [&] { return layer_.forward(x.view(q), c); });
  }
  [[nodiscard]] tensor backward(const tensor& dy, context& c, const queue& q) {
    return on(q, [&] { return layer_.backward(dy.view(q), c); });
  }
  [[nodiscard]] tensor backward_input(const tensor& dy, context& c, const queue& q) {
    return on(q, [&] { return layer_.backward_input(dy.view(q), c); });
  }
  void backward_weight(const tensor& dy, context& c, const queue& q) {
    const detail::torch_scope<Place> scope(q);
    layer_.backward_weight(dy.view(q), c);
  }
  [[nodiscard]] std::vector<tensor>& parameters() { return parameters_; }
  [[nodiscard]] std::vector<tensor>& gradients() { return gradients_; }
  [[nodiscard]] std::vector<tensor>& buffers() { return buffers_; }
  [[nodiscard]] const auto& parameter_names() const { return layer_.parameter_names(); }
  [[nodiscard]] const auto& buffer_names() const { return layer_.buffer_names(); }
  [[nodiscard]] torch::nn::Module& module() { return layer_.module(); }
  void draw(std::optional<std::uint64_t> seed) { layer_.draw(seed); }
  void begin_step(std::int64_t step) { layer_.begin_step(step); }

 private:
  template <class Make>
  [[nodiscard]] static own_layer made(const queue& q, const Make& make) {
    const detail::torch_scope<Place> scope(q);
    return make();
  }
  template <class Make>
  torch_device_layer(const queue& q, const Make& make) : layer_(made(q, make)) {
    const auto seen = [&](std::vector<own_tensor>& all, std::vector<tensor>& views) {
      for (const auto& t : all) views.emplace_back(t, q);
    };
    seen(layer_.parameters(), parameters_);
    seen(layer_.gradients(), gradients_);
    seen(layer_.buffers(), buffers_);
  }
  template <class Work>
  [[nodiscard]] static tensor on(const queue& q, const Work& work) {
    const detail::torch_scope<Place> scope(q);
    return tensor(work(), q);
  }

  own_layer layer_;
  std::vector<tensor> parameters_, gradients_, buffers_;
};

/// torch_loss for tensors on GPUs: a loss that enqueues its work. Targets are of torch_device_tensor or anything else that the
/// function takes.
template <torch_place Place, class Function>
[[nodiscard]] auto torch_device_loss(Function function) {
  return [function = std::move(function)]<class Element, class Target>(const torch_device_tensor<Place, Element>& output,
                                                                       const Target& target,
                                                                       const cuda_queue<typename Place::api>& q, double& value) {
    const detail::torch_scope<Place> scope(q);
    const torch::AutoGradMode on(true);
    const at::Tensor y = output.view(q).requires_grad_();
    const at::Tensor loss = [&] {
      if constexpr (requires { target.view(q); })
        return function(y, target.view(q));
      else
        return function(y, target);
    }();
    at::from_blob(&value, {}, at::kDouble).copy_(loss.detach().to(at::kDouble), true);
    auto found = torch::autograd::grad({loss}, {y});
    return torch_device_tensor<Place, Element>(detail::alone(std::move(found[0])), q);
  };
}

}  // namespace hetsched
