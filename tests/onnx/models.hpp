// SPDX-License-Identifier: Apache-2.0
// Models as exporters write them, built through ONNX's own types.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <onnx/onnx_pb.h>

#include <hetsched/core/error.hpp>

#include "import.hpp"

namespace hetsched::test {

using names = std::vector<std::string>;
using list = std::vector<std::int64_t>;
using axis = std::variant<int, const char*>;

/// A model to be built node by node; each result is named after its node.
class net {
 public:
  net() {
    model.set_ir_version(8);
    model.add_opset_import()->set_version(17);
  }

  std::string input(const std::string& name, std::initializer_list<axis> sizes, int element = onnx::TensorProto::FLOAT) {
    auto& in = *model.mutable_graph()->add_input();
    in.set_name(name);
    auto& type = *in.mutable_type()->mutable_tensor_type();
    type.set_elem_type(element);
    for (const auto& size : sizes) {
      auto& dim = *type.mutable_shape()->add_dim();
      if (std::holds_alternative<int>(size))
        dim.set_dim_value(std::get<int>(size));
      else
        dim.set_dim_param(std::get<const char*>(size));
    }
    return name;
  }

  /// Its numbers lie in a file that is not there.
  std::string weight(const list& sizes) {
    auto& tensor = tensor_of(sizes, onnx::TensorProto::FLOAT);
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    return tensor.name();
  }

  /// The same of int8.
  std::string quantised(const list& sizes) {
    auto& tensor = tensor_of(sizes, onnx::TensorProto::INT8);
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    return tensor.name();
  }

  std::string numbers(const list& values) {
    auto& tensor = tensor_of({static_cast<std::int64_t>(values.size())}, onnx::TensorProto::INT64);
    for (const auto x : values) tensor.add_int64_data(x);
    return tensor.name();
  }

  std::string index(std::int64_t value) {
    auto& tensor = tensor_of({}, onnx::TensorProto::INT64);
    tensor.add_int64_data(value);
    return tensor.name();
  }

  std::string scalar(float value) {
    auto& tensor = tensor_of({}, onnx::TensorProto::FLOAT);
    tensor.add_float_data(value);
    return tensor.name();
  }

  names node(const std::string& type, const names& inputs, const std::vector<std::pair<std::string, list>>& attributes = {},
             int results = 1) {
    auto& n = *model.mutable_graph()->add_node();
    n.set_op_type(type);
    n.set_name("/" + scope + type + std::to_string(model.graph().node_size()));
    for (const auto& name : inputs) n.add_input(name);
    for (int i = 0; i < results; ++i) n.add_output(n.name() + "." + std::to_string(i));
    for (const auto& [name, values] : attributes) {
      auto& a = *n.add_attribute();
      a.set_name(name);
      const bool one = name == "axis" || name == "transB" || name == "group" || name == "to" || name == "K" || name == "N";
      a.set_type(one ? onnx::AttributeProto::INT : onnx::AttributeProto::INTS);
      if (one)
        a.set_i(values.front());
      else
        for (const auto x : values) a.add_ints(x);
    }
    return {n.output().begin(), n.output().end()};
  }
  std::string operator()(const std::string& type, const names& inputs,
                         const std::vector<std::pair<std::string, list>>& attributes = {}) {
    return node(type, inputs, attributes).front();
  }

  [[nodiscard]] onnx::NodeProto& last_node() { return *model.mutable_graph()->mutable_node(model.graph().node_size() - 1); }

  /// Of the last node.
  void text_attribute(const std::string& name, const std::string& text) {
    auto& a = *model.mutable_graph()->mutable_node(model.graph().node_size() - 1)->add_attribute();
    a.set_name(name);
    a.set_type(onnx::AttributeProto::STRING);
    a.set_s(text);
  }

  [[nodiscard]] std::string bytes() const { return model.SerializeAsString(); }
  [[nodiscard]] onnx_import::imported import(const onnx_import::options& options = {}) const {
    std::istringstream file(bytes());
    return onnx_import::import_model(file, options);
  }
  [[nodiscard]] std::string complaint(const onnx_import::options& options = {}) const {
    try {
      static_cast<void>(import(options));
    } catch (const input_error& wrong) {
      return wrong.what();
    }
    return "none";
  }

  onnx::ModelProto model;
  std::string scope;

