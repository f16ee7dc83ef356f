// SPDX-License-Identifier: Apache-2.0
// Types, sizes and, where they are small and known, numbers of all values of an ONNX graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <hetsched/core/error.hpp>

#include "fold.hpp"

namespace onnx_import {

[[nodiscard]] inline std::string called(const onnx::NodeProto& node) {
  return "node " + (node.name().empty() ? "" : node.name() + " ") + "(" + node.op_type() + ")";
}

[[nodiscard]] inline sizes sizes_of(const onnx::TensorProto& tensor) { return {tensor.dims().begin(), tensor.dims().end()}; }

/// Sizes along all axes, where all are known.
[[nodiscard]] inline std::optional<sizes> sizes_of(const onnx::TypeProto& type) {
  if (!type.has_tensor_type() || !type.tensor_type().has_shape()) return std::nullopt;
  sizes result;
  for (const auto& axis : type.tensor_type().shape().dim()) {
    if (!axis.has_dim_value()) return std::nullopt;
    result.push_back(axis.dim_value());
  }
  return result;
}

[[nodiscard]] inline bool is_float(int element) {
  return element == onnx::TensorProto::FLOAT || element == onnx::TensorProto::FLOAT16 || element == onnx::TensorProto::BFLOAT16 ||
         element == onnx::TensorProto::DOUBLE;
}

/// The labels of an Einsum's operands and result, where all are written out.
struct einsum_labels {
  std::vector<std::string> operands{};
  std::string result{};
};

[[nodiscard]] inline std::optional<einsum_labels> labels_of(const onnx::NodeProto& einsum) {
  const auto* equation = attribute(einsum, "equation");
  std::string text = equation != nullptr ? equation->s() : "";
  std::erase(text, ' ');
  const auto arrow = text.find("->");
  if (arrow == std::string::npos || text.find('.') != std::string::npos) return std::nullopt;
  einsum_labels labels{.operands = {""}, .result = text.substr(arrow + 2)};
  for (const char c : text.substr(0, arrow))
    if (c == ',')
      labels.operands.emplace_back();
    else
      labels.operands.back() += c;
  if (static_cast<int>(labels.operands.size()) != einsum.input_size()) return std::nullopt;
  return labels;
}

/// Values by name. Nodes are to be inferred in their order.
class values {
 public:
  /// Fixes the sizes of the model's inputs; throws input_error where one stays open.
  values(const onnx::ModelProto& model, const std::map<std::string, sizes>& samples, std::vector<std::string>& warnings)
      : warnings_(warnings) {
    for (const auto& set : model.opset_import()) versions_[domain_of(set.domain())] = static_cast<int>(set.version());
    const auto& graph = model.graph();
    for (const auto& tensor : graph.initializer()) {
      onnx::TypeProto type;
      set_type(type, tensor.data_type(), sizes_of(tensor));
      define(tensor.name(), std::move(type));
      know(tensor);
    }
    for (const auto& [name, given] : samples) bind(graph, name, given);
    for (const auto& input : graph.input())
      if (!types_.contains(input.name())) define(input.name(), fixed(input, samples));
    for (const auto* declared : {&graph.value_info(), &graph.output()})
      for (const auto& value : *declared) declared_[value.name()] = &value.type();
  }

  [[nodiscard]] int element(const std::string& name) const { return types_.at(name).tensor_type().elem_type(); }

  /// Throws input_error where they are not known, naming the reader.
  [[nodiscard]] const sizes& shape(const std::string& name, const onnx::NodeProto& reader) const {
    const auto found = shapes_.find(name);
    if (found == shapes_.end())
      throw hetsched::input_error(called(reader) + ": the sizes of " + name + " cannot be known before the model runs");
    return found->second;
  }

  [[nodiscard]] bool has(const std::string& name) const { return types_.contains(name); }

  /// The numbers of a small value that shapes may depend on; null if not known.
  [[nodiscard]] const numbers* known(const std::string& name) const {
    const auto found = known_.find(name);
    return found == known_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] int version(const onnx::NodeProto& node) const {
    const auto found = versions_.find(domain_of(node.domain()));
    return found == versions_.end() ? 1 : found->second;
  }

