// SPDX-License-Identifier: Apache-2.0
// Component torch, all of it: against the declarations beside this, and in the lane torch against LibTorch's.
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <hetsched/hetsched.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/torch.hpp>
#include <hetsched/torch/ordered_group.hpp>
#include <hetsched/torch/process_group.hpp>
#include <hetsched/torch/state_file.hpp>

using doubles = hetsched::torch_tensor<double>;
using halves = hetsched::torch_tensor<at::BFloat16>;
using integers = hetsched::torch_tensor<std::int64_t>;

template class hetsched::torch_layer<at::Tensor>;
template class hetsched::torch_layer<doubles>;
template class hetsched::torch_layer<halves>;
template class hetsched::torch_group_communicator<at::Tensor>;
template class hetsched::torch_ordered_communicator<at::Tensor, hetsched::torch_group_communicator<at::Tensor>>;
static_assert(hetsched::pipeline_tensor<at::Tensor> && hetsched::pipeline_tensor<doubles> && hetsched::pipeline_tensor<integers>);

template <class Optimizer>
double train(const hetsched::torch_optimizer<Optimizer>& optimizer, const std::vector<at::Tensor>& batch) {
  double loss = 0;
  using channels = hetsched::thread_communicator<at::Tensor>;
  hetsched::run_on_threads(channels::connect(2), [&](channels& channel) {
    auto trainer = hetsched::make_trainer<at::Tensor>(
        hetsched::even_layout(2, hetsched::gpipe(2, 2)),
        [](int layer) {
          return hetsched::torch_seeded(static_cast<std::uint64_t>(layer),
                                        [] { return hetsched::torch_layer(torch::nn::Linear(4, 4)); });
        },
        [](int) {
          return hetsched::tensor_shape{2, 4};
        },
        channel, optimizer);
    hetsched::load_torch(trainer, channel, "from.pt");
    hetsched::save_torch(trainer, channel, "to.pt");
    loss = trainer.step(batch, batch, hetsched::torch_loss([](const at::Tensor& y, const at::Tensor&) { return y; })).loss;
  });
  return loss;
}
template double train(const hetsched::torch_optimizer<torch::optim::Adam>&, const std::vector<at::Tensor>&);
template double train(const hetsched::torch_optimizer<torch::optim::AdamW>&, const std::vector<at::Tensor>&);
template double train(const hetsched::torch_optimizer<torch::optim::SGD>&, const std::vector<at::Tensor>&);

hetsched::any_layer<at::Tensor> layer_of_parts(const std::shared_ptr<torch::nn::LinearImpl>& linear) {
  using pair = std::tuple<at::Tensor, integers>;
  return hetsched::torch_parts_layer<pair, pair>(linear, [=](const pair& x) {
    return pair{linear->forward(std::get<0>(x)), std::get<1>(x)};
  });
}
hetsched::torch_layer<> layer_of_names(const at::Tensor& weight) {
  return {hetsched::named_torch_module({{"weight", weight}}), [](const at::Tensor& x) { return x; }};
}
hetsched::torch_layer<> layer_of_any(const torch::nn::AnyModule& module) { return hetsched::torch_layer(module); }

#ifdef HETSCHED_TUPLE
struct pair_module : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {x, x}; }
};
hetsched::torch_layer<> layer_of_pairs(const std::shared_ptr<pair_module>& module) { return hetsched::torch_layer<>(module); }
#endif

#ifdef HETSCHED_TEMPORARY
struct by_hand {
  struct context {};
  at::Tensor forward(const at::Tensor& x, context&) { return x; }
  at::Tensor backward(const at::Tensor& g, context&) { return g; }
  auto parameters() { return module->parameters(); }
  std::vector<at::Tensor>& gradients() { return none; }
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> none;
};
hetsched::any_layer<at::Tensor> layer_by_hand() { return by_hand(); }
#endif
