// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/model/symbolic_operators.hpp>

namespace hetsched::symbolic::detail {

inline void require_fit(bool holds, const char* type, const tensor& a, const tensor& b) {
  require(holds, type, a, "and " + to_string(b.shape) + " do not fit");
}

HETSCHED_INLINE symbolic_shape broadcast(const char* type, const tensor& a, const tensor& b) {
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

HETSCHED_INLINE tensor unary(const char* type, const tensor& x, bool keeps_input, bool keeps_result, bytes_t saved) {
  return x.trace->record({.type = type,
                          .op = moving(x, x.shape, {&x}),
                          .result = x.shape,
                          .reads = {x},
                          .keeps = keeps_input ? std::vector{x} : std::vector<tensor>{},
                          .keeps_result = keeps_result,
                          .saved_bytes = saved});
}

HETSCHED_INLINE tensor by_rows(const char* type, operator_shape op, const tensor& x, std::vector<tensor> reads,
                               bool keeps_result) {
  return x.trace->record({.type = type,
                          .op = op,
                          .result = x.shape,
                          .reads = std::move(reads),
                          .keeps = keeps_result ? std::vector<tensor>{} : std::vector{x},
                          .keeps_result = keeps_result});
}

HETSCHED_INLINE tensor normalize(const char* type, const tensor& x, std::vector<tensor> scales) {
  require(x.rank() >= 1, type, x, "has no axis");
  for (const auto& s : scales) require_fit(s.shape == symbolic_shape{x.shape.back()}, type, x, s);
  scales.insert(scales.begin(), x);
  return by_rows(type, hetsched::norm(rows_of(x.shape), x.shape.back(), x.trace->format()), x, std::move(scales), false);
}

HETSCHED_INLINE tensor reduce(const char* type, const tensor& x, int axes) {
  require(axes >= 1 && axes <= x.rank(), type, x, "has not " + std::to_string(axes) + " axes to reduce");
  symbolic_shape shape(x.shape.begin(), x.shape.end() - axes);
  if (shape.empty()) shape.push_back(1);
  return x.trace->record({.type = type, .op = moving(x, shape, {&x}), .result = shape, .reads = {x}});
}

HETSCHED_INLINE tensor product_with(const tensor& x, const tensor& weight, std::vector<tensor> reads) {
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

}  // namespace hetsched::symbolic::detail

namespace hetsched::symbolic {

HETSCHED_INLINE tensor matmul(const tensor& a, const tensor& b) {
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

HETSCHED_INLINE tensor attention(const tensor& q, const tensor& k, const tensor& v, bool causal) {
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

HETSCHED_INLINE tensor embedding(const tensor& ids, const tensor& table) {
  detail::require_fit(table.rank() == 2, "embedding", ids, table);
  auto shape = ids.shape;
  shape.push_back(table.shape[1]);
  return ids.trace->record({.type = "embedding",
                            .op = hetsched::embedding(element_count(ids.shape), table.shape[1], ids.trace->format()),
                            .result = std::move(shape),
                            .reads = {ids, table}});
}

HETSCHED_INLINE tensor swiglu(const tensor& gate, const tensor& up) {
  detail::require_fit(gate.rank() >= 1 && gate.shape == up.shape, "swiglu", gate, up);
  return gate.trace->record({.type = "swiglu",
                             .op = rowwise(detail::rows_of(gate.shape), gate.shape.back(), 2, gate.trace->format()),
                             .result = gate.shape,
                             .reads = {gate, up},
                             .keeps = {gate, up}});
}

HETSCHED_INLINE tensor batch_norm(const tensor& x, const tensor& scale, const tensor& shift) {
  detail::require(x.rank() >= 1, "batch_norm", x, "has no axis");
  const auto channels = x.shape.front();
  for (const auto* s : {&scale, &shift}) detail::require_fit(s->shape == symbolic_shape{channels}, "batch_norm", x, *s);
  return detail::by_rows("batch_norm", hetsched::norm(channels, element_count(x.shape) / channels, x.trace->format()), x,
                         {x, scale, shift}, false);
}

HETSCHED_INLINE tensor rotary(const tensor& x) {
  detail::require(x.rank() >= 1, "rotary", x, "has no axis");
  return x.trace->record({.type = "rotary",
                          .op = rowwise(detail::rows_of(x.shape), x.shape.back(), 1, x.trace->format()),
                          .result = x.shape,
                          .reads = {x}});
}

}  // namespace hetsched::symbolic

namespace hetsched::symbolic::detail {

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

HETSCHED_INLINE tensor pool(const char* type, const tensor& x, std::int64_t size, const window& w, bool keeps) {
  require(x.rank() == 3 && size >= 1, type, x, "is not channels x height x width, or the window is empty");
  const auto shape = slide(type, x, x.shape[0], size, size, w);
  return x.trace->record({.type = type,
                          .op = moving(x, shape, {&x}),
                          .result = shape,
                          .reads = {x},
                          .keeps = keeps ? std::vector{x} : std::vector<tensor>{}});
}

}  // namespace hetsched::symbolic::detail

namespace hetsched::symbolic {

HETSCHED_INLINE tensor conv2d(const tensor& x, const tensor& weight, const window& w) {
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

HETSCHED_INLINE tensor cross_entropy(const tensor& logits, const tensor& labels) {
  detail::require_fit(logits.rank() >= 1 && element_count(labels.shape) == detail::rows_of(logits.shape), "cross_entropy", logits,
                      labels);
  return logits.trace->record(
      {.type = "cross_entropy",
       .op = hetsched::softmax(detail::rows_of(logits.shape), logits.shape.back(), logits.trace->format()),
       .result = {1},
       .reads = {logits, labels},
       .saved_bytes = checked_mul(4, element_count(logits.shape))});
}

HETSCHED_INLINE tensor reshape(const tensor& x, symbolic_shape shape) {
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

HETSCHED_INLINE std::vector<tensor> split(const tensor& x, const std::vector<std::int64_t>& sizes, int axis) {
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

HETSCHED_INLINE tensor concat(int axis, const std::vector<tensor>& parts) {
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

}  // namespace hetsched::symbolic
