// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/trace_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
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

inline void require_fit(bool holds, const char* type, const tensor& a, const tensor& b) {
  require(holds, type, a, "and " + to_string(b.shape) + " do not fit");
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
[[nodiscard]] inline symbolic_shape broadcast(const char* type, const tensor& a, const tensor& b) {
  symbolic_shape shape = a.shape.size() >= b.shape.size() ? a.shape : b.shape;
  const auto& other = a.shape.size() >= b.shape.size() ? b.shape : a.shape;
  for (std::size_t i = 0; i < other.size(); ++i) {
    auto& size = shape[shape.size() - 1 - i];
    const auto its = other[other.size() - 1 - i];
    require_fit(size == its || size == 1 || its == 1, type, a, b);
    size = std::max(size, its);
  }
  return shape;
}

[[nodiscard]] inline tensor unary(const char* type, const tensor& x, bool keeps_input, bool keeps_result, bytes_t saved = 0) {
  return x.trace->record({.type = type,
                          .op = moving(x, x.shape, {&x}),
                          .result = x.shape,
                          .reads = {x},
                          .keeps = keeps_input ? std::vector{x} : std::vector<tensor>{},
                          .keeps_result = keeps_result,
                          .saved_bytes = saved});
}

[[nodiscard]] inline tensor by_rows(const char* type, operator_shape op, const tensor& x, std::vector<tensor> reads,
                                    bool keeps_result) {
  return x.trace->record({.type = type,
                          .op = op,
                          .result = x.shape,
                          .reads = std::move(reads),
                          .keeps = keeps_result ? std::vector<tensor>{} : std::vector{x},
                          .keeps_result = keeps_result});
}

[[nodiscard]] inline tensor normalize(const char* type, const tensor& x, std::vector<tensor> scales) {
  require(x.rank() >= 1, type, x, "has no axis");
  for (const auto& s : scales) require_fit(s.shape == symbolic_shape{x.shape.back()}, type, x, s);
  scales.insert(scales.begin(), x);
  return by_rows(type, hetsched::norm(rows_of(x.shape), x.shape.back(), x.trace->format()), x, std::move(scales), false);
}

[[nodiscard]] inline tensor view(const char* type, const tensor& x, symbolic_shape shape) {
  return x.trace->record({.type = type, .result = std::move(shape), .reads = {x}, .launches = false});
}

[[nodiscard]] inline std::size_t axis_of(const char* type, const tensor& x, int axis) {
  require(axis >= 0 && axis < x.rank(), type, x, "has no axis " + std::to_string(axis));
  return static_cast<std::size_t>(axis);
}

// Over the last `axes` axes.
[[nodiscard]] inline tensor reduce(const char* type, const tensor& x, int axes) {
  require(axes >= 1 && axes <= x.rank(), type, x, "has not " + std::to_string(axes) + " axes to reduce");
  symbolic_shape shape(x.shape.begin(), x.shape.end() - axes);
  if (shape.empty()) shape.push_back(1);
  return x.trace->record({.type = type, .op = moving(x, shape, {&x}), .result = shape, .reads = {x}});
}

}  // namespace detail

namespace detail {

[[nodiscard]] inline tensor product_with(const tensor& x, const tensor& weight, std::vector<tensor> reads) {
  require_fit(x.rank() >= 1 && weight.rank() == 2 && x.shape.back() == weight.shape[0], "linear", x, weight);
  if (reads.size() == 3) require_fit(reads[2].shape == symbolic_shape{weight.shape[1]}, "linear", weight, reads[2]);
  auto shape = x.shape;
  shape.back() = weight.shape[1];
  return x.trace->record({.type = "linear",
                          .op = gemm(rows_of(x.shape), weight.shape[1], weight.shape[0], x.trace->format()),
                          .result = std::move(shape),
                          .reads = std::move(reads),
                          .keeps = {x, weight}});
}

}  // namespace detail

/// x [... x k] times weight [k x n], plus a bias [n]: one product, whatever the leading axes.
[[nodiscard]] inline tensor linear(const tensor& x, const tensor& weight) { return detail::product_with(x, weight, {x, weight}); }
[[nodiscard]] inline tensor linear(const tensor& x, const tensor& weight, const tensor& bias) {
  return detail::product_with(x, weight, {x, weight, bias});
}

