// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched::detail {

[[nodiscard]] constexpr double product_bytes(double batch, double m, double n, double k, number_format f) {
  return batch * ((m * k + k * n) * element_bytes(f) + m * n * result_bytes(f));
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE operator_shape gemm(std::int64_t m, std::int64_t n, std::int64_t k, number_format f) {
  detail::require_sizes(m >= 1 && n >= 1 && k >= 1);
  return {.kind = operator_kind::gemm,
          .format = f,
          .m = m,
          .n = n,
          .k = k,
          .traffic_bytes = detail::product_bytes(1, static_cast<double>(m), static_cast<double>(n), static_cast<double>(k), f)};
}

HETSCHED_INLINE operator_shape quantised_gemm(std::int64_t m, std::int64_t n, std::int64_t k, number_format f) {
  if (!in_8_bits(f)) throw input_error("a quantised product is in fp8 or int8");
  auto op = gemm(m, n, k, f);
  op.quantised = true;
  return op;
}

HETSCHED_INLINE operator_shape batched_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, number_format f) {
  detail::require_sizes(batch >= 1);
  auto op = gemm(m, n, k, f);
  op.batch = batch;
  op.batched = true;
  op.traffic_bytes *= static_cast<double>(batch);
  return op;
}

HETSCHED_INLINE operator_shape flash_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries, std::int64_t keys,
                                               std::int64_t head_width, bool causal, number_format f) {
  detail::require_sizes(heads >= 1 && kv_heads >= 1 && queries >= 1 && keys >= 1 && head_width >= 1);
  const double read = 2.0 * static_cast<double>(heads) * static_cast<double>(queries) +
                      2.0 * static_cast<double>(kv_heads) * static_cast<double>(keys);
  return {.kind = operator_kind::flash_attention,
          .format = f,
          .batch = heads,
          .m = queries,
          .n = keys,
          .k = head_width,
          .traffic_bytes = read * static_cast<double>(head_width) * element_bytes(f),
          .causal_share = causal && queries > 1 ? 0.5 : 1};
}

HETSCHED_INLINE operator_shape cached_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                                                std::int64_t keys, std::int64_t head_width, bool causal, number_format f) {
  auto op = flash_attention(heads, kv_heads, queries, keys, head_width, causal, f);
  op.key_heads = kv_heads;
  // Queries are the last ones: each sees the keys before all of them, and half of their own.
  if (causal && queries > 1 && keys > queries)
    op.causal_share = (static_cast<double>(keys - queries) + 0.5 * static_cast<double>(queries)) / static_cast<double>(keys);
  return op;
}

HETSCHED_INLINE operator_shape flash_attention_backward(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                                                        std::int64_t keys, std::int64_t head_width, bool causal,
                                                        number_format f) {
  auto op = flash_attention(heads, kv_heads, queries, keys, head_width, causal, f);
  op.traffic_bytes *= 2;
  op.causal_share *= 2.5;
  return op;
}

HETSCHED_INLINE operator_shape norm(std::int64_t rows, std::int64_t columns, number_format f, bool scalar) {
  auto op = softmax(rows, columns, f);
  op.kind = operator_kind::norm;
  op.scalar = scalar;
  return op;
}

HETSCHED_INLINE operator_shape elementwise(std::int64_t elements, int read, int written, number_format f) {
  detail::require_sizes(elements >= 1 && read >= 0 && written >= 0);
  return {.kind = operator_kind::elementwise,
          .format = f,
          .m = elements,
          .traffic_bytes = static_cast<double>(read + written) * static_cast<double>(elements) * element_bytes(f)};
}

HETSCHED_INLINE operator_shape rowwise(std::int64_t rows, std::int64_t columns, int read, number_format f) {
  auto op = softmax(rows, columns, f);
  detail::require_sizes(read >= 1);
  op.kind = operator_kind::rowwise;
  op.scalar = true;
  op.traffic_bytes *= (read + 1) / 2.0;
  return op;
}

HETSCHED_INLINE operator_shape embedding(std::int64_t tokens, std::int64_t width, number_format f) {
  detail::require_sizes(tokens >= 1 && width >= 1);
  auto op = elementwise(checked_mul(tokens, width), 1, 1, f);
  op.kind = operator_kind::gather;
  return op;
}

HETSCHED_INLINE std::array<operator_shape, 4> plain_attention(std::int64_t heads, std::int64_t queries, std::int64_t keys,
                                                              std::int64_t head_width, number_format f) {
  const auto scores = batched_gemm(heads, queries, keys, head_width, f);
  const auto rows = checked_mul(heads, queries);
  return {scores, elementwise(checked_mul(rows, keys), 1, 1, f), softmax(rows, keys, f),
          batched_gemm(heads, queries, head_width, keys, f)};
}

HETSCHED_INLINE operator_shape convolution(const convolution_sizes& c, number_format f) {
  detail::require_sizes(c.images >= 1 && c.height >= 1 && c.width >= 1 && c.in_channels >= 1 && c.out_channels >= 1 &&
                        c.kernel_height >= 1 && c.kernel_width >= 1 && c.stride >= 1);
  const auto pixels = checked_mul(c.images, ceil_div(c.height, c.stride), ceil_div(c.width, c.stride));
  auto op = gemm(pixels, c.out_channels, checked_mul(c.in_channels, c.kernel_height, c.kernel_width), f);
  const double input = static_cast<double>(checked_mul(c.images, c.height, c.width, c.in_channels));
  const double output = static_cast<double>(op.m) * static_cast<double>(op.n),
               weights = static_cast<double>(op.k) * static_cast<double>(op.n);
  op.traffic_bytes = (input + output + weights) * element_bytes(f);
  return op;
}

}  // namespace hetsched
