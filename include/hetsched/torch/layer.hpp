// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/layer/packed_layer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/torch/tensor.hpp>

namespace hetsched {

namespace detail {

/// A forward that draws may make modules under a seed: the same thread's.
inline std::recursive_mutex& torch_seed_mutex() {
  static std::recursive_mutex one_at_a_time;
  return one_at_a_time;
}

/// torch's generator of a device at a seed, for this thread alone among those that ask so, and then where it was. What other
/// threads draw meanwhile is drawn again later.
class torch_drawing {
 public:
  torch_drawing(std::uint64_t seed, const c10::Device& device)
      : alone_(torch_seed_mutex()), generator_(at::globalContext().defaultGenerator(device)) {
    // torch's own kernels hold it while they draw; not to be held where they are called.
    const std::lock_guard hold(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~torch_drawing() {
    const std::lock_guard hold(generator_.mutex());
    generator_.set_state(before_);
  }
  torch_drawing(const torch_drawing&) = delete;
  torch_drawing& operator=(const torch_drawing&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> alone_;
  at::Generator generator_;
  at::Tensor before_;
};

/// A hash of a tensor's first numbers, as many, on top of another. Waits for those of a GPU.
[[nodiscard]] inline std::uint64_t torch_hash(std::uint64_t hash, const at::Tensor& t, std::int64_t most) {
  const auto here = t.detach().flatten().narrow(0, 0, std::min(t.numel(), most)).cpu();
  const auto bytes = here.nbytes();
  const auto* const data = static_cast<const char*>(here.const_data_ptr());
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, data + i, std::min<std::size_t>(8, bytes - i));
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

/// Whether a module, its submodules apart, draws random numbers in its forward as it stands; none: no module of its kind does.
[[nodiscard]] inline std::optional<bool> torch_draws(const torch::nn::Module& m) {
  using namespace torch::nn;
  std::optional<bool> draws;
  const auto drops = [&](const auto* of_kind) {
    if (of_kind) draws = m.is_training() && of_kind->options.dropout() > 0;
  };
  drops(dynamic_cast<const MultiheadAttentionImpl*>(&m));
  drops(dynamic_cast<const LSTMImpl*>(&m));
  drops(dynamic_cast<const GRUImpl*>(&m));
  drops(dynamic_cast<const RNNImpl*>(&m));
  if (dynamic_cast<const FractionalMaxPool2dImpl*>(&m) || dynamic_cast<const FractionalMaxPool3dImpl*>(&m)) draws = true;
  // Torch's dropouts, and those of one's own that go by the name.
  if (dynamic_cast<const RReLUImpl*>(&m) || m.name().find("Dropout") != std::string::npos) draws = m.is_training();
  return draws;
}

/// What a torch_layer computes.
template <class Tensor, class Input, class Output>
using torch_function = std::conditional_t<std::same_as<Input, Tensor> && std::same_as<Output, Tensor>,
                                          std::function<at::Tensor(const at::Tensor&)>, std::function<Output(const Input&)>>;

}  // namespace detail

/// What make() returns, called with torch's generator at this seed. The generator is one for all threads of the process:
/// without this, ranks on threads that make modules at the same time take numbers from each other.
/// Example:
///   torch_seeded(seed + layer, [&] { return torch_layer(torch::nn::Linear(width, width)); })
template <class Make>
[[nodiscard]] auto torch_seeded(std::uint64_t seed, Make&& make) {
  const std::lock_guard lock(detail::torch_seed_mutex());
  torch::manual_seed(seed);
  return make();
}

/// A module of LibTorch, by its autograd, as a split_layer. What is handed on is contiguous and nobody else's: results that are
/// strided, or that the module or its graph keeps, are copied, others are not. The graph lives in the context, until backward
/// or backward_weight has walked it. parameters() are those that require a gradient, in the module's order, and share their
/// memory with it; buffers() are the others, then the module's buffers, as far as they are of the tensor's elements on the host:
/// frozen weights of 8 or 16 bits stay with the module, as they were made.
/// backward_input and backward_weight walk the graph once each, and both compute what lies between the module's operators.
/// Input, Output: Tensor, or the parts of a packed_layer around this one: std::tuple<torch::Tensor, torch_tensor<std::int64_t>>.
/// Modules that have one of torch's that draw random numbers (dropouts, MultiheadAttention and recurrent ones with a dropout,
/// RReLU, FractionalMaxPool) draw them by a seed of the input's, the first parameters', the step's and their own (draw()): the
/// same whenever the same microbatch comes by in a step, so also when it is recomputed, and under every schedule.
/// Requires: the module does not write to its input, where torch throws; others that draw random numbers are told to draw().
/// Example:
///   torch_layer(torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::GELU(), torch::nn::Linear(32, 8)))
template <pipeline_tensor Tensor = at::Tensor, detail::packed_side<Tensor> Input = Tensor,
          detail::packed_side<Tensor> Output = Tensor>
class torch_layer {
  using element = typename tensor_traits<Tensor>::element;
  using function = detail::torch_function<Tensor, Input, Output>;

 public:
  struct context {
    std::vector<at::Tensor> inputs;  ///< that have gradients
    std::vector<torch::autograd::Edge>
        outputs;  ///< of those: where the graph ends; outputs themselves belong to those that got them
  };

  /// `forward`: what the layer computes with this module; (const torch::Tensor&) -> torch::Tensor, or (const Input&) -> Output.
  /// `device`: where the module is; on GPUs a torch_device_layer is around this.
  /// Throws: input_error for a parameter that requires a gradient and is not of the tensor's elements, or not there.
  torch_layer(std::shared_ptr<torch::nn::Module> module, function forward, const c10::Device& device = at::kCPU)
      : module_(std::move(module)), forward_(std::move(forward)), device_(device) {
    for (const auto& p : module_->named_parameters()) {
      if (p->requires_grad())
        detail::require_torch<element>(p.value(), "the parameter " + p.key(), device_);
      else if (!detail::is_torch<element>(p.value(), device_))
        continue;
      // A module lists a parameter as often as its submodules share it.
      p->requires_grad() ? keep(p.key(), p.value(), parameters_, parameter_names_)
                         : keep(p.key(), p.value(), buffers_, buffer_names_);
    }
    for (const auto& b : module_->named_buffers())
      if (detail::is_torch<element>(b.value(), device_)) keep(b.key(), b.value(), buffers_, buffer_names_);
    for (const auto& p : parameters_) gradients_.push_back(at::zeros_like(p));
    for (const auto& m : module_->modules())
      if (detail::torch_draws(*m)) drawing_.push_back(m);
  }
  /// module: torch::nn::Linear, torch::nn::Sequential or any other holder, torch::nn::AnyModule, or a shared_ptr of one's own
  /// module; it has a forward(Tensor) -> Tensor.
  template <class Module>
  requires(std::same_as<Input, Tensor>&& std::same_as<Output, Tensor> &&
           !std::same_as<Module, torch_layer>) explicit torch_layer(Module module, const c10::Device& device = at::kCPU)
      : torch_layer(pointer_of(module), function_of(module), device) {}

  [[nodiscard]] Output forward(const Input& input, context& c) {
    const torch::AutoGradMode on(true);
    c = {};
    Input given = input;
    each(given, [&]<class T>(T& t) {
      detail::require_torch<typename tensor_traits<T>::element>(t, "the module's input", device_);
      t = t.detach();
      if constexpr (has_gradient<T>) c.inputs.push_back(t.requires_grad_());
    });
    Output y = computed(given);
    each(y, [&]<class T>(T& t) {
      detail::require_torch<typename tensor_traits<T>::element>(t, "the module's output", device_);
      if constexpr (has_gradient<T>)
        c.outputs.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
      at::Tensor handed_on = t.detach();
      t.reset();
      t = detail::alone(std::move(handed_on));
    });
    return y;
  }
  [[nodiscard]] Input backward(const Output& gradient, context& c) {
    auto found = differentiate(gradient, c, true, true, false);
    add(found, c.inputs.size());
    return input_gradient(found, std::exchange(c, {}));
  }
  [[nodiscard]] Input backward_input(const Output& gradient, context& c) {
    auto found = differentiate(gradient, c, true, false, !parameters_.empty());
    return input_gradient(found, c);
  }
  void backward_weight(const Output& gradient, context& c) {
    if (!parameters_.empty()) add(differentiate(gradient, c, false, true, false), 0);
    c = {};
  }
  [[nodiscard]] std::vector<Tensor>& parameters() { return parameters_; }
  [[nodiscard]] std::vector<Tensor>& gradients() { return gradients_; }
  [[nodiscard]] std::vector<Tensor>& buffers() { return buffers_; }
  [[nodiscard]] torch::nn::Module& module() { return *module_; }
  /// The module draws numbers of torch's generator in all of its forwards, and this is its seed; none: it does not draw. Forwards
  /// that draw wait for each other where ranks are threads, as the generator is one for all of them; it is left where it was.
  /// Requires: none of them waits for what another rank of the process does, such as a collective.
  void draw(std::optional<std::uint64_t> seed) {
    seed_ = seed;
    drawing_.clear();
  }
  /// Numbers that are drawn from then on are those of this step.
  void begin_step(std::int64_t step) { step_ = step; }
  /// What the module calls them, with their numbers in parameters() and buffers(); one that submodules share has several names.
  [[nodiscard]] const std::vector<std::pair<std::string, int>>& parameter_names() const { return parameter_names_; }
  [[nodiscard]] const std::vector<std::pair<std::string, int>>& buffer_names() const { return buffer_names_; }

 private:
  static void keep(const std::string& name, const at::Tensor& tensor, std::vector<Tensor>& kept,
                   std::vector<std::pair<std::string, int>>& names) {
    const auto known = std::find_if(kept.begin(), kept.end(), [&](const Tensor& t) { return t.is_same(tensor); });
    names.emplace_back(name, static_cast<int>(known - kept.begin()));
    if (known == kept.end()) kept.push_back(tensor);
  }

  template <class Module>
  static auto pointer_of(Module m) {
    if constexpr (requires { m.ptr(); })
      return m.ptr();
    else
      return m;
  }
  template <class Module>
  static function function_of(const Module& m) {
    if constexpr (std::same_as<Module, torch::nn::AnyModule>) {
      return [m = Module(m)](const at::Tensor& x) mutable { return m.template forward<at::Tensor>(x); };
    } else {
      const auto p = pointer_of(m);
      constexpr bool fits = requires(const at::Tensor& x) {
        { p->forward(x) } -> std::convertible_to<at::Tensor>;
      };
      static_assert(fits,
                    "the module has no forward(Tensor) that returns a Tensor: give torch_layer a pointer to it and a function");
      return [p](const at::Tensor& x) -> at::Tensor { return p->forward(x); };
    }
  }

  [[nodiscard]] Output computed(const Input& given) {
    const auto draws = [](const auto& m) { return *detail::torch_draws(*m); };
    if (!seed_ && std::none_of(drawing_.begin(), drawing_.end(), draws)) return forward_(given);
    std::uint64_t hash = seed_.value_or(0) ^ (static_cast<std::uint64_t>(step_) * 0xd1342543de82ef95u);
    each(given, [&](const at::Tensor& t) { hash = detail::torch_hash(hash, t, t.numel()); });
    for (const auto& p : parameters_) hash = detail::torch_hash(hash, p, 16);
    const detail::torch_drawing at_seed(hash, device_);
    return forward_(given);
  }

  template <class Side, class Body>
  static void each(Side& side, Body&& body) {
    if constexpr (tensor_parts<std::remove_const_t<Side>>)
      detail::for_each_part(side, body);
    else
      body(side);
  }

  /// The gradients of the inputs, of the parameters, or of one after the other; undefined where nothing depends on them.
  [[nodiscard]] torch::autograd::variable_list differentiate(const Output& gradient, context& c, bool of_inputs,
                                                             bool of_parameters, bool again) {
    torch::autograd::edge_list roots, wanted;
    torch::autograd::variable_list gradients;
    std::size_t next = 0;
    each(gradient, [&]<class T>(const T& t) {
      if constexpr (has_gradient<T>)
        if (auto& root = c.outputs[next++]; root.is_valid()) roots.push_back(root), gradients.push_back(t);
    });
    for (std::size_t i = 0; of_inputs && i < c.inputs.size(); ++i)
      wanted.push_back(torch::autograd::impl::gradient_edge(c.inputs[i]));
    for (std::size_t i = 0; of_parameters && i < parameters_.size(); ++i)
      wanted.push_back(torch::autograd::impl::gradient_edge(parameters_[i]));
    if (roots.empty() || wanted.empty()) return torch::autograd::variable_list(wanted.size());
    return torch::autograd::Engine::get_default_engine().execute(roots, gradients, again, false, false, wanted);
  }
  void add(const torch::autograd::variable_list& found, std::size_t first) {
    const torch::NoGradGuard off;
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      if (found[first + i].defined()) gradients_[i].add_(found[first + i]);
  }
  [[nodiscard]] static Input input_gradient(torch::autograd::variable_list& found, const context& c) {
    Input gradient;
    if constexpr (requires { gradient.resize(1); }) gradient.resize(c.inputs.size());
    std::size_t next = 0;
    each(gradient, [&]<class T>(T& t) {
      if constexpr (has_gradient<T>) {
        t = found[next].defined() ? detail::alone(std::move(found[next])) : at::zeros_like(c.inputs[next]);
        ++next;
      }
    });
    return gradient;
  }

  std::shared_ptr<torch::nn::Module> module_;
  function forward_;
  c10::Device device_;
  std::optional<std::uint64_t> seed_;                        ///< told
  std::vector<std::shared_ptr<torch::nn::Module>> drawing_;  ///< submodules that may draw; empty once told
  std::int64_t step_ = 0;
  std::vector<Tensor> parameters_, gradients_, buffers_;
  std::vector<std::pair<std::string, int>> parameter_names_, buffer_names_;
};

/// A layer that takes and gives several tensors: a packed_layer around a torch_layer. `forward`: (const Input&) -> Output, what
/// it computes with the module. Example:
///   using pair = std::tuple<torch::Tensor, torch_tensor<std::int64_t>>;  // hidden states and a mask
///   torch_parts_layer<pair, pair>(block, [block](const pair& x) {
///     return pair{block->forward(std::get<0>(x), std::get<1>(x)), std::get<1>(x)};
///   })
template <class Input, class Output, pipeline_tensor Tensor = at::Tensor>
[[nodiscard]] auto torch_parts_layer(std::shared_ptr<torch::nn::Module> module, std::function<Output(const Input&)> forward,
                                     packed_room room = {}) {
  using own_layer = torch_layer<Tensor, Input, Output>;
  return packed_layer<Tensor, Input, Output, own_layer>(own_layer(std::move(module), std::move(forward)), room);
}

}  // namespace hetsched