/// a [... x m x k] times b [... x k x n]; leading axes broadcast. With a weight [k x n] it is linear(a, b).
[[nodiscard]] inline tensor matmul(const tensor& a, const tensor& b) {
  detail::require_fit(a.rank() >= 2 && b.rank() >= 2 && a.shape.back() == b.shape[b.shape.size() - 2], "matmul", a, b);
  if (b.is_parameter() && b.rank() == 2) return linear(a, b);
  const auto m = a.shape[a.shape.size() - 2], k = a.shape.back(), n = b.shape.back();
  tensor left = a, right = b;
  left.shape.resize(a.shape.size() - 2), right.shape.resize(b.shape.size() - 2);
  auto shape = detail::broadcast("matmul", left, right);
  const bool weight_left = a.is_parameter() && !b.is_parameter();  // as its transpose: weights are right operands
  auto op = batched_gemm(element_count(shape), weight_left ? n : m, weight_left ? m : n, k, a.trace->format());
  op.traffic_bytes = static_cast<double>(detail::element_size(a)) *
                     (static_cast<double>(element_count(a.shape)) + static_cast<double>(element_count(b.shape)) +
                      static_cast<double>(op.batch) * static_cast<double>(m) * static_cast<double>(n));
  shape.insert(shape.end(), {m, n});
  return a.trace->record({.type = "matmul", .op = op, .result = std::move(shape), .reads = {a, b}, .keeps = {a, b}});
}

/// Attention in one kernel: q [heads x queries x d], k and v [kv_heads x keys x d], where kv_heads divides heads. Keeps its
/// operands, its result and one number per row.
[[nodiscard]] inline tensor attention(const tensor& q, const tensor& k, const tensor& v, bool causal = false) {
  detail::require_fit(k.shape == v.shape, "attention", k, v);
  detail::require_fit(q.rank() == 3 && k.rank() == 3 && q.shape[2] == k.shape[2] && q.shape[0] % k.shape[0] == 0, "attention", q,
                      k);
  return q.trace->record(
      {.type = causal ? "causal attention" : "attention",
       .op = flash_attention(q.shape[0], k.shape[0], q.shape[1], k.shape[1], q.shape[2], causal, q.trace->format()),
       .result = q.shape,
       .reads = {q, k, v},
       .keeps = {q, k, v},
       .keeps_result = true,
       .saved_bytes = checked_mul(4, q.shape[0], q.shape[1])});
}

/// Rows of table [words x width] for ids of any shape.
[[nodiscard]] inline tensor embedding(const tensor& ids, const tensor& table) {
  detail::require_fit(table.rank() == 2, "embedding", ids, table);
  auto shape = ids.shape;
  shape.push_back(table.shape[1]);
  return ids.trace->record({.type = "embedding",
                            .op = hetsched::embedding(element_count(ids.shape), table.shape[1], ids.trace->format()),
                            .result = std::move(shape),
                            .reads = {ids, table}});
}

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
[[nodiscard]] inline tensor swiglu(const tensor& gate, const tensor& up) {
  detail::require_fit(gate.rank() >= 1 && gate.shape == up.shape, "swiglu", gate, up);
  return gate.trace->record({.type = "swiglu",
                             .op = rowwise(detail::rows_of(gate.shape), gate.shape.back(), 2, gate.trace->format()),
                             .result = gate.shape,
                             .reads = {gate, up},
                             .keeps = {gate, up}});
}

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
[[nodiscard]] inline tensor batch_norm(const tensor& x, const tensor& scale, const tensor& shift) {
  detail::require(x.rank() >= 1, "batch_norm", x, "has no axis");
  const auto channels = x.shape.front();
  for (const auto* s : {&scale, &shift}) detail::require_fit(s->shape == symbolic_shape{channels}, "batch_norm", x, *s);
  return detail::by_rows("batch_norm", hetsched::norm(channels, element_count(x.shape) / channels, x.trace->format()), x,
                         {x, scale, shift}, false);
}

/// Rotates pairs along the last axis by their position.
[[nodiscard]] inline tensor rotary(const tensor& x) {
  detail::require(x.rank() >= 1, "rotary", x, "has no axis");
  return x.trace->record({.type = "rotary",
                          .op = rowwise(detail::rows_of(x.shape), x.shape.back(), 1, x.trace->format()),
                          .result = x.shape,
                          .reads = {x}});
}

/// How a window moves over an image.
struct window {
  std::int64_t stride = 1;
  std::int64_t padding = 0;  ///< on each side
  std::int64_t groups = 1;   ///< of channels, each with its own filters
};

namespace detail {

[[nodiscard]] inline symbolic_shape slide(const char* type, const tensor& x, std::int64_t channels, std::int64_t high,
                                          std::int64_t wide, const window& w) {
  require(x.rank() == 3, type, x, "is not channels x height x width");
  require(w.stride >= 1 && w.padding >= 0, type, x, "cannot be walked with this stride and padding");
  const auto padded = [&](std::int64_t size) { return checked_add(size, checked_mul(2, w.padding)); };
  const auto height = padded(x.shape[1]), width = padded(x.shape[2]);
  require(height >= high && width >= wide, type, x,
          "is smaller than a window of " + std::to_string(high) + " x " + std::to_string(wide));
  return {channels, (height - high) / w.stride + 1, (width - wide) / w.stride + 1};
}

[[nodiscard]] inline tensor pool(const char* type, const tensor& x, std::int64_t size, const window& w, bool keeps) {
  require(x.rank() == 3 && size >= 1, type, x, "is not channels x height x width, or the window is empty");
  const auto shape = slide(type, x, x.shape[0], size, size, w);
  return x.trace->record({.type = type,
                          .op = moving(x, shape, {&x}),
                          .result = shape,
                          .reads = {x},
                          .keeps = keeps ? std::vector{x} : std::vector<tensor>{}});
}

}  // namespace detail

