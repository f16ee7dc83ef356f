// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// A tensor by the name that it has in a module, "mlp.0.weight".
using named_torch_tensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A module of these parameters and buffers and no forward, with submodules as their names say: how a torch_layer knows what a
/// module of another language, such as Python's, consists of. Tensors share their memory. Example:
///   torch_layer(named_torch_module(parameters, buffers), [](const torch::Tensor& x) { return call_python(x); })
/// Throws: input_error for a name with an empty part, or one that is there twice.
[[nodiscard]] inline std::shared_ptr<torch::nn::Module> named_torch_module(const named_torch_tensors& parameters,
                                                                           const named_torch_tensors& buffers = {}) {
  const auto root = std::make_shared<torch::nn::Module>();
  const auto place = [&](const std::string& name, auto&& put) {
    auto inside = root;
    std::size_t first = 0;
    for (auto dot = name.find('.'); dot != std::string::npos; first = dot + 1, dot = name.find('.', first)) {
      const auto part = name.substr(first, dot - first);
      if (part.empty()) throw input_error("a tensor of a module: found the name \"" + name + "\", expected no empty part");
      const auto children = inside->named_children();
      const auto* const child = children.find(part);
      inside = child ? *child : inside->register_module(part, std::make_shared<torch::nn::Module>());
    }
    const auto last = name.substr(first);
    if (last.empty()) throw input_error("a tensor of a module: found the name \"" + name + "\", expected no empty part");
    if (inside->named_parameters(false).contains(last) || inside->named_buffers(false).contains(last))
      throw input_error("a tensor of a module: the name \"" + name + "\" is there twice");
    put(*inside, last);
  };
  for (const auto& [name, tensor] : parameters)
    place(name,
          [&](torch::nn::Module& m, const std::string& last) { m.register_parameter(last, tensor, tensor.requires_grad()); });
  for (const auto& [name, tensor] : buffers)
    place(name, [&](torch::nn::Module& m, const std::string& last) { m.register_buffer(last, tensor); });
  return root;
}

}  // namespace hetsched
