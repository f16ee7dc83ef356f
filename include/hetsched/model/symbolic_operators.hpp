// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/trace_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/trace.hpp>

// The operators of a traced model. Each is recorded as the kernels that a trainer runs: biases and scales ride along with
// their
// operator, views and transposes cost nothing. Axes count from 0; shapes have no axis for the batch. What each keeps for
// backward is what PyTorch keeps, without statistics of norms.
// Throws: input_error, naming the operator and the shapes, where shapes do not fit.
namespace hetsched::symbolic {

namespace detail {

inline void require(bool holds, const char* type, const tensor& a, const std::string& what) {
  if (!holds) throw input_error(std::string(type) + ": " + to_string(a.shape) + " " + what);
}

[[nodiscard]] inline std::int64_t rows_of(const symbolic_shape& shape) { return element_count(shape) / shape.back(); }

[[nodiscard]] inline int element_size(const tensor& t) { return element_bytes(t.trace->format()); }

// A kernel that reads these tensors and writes one.
[[nodiscard]] inline operator_shape moving(const tensor& where, const symbolic_shape& result,
                                           std::initializer_list<const tensor*> reads) {
  auto op = hetsched::elementwise(element_count(result), 0, 1, where.trace->format());
  for (const auto* t : reads) op.traffic_bytes += static_cast<double>(element_count(t->shape)) * element_size(where);
  return op;
}

// NumPy's rule: aligned at the last axis, axes of size 1 stretch.
[[nodiscard]] symbolic_shape broadcast(const char* type, const tensor& a, const tensor& b);

[[nodiscard]] tensor unary(const char* type, const tensor& x, bool keeps_input, bool keeps_result, bytes_t saved = 0);

[[nodiscard]] tensor by_rows(const char* type, operator_shape op, const tensor& x, std::vector<tensor> reads, bool keeps_result);

[[nodiscard]] tensor normalize(const char* type, const tensor& x, std::vector<tensor> scales);

[[nodiscard]] inline tensor view(const char* type, const tensor& x, symbolic_shape shape) {
  return x.trace->record({.type = type, .result = std::move(shape), .reads = {x}, .launches = false});
}

[[nodiscard]] inline std::size_t axis_of(const char* type, const tensor& x, int axis) {
  require(axis >= 0 && axis < x.rank(), type, x, "has no axis " + std::to_string(axis));
  return as_size(axis);
}

// Over the last `axes` axes.
[[nodiscard]] tensor reduce(const char* type, const tensor& x, int axes);

}  // namespace detail

namespace detail {

[[nodiscard]] tensor product_with(const tensor& x, const tensor& weight, std::vector<tensor> reads);

}  // namespace detail

/// x [... x k] times weight [k x n], plus a bias [n]: one product, whatever the leading axes.
[[nodiscard]] inline tensor linear(const tensor& x, const tensor& weight) { return detail::product_with(x, weight, {x, weight}); }
[[nodiscard]] inline tensor linear(const tensor& x, const tensor& weight, const tensor& bias) {
  return detail::product_with(x, weight, {x, weight, bias});
}

/// a [... x m x k] times b [... x k x n]; leading axes broadcast. With a weight [k x n] it is linear(a, b).
[[nodiscard]] tensor matmul(const tensor& a, const tensor& b);

/// Attention in one kernel: q [heads x queries x d], k and v [kv_heads x keys x d], where kv_heads divides heads. Keeps its
/// operands, its result and one number per row.
[[nodiscard]] tensor attention(const tensor& q, const tensor& k, const tensor& v, bool causal = false);

/// Rows of table [words x width] for ids of any shape.
[[nodiscard]] tensor embedding(const tensor& ids, const tensor& table);

/// Sum and product of elements, with NumPy's broadcasting.
[[nodiscard]] inline tensor add(const tensor& a, const tensor& b) {
  const auto shape = detail::broadcast("add", a, b);
  return a.trace->record({.type = "add", .op = detail::moving(a, shape, {&a, &b}), .result = shape, .reads = {a, b}});
}
[[nodiscard]] inline tensor mul(const tensor& a, const tensor& b) {
  const auto shape = detail::broadcast("mul", a, b);
  return a.trace->record(
      {.type = "mul", .op = detail::moving(a, shape, {&a, &b}), .result = shape, .reads = {a, b}, .keeps = {a, b}});
}
/// Multiplies by a number, or by a mask that is not stored.
[[nodiscard]] inline tensor mul(const tensor& x, double) { return detail::unary("scale", x, false, false); }

[[nodiscard]] inline tensor gelu(const tensor& x) { return detail::unary("gelu", x, true, false); }
[[nodiscard]] inline tensor silu(const tensor& x) { return detail::unary("silu", x, true, false); }
[[nodiscard]] inline tensor relu(const tensor& x) { return detail::unary("relu", x, false, true); }
[[nodiscard]] inline tensor tanh(const tensor& x) { return detail::unary("tanh", x, false, true); }
[[nodiscard]] inline tensor sigmoid(const tensor& x) { return detail::unary("sigmoid", x, false, true); }

/// silu(gate) * up in one kernel, which keeps both.
[[nodiscard]] tensor swiglu(const tensor& gate, const tensor& up);

/// Dropout; keeps a mask of one byte an element.
[[nodiscard]] inline tensor dropout(const tensor& x) { return detail::unary("dropout", x, false, false, element_count(x.shape)); }

/// Softmax along the last axis.
[[nodiscard]] inline tensor softmax(const tensor& x) {
  detail::require(x.rank() >= 1, "softmax", x, "has no axis");
  return detail::by_rows("softmax", hetsched::softmax(detail::rows_of(x.shape), x.shape.back(), x.trace->format()), x, {x}, true);
}

/// Layer norm along the last axis, n long; scale and shift are [n].
[[nodiscard]] inline tensor layer_norm(const tensor& x, const tensor& scale, const tensor& shift) {
  return detail::normalize("layer_norm", x, {scale, shift});
}
[[nodiscard]] inline tensor rms_norm(const tensor& x, const tensor& scale) { return detail::normalize("rms_norm", x, {scale}); }

/// Batch norm over the batch and the pixels of x [channels x height x width]; scale and shift are [channels].
[[nodiscard]] tensor batch_norm(const tensor& x, const tensor& scale, const tensor& shift);

/// Rotates pairs along the last axis by their position.
[[nodiscard]] tensor rotary(const tensor& x);

/// How a window moves over an image.
struct window {
  std::int64_t stride = 1;
  std::int64_t padding = 0;  ///< on each side
  std::int64_t groups = 1;   ///< of channels, each with its own filters
};

namespace detail {

[[nodiscard]] tensor pool(const char* type, const tensor& x, std::int64_t size, const window& w, bool keeps);

}  // namespace detail

/// Convolution of x [channels x height x width] with weight [out x channels / groups x high x wide], as an implicit product.
[[nodiscard]] tensor conv2d(const tensor& x, const tensor& weight, const window& w = {});

/// Pooling over windows of size x size; the maximum keeps its input.
[[nodiscard]] inline tensor max_pool2d(const tensor& x, std::int64_t size, const window& w = {}) {
  return detail::pool("max_pool2d", x, size, w, true);
}
[[nodiscard]] inline tensor avg_pool2d(const tensor& x, std::int64_t size, const window& w = {}) {
  return detail::pool("avg_pool2d", x, size, w, false);
}

/// Sum and mean over the last `axes` axes, which the result lacks.
[[nodiscard]] inline tensor sum(const tensor& x, int axes = 1) { return detail::reduce("sum", x, axes); }
[[nodiscard]] inline tensor mean(const tensor& x, int axes = 1) { return detail::reduce("mean", x, axes); }

/// Cross-entropy of logits [... x classes] against labels; keeps the probabilities in fp32.
[[nodiscard]] tensor cross_entropy(const tensor& logits, const tensor& labels);

/// The same elements in another shape. One size may be -1: whatever is left.
[[nodiscard]] tensor reshape(const tensor& x, symbolic_shape shape);

/// Swaps two axes.
[[nodiscard]] inline tensor transpose(const tensor& x, int a, int b) {
  auto shape = x.shape;
  std::swap(shape[detail::axis_of("transpose", x, a)], shape[detail::axis_of("transpose", x, b)]);
  return detail::view("transpose", x, std::move(shape));
}
/// Swaps the last two axes.
[[nodiscard]] inline tensor transpose(const tensor& x) { return transpose(x, x.rank() - 2, x.rank() - 1); }

/// Views of neighbouring parts along an axis; sizes sum to its size.
[[nodiscard]] std::vector<tensor> split(const tensor& x, const std::vector<std::int64_t>& sizes, int axis);

/// Copies tensors one behind the other along an axis.
[[nodiscard]] tensor concat(int axis, const std::vector<tensor>& parts);
template <std::same_as<tensor>... Rest>
[[nodiscard]] tensor concat(int axis, const tensor& first, const Rest&... rest) {
  return concat(axis, std::vector<tensor>{first, rest...});
}

}  // namespace hetsched::symbolic

#ifndef HETSCHED_COMPILED
#include <hetsched/model/symbolic_operators.ipp>
#endif