/// Convolution of x [channels x height x width] with weight [out x channels / groups x high x wide], as an implicit product.
[[nodiscard]] inline tensor conv2d(const tensor& x, const tensor& weight, const window& w = {}) {
  detail::require_fit(x.rank() == 3 && weight.rank() == 4 && w.groups >= 1 &&
                          x.shape[0] == checked_mul(weight.shape[1], w.groups) && weight.shape[0] % w.groups == 0,
                      "conv2d", x, weight);
  const auto shape = detail::slide("conv2d", x, weight.shape[0], weight.shape[2], weight.shape[3], w);
  const auto pixels = checked_mul(shape[1], shape[2]), inner = element_count(weight.shape) / weight.shape[0];
  auto op = w.groups == 1 ? gemm(pixels, weight.shape[0], inner, x.trace->format())
                          : batched_gemm(w.groups, pixels, weight.shape[0] / w.groups, inner, x.trace->format());
  op.traffic_bytes = detail::moving(x, shape, {&x, &weight}).traffic_bytes;
  return x.trace->record({.type = "conv2d", .op = op, .result = shape, .reads = {x, weight}, .keeps = {x, weight}});
}

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
[[nodiscard]] inline tensor cross_entropy(const tensor& logits, const tensor& labels) {
  detail::require_fit(logits.rank() >= 1 && element_count(labels.shape) == detail::rows_of(logits.shape), "cross_entropy", logits,
                      labels);
  return logits.trace->record(
      {.type = "cross_entropy",
       .op = hetsched::softmax(detail::rows_of(logits.shape), logits.shape.back(), logits.trace->format()),
       .result = {1},
       .reads = {logits, labels},
       .saved_bytes = checked_mul(4, element_count(logits.shape))});
}

/// The same elements in another shape. One size may be -1: whatever is left.
[[nodiscard]] inline tensor reshape(const tensor& x, symbolic_shape shape) {
  const auto count = element_count(x.shape);
  if (const auto open = std::find(shape.begin(), shape.end(), -1); open != shape.end()) {
    *open = 1;
    const auto rest = element_count(shape);
    detail::require(rest > 0 && count % rest == 0, "reshape", x, "does not fill " + to_string(shape));
    *open = count / rest;
  }
  detail::require(element_count(shape) == count, "reshape", x, "does not fill " + to_string(shape));
  return detail::view("reshape", x, std::move(shape));
}

/// Swaps two axes.
[[nodiscard]] inline tensor transpose(const tensor& x, int a, int b) {
  auto shape = x.shape;
  std::swap(shape[detail::axis_of("transpose", x, a)], shape[detail::axis_of("transpose", x, b)]);
  return detail::view("transpose", x, std::move(shape));
}
/// Swaps the last two axes.
[[nodiscard]] inline tensor transpose(const tensor& x) { return transpose(x, x.rank() - 2, x.rank() - 1); }

/// Views of neighbouring parts along an axis; sizes sum to its size.
[[nodiscard]] inline std::vector<tensor> split(const tensor& x, const std::vector<std::int64_t>& sizes, int axis) {
  const auto at = detail::axis_of("split", x, axis);
  std::int64_t sum = 0;
  for (const auto size : sizes) sum = checked_add(sum, size);
  detail::require(sum == x.shape[at], "split", x, "is not as long as the parts " + to_string(sizes));
  std::vector<tensor> parts;
  for (const auto size : sizes) {
    auto shape = x.shape;
    shape[at] = size;
    parts.push_back(detail::view("split", x, std::move(shape)));
  }
  return parts;
}

/// Copies tensors one behind the other along an axis.
[[nodiscard]] inline tensor concat(int axis, const std::vector<tensor>& parts) {
  if (parts.empty()) throw input_error("concat: no tensor");
  const auto& first = parts.front();
  const auto at = detail::axis_of("concat", first, axis);
  auto shape = first.shape;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    auto rest = parts[i].shape;
    detail::require_fit(rest.size() == shape.size(), "concat", first, parts[i]);
    shape[at] = checked_add(shape[at], rest[at]);
    rest[at] = first.shape[at];
    detail::require_fit(rest == first.shape, "concat", first, parts[i]);
  }
  auto op = hetsched::elementwise(element_count(shape), 1, 1, first.trace->format());
  return first.trace->record({.type = "concat", .op = op, .result = std::move(shape), .reads = parts});
}
template <std::same_as<tensor>... Rest>
[[nodiscard]] tensor concat(int axis, const tensor& first, const Rest&... rest) {
  return concat(axis, std::vector<tensor>{first, rest...});
}

}  // namespace hetsched::symbolic