 private:
  onnx::TensorProto& tensor_of(const list& sizes, int element) {
    auto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name("t" + std::to_string(model.graph().initializer_size()));
    tensor.set_data_type(element);
    for (const auto size : sizes) tensor.add_dims(size);
    return tensor;
  }
};

inline net mlp() {
  net n;
  const auto x = n.input("x", {"N", 784});
  const auto y = n("Relu", {n("Gemm", {x, n.weight({512, 784}), n.weight({512})}, {{"transB", {1}}})});
  n("Gemm", {y, n.weight({512, 10}), n.weight({10})});
  return n;
}

constexpr std::int64_t blocks = 6, hidden = 64, heads = 4, words = 1000, sequence = 48;

/// A GPT as exporters write it: sizes computed from shapes, transposed views of the embedding.
inline net gpt() {
  net n;
  const auto ids = n.input("ids", {"batch", "seq"}, onnx::TensorProto::INT64);
  const auto table = n.weight({words, hidden});
  const auto norm = [&](const std::string& x) { return n("LayerNormalization", {x, n.weight({hidden}), n.weight({hidden})}); };
  const auto linear = [&](const std::string& x, std::int64_t k, std::int64_t m) {
    return n("Add", {n("MatMul", {x, n.weight({k, m})}), n.weight({m})});
  };
  const auto size = [&](const std::string& x, std::int64_t which) {
    return n("Unsqueeze", {n("Gather", {n("Shape", {x}), n.index(which)}), n.numbers({0})});
  };
  auto x = n("Add", {n("Gather", {table, ids}), n.weight({sequence, hidden})});
  for (int b = 0; b < blocks; ++b) {
    n.scope = "block" + std::to_string(b) + "/";
    const auto parts = n.node("Split", {linear(norm(x), hidden, 3 * hidden)}, {{"axis", {2}}}, 3);
    const auto by_heads = [&](const std::string& part, const list& order) {
      const auto shape = n("Concat", {size(part, 0), size(part, 1), n.numbers({heads, hidden / heads})}, {{"axis", {0}}});
      return n("Transpose", {n("Reshape", {part, shape})}, {{"perm", order}});
    };
    const auto q = by_heads(parts[0], {0, 2, 1, 3}), k = by_heads(parts[1], {0, 2, 3, 1}), v = by_heads(parts[2], {0, 2, 1, 3});
    const auto scores = n("Softmax", {n("Mul", {n("MatMul", {q, k}), n.scalar(0.25f)})}, {{"axis", {-1}}});
    const auto mixed = n("Transpose", {n("MatMul", {scores, v})}, {{"perm", {0, 2, 1, 3}}});
    x = n("Add", {x, linear(n("Reshape", {mixed, n.numbers({0, 0, -1})}), hidden, hidden)});
    x = n("Add", {x, linear(n("Gelu", {linear(norm(x), hidden, 4 * hidden)}), 4 * hidden, hidden)});
  }
  n.scope = "head/";
  n("MatMul", {norm(x), n("Transpose", {table}, {{"perm", {1, 0}}})});
  return n;
}

inline net resnet50() {
  net n;
  const auto conv = [&](const std::string& x, std::int64_t in, std::int64_t out, std::int64_t window, std::int64_t stride) {
    const auto pad = window / 2;
    const auto y =
        n("Conv", {x, n.weight({out, in, window, window})}, {{"strides", {stride, stride}}, {"pads", {pad, pad, pad, pad}}});
    return n("BatchNormalization", {y, n.weight({out}), n.weight({out}), n.weight({out}), n.weight({out})});
  };
  auto x = n("Relu", {conv(n.input("image", {"N", 3, 224, 224}), 3, 64, 7, 2)});
  x = n("MaxPool", {x}, {{"kernel_shape", {3, 3}}, {"strides", {2, 2}}, {"pads", {1, 1, 1, 1}}});
  std::int64_t in = 64, width = 64;
  for (const int count : {3, 4, 6, 3}) {
    for (int b = 0; b < count; ++b) {
      const std::int64_t stride = b == 0 && width > 64 ? 2 : 1;
      auto y = n("Relu", {conv(x, in, width, 1, 1)});
      y = conv(n("Relu", {conv(y, width, width, 3, stride)}), width, 4 * width, 1, 1);
      x = n("Relu", {n("Add", {y, b == 0 ? conv(x, in, 4 * width, 1, stride) : x})});
      in = 4 * width;
    }
    width *= 2;
  }
  x = n("Flatten", {n("GlobalAveragePool", {x})}, {{"axis", {1}}});
  n("Gemm", {x, n.weight({1000, 2048}), n.weight({1000})}, {{"transB", {1}}});
  return n;
}

}  // namespace hetsched::test
