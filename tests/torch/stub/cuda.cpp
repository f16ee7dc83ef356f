// SPDX-License-Identifier: Apache-2.0
// Component torch on CUDA's GPUs: where there is a toolkit, against the declarations beside this, and in the lane torch against
// LibTorch's.
#include <memory>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <hetsched/cuda.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/torch.hpp>
#include <hetsched/torch/cuda.hpp>

using tensor = hetsched::torch_device_tensor<hetsched::torch_cuda>;
using halves = hetsched::torch_device_tensor<hetsched::torch_cuda, at::BFloat16>;
using cuda = hetsched::cuda_runtime;

template class hetsched::torch_device_layer<hetsched::torch_cuda>;
template class hetsched::torch_device_layer<hetsched::torch_cuda, at::BFloat16>;
static_assert(hetsched::cuda_carried<tensor, cuda> && hetsched::cuda_carried<halves, cuda>);

double train(const std::vector<tensor>& batch) {
  using channels = hetsched::cuda_local_communicator<tensor, cuda>;
  hetsched::cuda_devices<cuda> gpus({}, {}, hetsched::torch_adoption());
  double loss = 0;
  hetsched::run_on_threads(channels::connect(gpus, {0, 1}), [&](channels& channel) {
    const hetsched::cuda_backend<cuda> own(gpus, channel.rank(), "rank " + std::to_string(channel.rank()));
    const auto q = own.compute_queue();
    auto trainer = hetsched::make_trainer<tensor>(
        hetsched::even_layout(2, hetsched::gpipe(2, 2)),
        [&](int) { return hetsched::torch_device_layer<hetsched::torch_cuda>(torch::nn::Linear(4, 4).ptr(), q); },
        [](int) {
          return hetsched::tensor_shape{2, 4};
        },
        channel, hetsched::torch_optimizer<torch::optim::AdamW>{torch::optim::AdamWOptions(1e-3)}, {}, own);
    const auto squares = [](const at::Tensor& y, const at::Tensor&) { return y; };
    loss = trainer.step(std::span(batch), std::span(batch), hetsched::torch_device_loss<hetsched::torch_cuda>(squares)).loss;
  });
  return loss;
}
