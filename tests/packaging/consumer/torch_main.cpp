// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/linear.h>

#include <hetsched/torch.hpp>

int main() {
  hetsched::torch_layer layer(torch::nn::Linear(3, 2));
  decltype(layer)::context context;
  const auto y = layer.forward(torch::zeros({4, 3}), context);
  return y.size(0) == 4 && y.size(1) == 2 && layer.parameters().size() == 2 ? 0 : 1;
}
