// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/graph.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// Sizes along each axis, of one sample: there is no axis for the batch.
using symbolic_shape = std::vector<std::int64_t>;

[[nodiscard]] inline std::string to_string(const symbolic_shape& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? " x " : "") + std::to_string(size);
  return text + "]";
}

/// The number of elements of a shape.
/// Throws: input_error where it does not fit 64 bits.
[[nodiscard]] inline std::int64_t element_count(const symbolic_shape& shape) {
  std::int64_t count = 1;
  for (const auto size : shape) count = checked_mul(count, size);
  return count;
}

namespace symbolic {

class tracer;

/// A tensor without numbers: a shape, and where it comes from. The operators of symbolic_operators.hpp take it. They are
/// found by argument-dependent lookup, so a template over the tensor type calls matmul(x, y) on these and on real tensors
/// alike. Not to be used after its trace has ended.
struct tensor {
  symbolic_shape shape{};
  tracer* trace = nullptr;
  int node = -1;       ///< whose result it is; -1 for parameters and the model's inputs
  int parameter = -1;  ///< which parameter it is, or a view of

  [[nodiscard]] int rank() const { return static_cast<int>(shape.size()); }
  [[nodiscard]] bool is_parameter() const { return parameter >= 0; }
};

/// An operator to be recorded.
struct traced_operator {
  std::string type{};
  operator_shape op{};
  symbolic_shape result{};
  std::vector<tensor> reads{};
  std::vector<tensor> keeps{};  ///< of these, what its backward needs; parameters need no keeping
  bool keeps_result = false;
  bytes_t saved_bytes = 0;  ///< kept besides
  bool launches = true;     ///< false: a view of the first tensor that it reads
};

/// Records operators as tensors pass through them.
class tracer {
 public:
  explicit tracer(number_format format, int heads) {
    graph_.parameter_bytes = element_bytes(format);
    graph_.heads = heads;
    format_ = format;
  }
  tracer(const tracer&) = delete;
  tracer& operator=(const tracer&) = delete;

  [[nodiscard]] number_format format() const { return format_; }
  [[nodiscard]] const operator_graph& graph() const { return graph_; }

  /// An input of the model, at hand on every device.
  [[nodiscard]] tensor input(symbolic_shape shape) { return make(std::move(shape), -1, -1); }

  /// A weight. The operator that reads it first owns it, all others share it. A weight that nothing reads does not count.
  [[nodiscard]] tensor parameter(symbolic_shape shape) {
    parameters_.push_back({element_count(shape), -1});
    return make(std::move(shape), -1, static_cast<int>(parameters_.size()) - 1);
  }

  /// Names operators within a scope, for people only, while the result lives. Scopes end in the reverse order of their
  /// beginning.
  [[nodiscard]] auto scope(const std::string& name) {
    struct guard {
      tracer* owner;
      std::size_t outer;
      guard(tracer* t, std::size_t length) : owner(t), outer(length) {}
      guard(const guard&) = delete;
      guard& operator=(const guard&) = delete;
      ~guard() { owner->path_.resize(outer); }
    };
    const auto outer = path_.size();
    path_ += name + "/";
    return guard(this, outer);
  }

  /// Records an operator that symbolic_operators.hpp lacks.
  /// Throws: input_error for tensors of another trace, a view of nothing, and sizes below 1.
  tensor record(traced_operator what);

  [[nodiscard]] operator_graph finish() && { return std::move(graph_); }

 private:
  struct weight {
    std::int64_t count = 0;
    int owner = -1;
  };

  static void add(std::vector<int>& set, int x) {
    if (std::find(set.begin(), set.end(), x) == set.end()) set.push_back(x);
  }

  [[nodiscard]] tensor make(symbolic_shape shape, int node, int parameter) {
    for (const auto size : shape)
      if (size < 1) throw input_error("tensor " + to_string(shape) + ": sizes must be at least 1");
    return {std::move(shape), this, node, parameter};
  }

  [[nodiscard]] bytes_t bytes_of(const symbolic_shape& shape) const {
    return checked_mul(element_count(shape), graph_.parameter_bytes);
  }

  void read_parameter(graph_node& node, int index, int id);

  operator_graph graph_;
  number_format format_{};
  std::vector<weight> parameters_;
  std::string path_;
};

}  // namespace symbolic

using symbolic::tracer;
using traced_tensor = symbolic::tensor;

struct trace_options {
  number_format format = number_format::bf16;  ///< of parameters and activations
  int heads = 0;                               ///< goes into the graph
};

/// The operators of a model, found by calling `model(tracer, inputs...)` with a symbolic tensor for each shape. What the
/// model returns does not matter.
/// Throws: input_error, naming operator and shapes, where shapes do not fit; and what `model` throws.
/// Example:
///   const auto perceptron = [](auto& net, const auto& x) {
///     return linear(gelu(linear(x, net.parameter({64, 256}))), net.parameter({256, 10}));
///   };
///   const auto graph = trace(perceptron, {}, symbolic_shape{32, 64});
template <class Model, std::same_as<symbolic_shape>... Shapes>
[[nodiscard]] operator_graph trace(Model&& model, const trace_options& options, const Shapes&... inputs) {
  tracer recorder(options.format, options.heads);
  const auto run = [&](const auto&... tensors) { std::invoke(std::forward<Model>(model), recorder, tensors...); };
  run(recorder.input(inputs)...);
  return std::move(recorder).finish();
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/trace.ipp>
#endif