  /// Defines the node's results. Throws input_error for a node that the standard refuses.
  void infer(onnx::NodeProto& node) {
    for (const auto& name : node.input())
      if (!name.empty() && !has(name)) throw hetsched::input_error(called(node) + ": nothing before it makes " + name);
    const bool is_standard = domain_of(node.domain()).empty();
    const auto* schema = onnx::OpSchemaRegistry::Schema(node.op_type(), version(node), domain_of(node.domain()));
    std::vector<onnx::TypeProto> results(static_cast<std::size_t>(node.output_size()));
    if (!(is_standard ? own_rule(node, results) : packed_product(node, results)) && schema != nullptr &&
        schema->has_type_and_shape_inference_function()) {
      std::unordered_map<std::string, onnx::TypeProto*> types;
      std::unordered_map<std::string, const onnx::TensorProto*> data;
      for (const auto& name : node.input()) {
        if (name.empty()) continue;
        types[name] = &types_.at(name);
        if (const auto found = tensors_.find(name); found != tensors_.end()) data[name] = &found->second;
      }
      onnx::shape_inference::InferenceContextImpl context(node, types, data, {});
      try {
        schema->GetTypeAndShapeInferenceFunction()(context);
      } catch (const std::exception& wrong) {
        throw hetsched::input_error(called(node) + ": " + wrong.what());
      }
      for (std::size_t i = 0; i < results.size(); ++i) results[i] = *context.getOutputType(i);
    }
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      auto& type = results[static_cast<std::size_t>(i)];
      if (!sizes_of(type)) complete(node, node.output(i), type);
      define(node.output(i), std::move(type));
    }
    compute(node);
  }

 private:
  [[nodiscard]] static std::string domain_of(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

  // Some exporters call all open axes "?".
  [[nodiscard]] static bool is_name(const std::string& axis) { return !axis.empty() && axis != "?"; }

  static void set_type(onnx::TypeProto& type, int element, const sizes& shape) {
    type.mutable_tensor_type()->set_elem_type(element);
    auto* axes = type.mutable_tensor_type()->mutable_shape();
    for (const auto size : shape) axes->add_dim()->set_dim_value(size);
  }

  void define(const std::string& name, onnx::TypeProto type) {
    if (auto shape = sizes_of(type)) {
      for (const auto size : *shape)
        if (size < 0) throw hetsched::input_error("value " + name + " has a negative size");
      shapes_[name] = std::move(*shape);
    }
    types_[name] = std::move(type);
  }

  void know(const onnx::TensorProto& tensor) {
    if (auto found = known_numbers(tensor)) know(tensor.name(), std::move(*found), tensor.data_type());
  }
  void know(const std::string& name, numbers what, int element) {
    tensors_[name] = to_tensor(what, element);
    known_[name] = std::move(what);
  }

  // Names of axes are the same size wherever they stand.
  void bind(const onnx::GraphProto& graph, const std::string& name, const sizes& given) {
    const auto input = std::find_if(graph.input().begin(), graph.input().end(), [&](const auto& i) { return i.name() == name; });
    if (input == graph.input().end() || types_.contains(name)) throw hetsched::input_error("the model has no input " + name);
    const auto& axes = input->type().tensor_type().shape();
    if (input->type().tensor_type().has_shape() && axes.dim_size() != static_cast<int>(given.size()))
      throw hetsched::input_error("input " + name + " has " + std::to_string(axes.dim_size()) + " axes, not " +
                                  std::to_string(given.size()));
    for (int i = 0; i < axes.dim_size(); ++i) {
      const auto size = given[static_cast<std::size_t>(i)];
      if (const auto& axis = axes.dim(i).dim_param(); is_name(axis) && axes_.try_emplace(axis, size).first->second != size)
        throw hetsched::input_error("axis " + axis + " of input " + name + " cannot be both " + std::to_string(axes_[axis]) +
                                    " and " + std::to_string(size));
    }
  }

  [[nodiscard]] onnx::TypeProto fixed(const onnx::ValueInfoProto& input, const std::map<std::string, sizes>& samples) {
    onnx::TypeProto type = input.type();
    if (!type.has_tensor_type()) throw hetsched::input_error("input " + input.name() + " is not a tensor");
    const auto hint = [&](const std::string& what) {
      return hetsched::input_error("input " + input.name() + ": " + what + "; say it with --sample " + input.name() + "=1,...");
    };
    if (const auto given = samples.find(input.name()); given != samples.end()) {
      type.mutable_tensor_type()->clear_shape();
      set_type(type, type.tensor_type().elem_type(), given->second);
      return type;
    }
    if (!type.tensor_type().has_shape()) throw hint("its sizes are open");
    auto& axes = *type.mutable_tensor_type()->mutable_shape();
    for (int i = 0; i < axes.dim_size(); ++i) {
      auto& axis = *axes.mutable_dim(i);
      if (axis.has_dim_value() && axis.dim_value() > 0) {
        if (i == 0 && axis.dim_value() > 1)
          warnings_.push_back("input " + input.name() + " is fixed to " + std::to_string(axis.dim_value()) +
                              " along its first axis: amounts are for all of them together");
        continue;
      }
      const auto bound = axes_.find(axis.dim_param());
      if (axis.has_dim_param() && bound != axes_.end()) {
        axis.set_dim_value(bound->second);
      } else if (i == 0) {
        if (is_name(axis.dim_param())) axes_[axis.dim_param()] = 1;
        axis.set_dim_value(1);
      } else {
        throw hint("the size of axis " + std::to_string(i) + (axis.dim_param().empty() ? "" : " (" + axis.dim_param() + ")") +
                   " is open");
      }
    }
    return type;
  }

  // What libonnx does not know, or knows only as older versions of the standard had it. False: not such a node.
  bool own_rule(const onnx::NodeProto& node, std::vector<onnx::TypeProto>& results) const {
    const auto& type = node.op_type();
    if (node.input_size() == 0 || results.empty() || !shapes_.contains(node.input(0))) return false;
    auto shape = shapes_.at(node.input(0));
    const int element_type = element(node.input(0));
    const auto rank = static_cast<std::int64_t>(shape.size());
    const auto at = [&](std::int64_t axis) -> std::int64_t& {
      if (axis < -rank || axis >= rank) throw hetsched::input_error(called(node) + ": no axis " + std::to_string(axis));
      return shape[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
    };
    if (type.starts_with("Reduce") && node.input_size() > 1 && !node.input(1).empty()) {
      const auto* axes = known(node.input(1));
      if (axes == nullptr) return false;
      constexpr std::int64_t gone = -1;
      for (const double axis : axes->data) at(whole(axis)) = integer(node, "keepdims", 1) != 0 ? 1 : gone;
      if (axes->data.empty() && integer(node, "noop_with_empty_axes", 0) == 0)
        shape.assign(integer(node, "keepdims", 1) != 0 ? shape.size() : 0, 1);
      std::erase(shape, gone);
      set_type(results[0], element_type, shape);
    } else if (type == "Split" && attribute(node, "num_outputs") != nullptr) {
      auto& size = at(integer(node, "axis", 0));
      const auto parts = static_cast<std::int64_t>(results.size()), all = size, part = (all + parts - 1) / parts;
      for (std::size_t i = 0; i < results.size(); ++i) {
        size = std::clamp<std::int64_t>(all - part * static_cast<std::int64_t>(i), 0, part);
        set_type(results[i], element_type, shape);
      }
    } else if (const auto labels = type == "Einsum" ? labels_of(node) : std::nullopt) {
      std::map<char, std::int64_t> size_of;
      for (int i = 0; i < node.input_size(); ++i) {
        const auto& mine = labels->operands[static_cast<std::size_t>(i)];
        const auto& size = this->shape(node.input(i), node);
        if (mine.size() != size.size()) throw hetsched::input_error(called(node) + ": the equation does not fit its operands");
        for (std::size_t axis = 0; axis < mine.size(); ++axis) size_of[mine[axis]] = size[axis];
      }
      shape.clear();
      for (const char label : labels->result) shape.push_back(size_of[label]);
      set_type(results[0], element_type, shape);
    } else if (type == "DequantizeLinear" && node.input_size() > 1) {
      set_type(results[0], element(node.input(1)), shape);
    } else if (own_.contains(type)) {
      set_type(results[0], element_type, shape);
    } else {
      return false;
    }
    return true;
  }

  // A product with packed weights of few bits, as ONNX Runtime has it. False: not such a node.
  bool packed_product(const onnx::NodeProto& node, std::vector<onnx::TypeProto>& results) const {
    if (node.op_type() != "MatMulNBits" || node.input_size() < 2 || results.empty() || !shapes_.contains(node.input(0)))
      return false;
    auto shape = shapes_.at(node.input(0));
    if (shape.empty() || shape.back() != integer(node, "K", 0) || integer(node, "N", 0) < 1)
      throw hetsched::input_error(called(node) + ": K and N do not fit the first input");
    shape.back() = integer(node, "N", 0);
    set_type(results[0], element(node.input(0)), shape);
    return true;
  }

  // What the file says about a value, else that it looks like the first input.
  void complete(const onnx::NodeProto& node, const std::string& name, onnx::TypeProto& type) const {
    const bool known_rank = type.has_tensor_type() && type.tensor_type().has_shape();
    if (const auto found = declared_.find(name); found != declared_.end() && found->second->has_tensor_type()) {
      onnx::TypeProto said = *found->second;
      auto* axes = said.mutable_tensor_type()->mutable_shape();
      for (int i = 0; i < axes->dim_size(); ++i) {
        auto& axis = *axes->mutable_dim(i);
        if (known_rank && i < type.tensor_type().shape().dim_size() && type.tensor_type().shape().dim(i).has_dim_value())
          axis.set_dim_value(type.tensor_type().shape().dim(i).dim_value());
        else if (const auto bound = axes_.find(axis.dim_param()); axis.has_dim_param() && bound != axes_.end())
          axis.set_dim_value(bound->second);
      }
      if (said.tensor_type().has_shape() && sizes_of(said)) {
        type = std::move(said);
        return;
      }
    }
    // A value of unknown type is one that nothing is known about.
    if (type.value_case() == onnx::TypeProto::VALUE_NOT_SET && node.input_size() > 0 && !node.input(0).empty())
      type = types_.at(node.input(0));
  }

  void compute(const onnx::NodeProto& node) {
    if (node.output_size() == 0 || !shapes_.contains(node.output(0)) || !domain_of(node.domain()).empty()) return;
    const auto& name = node.output(0);
    const auto& shape = shapes_.at(name);
    const auto& type = node.op_type();
    if (type == "Shape" || type == "Size") {
      if (!shapes_.contains(node.input(0))) return;
      const auto& of = shapes_.at(node.input(0));
      numbers result{.shape = shape, .data = {of.begin(), of.end()}};
      if (type == "Size") {
        result.data.assign(1, 1);
        for (const auto size : of) result.data[0] *= static_cast<double>(size);
      } else {
        const auto rank = static_cast<std::int64_t>(of.size());
        const auto bound = [&](std::int64_t axis) { return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
        const auto first = bound(integer(node, "start", 0)), last = std::max(first, bound(integer(node, "end", rank)));
        result.data.assign(of.begin() + first, of.begin() + last);
      }
      know(name, std::move(result), onnx::TensorProto::INT64);
    } else if (type == "Constant") {
      if (const auto* tensor = attribute(node, "value")) {
        if (auto found = known_numbers(tensor->t())) know(name, std::move(*found), tensor->t().data_type());
      } else if (const auto* one = attribute(node, "value_int")) {
        know(name, {{}, {static_cast<double>(one->i())}}, onnx::TensorProto::INT64);
      } else if (const auto* real = attribute(node, "value_float")) {
        know(name, {{}, {static_cast<double>(real->f())}}, onnx::TensorProto::FLOAT);
      } else if (const auto* list = attribute(node, "value_ints")) {
        know(name, {shape, {list->ints().begin(), list->ints().end()}}, onnx::TensorProto::INT64);
      } else if (const auto* reals = attribute(node, "value_floats")) {
        know(name, {shape, {reals->floats().begin(), reals->floats().end()}}, onnx::TensorProto::FLOAT);
      }
    } else {
      static const numbers absent{};
      std::vector<const numbers*> inputs;
      for (const auto& input : node.input()) {
        const auto* found = known(input);
        if (found == nullptr && !input.empty()) return;
        inputs.push_back(found != nullptr ? found : &absent);
      }
      const int kind = element(name);
      if (!is_float(kind) || kind == onnx::TensorProto::FLOAT || kind == onnx::TensorProto::DOUBLE)
        if (auto result = fold(node, inputs, shape, !is_float(kind))) know(name, std::move(*result), kind);
    }
  }

  // Newer than libonnx: the result is like the first input.
  inline static const std::set<std::string_view> own_ = {
      "Gelu", "Mish", "Swish", "GroupNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "RotaryEmbedding"};

  std::vector<std::string>& warnings_;
  std::unordered_map<std::string, int> versions_;       // of the operators of a domain
  std::unordered_map<std::string, std::int64_t> axes_;  // by name
  std::unordered_map<std::string, onnx::TypeProto> types_;
  std::unordered_map<std::string, sizes> shapes_;
  std::unordered_map<std::string, const onnx::TypeProto*> declared_;
  std::unordered_map<std::string, numbers> known_;
  std::unordered_map<std::string, onnx::TensorProto> tensors_;  // of known numbers, as libonnx reads them
};

}  // namespace onnx_import
