// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// How the elements of an operator are stored and multiplied.
enum class number_format { fp32, tf32, fp16, bf16, fp8, int8 };
inline constexpr int number_format_count = 6;

/// Whether elements have 8 bits.
[[nodiscard]] constexpr bool in_8_bits(number_format f) { return f == number_format::fp8 || f == number_format::int8; }

/// Bytes of one element in memory.
[[nodiscard]] constexpr int element_bytes(number_format f) {
  return f == number_format::fp32 || f == number_format::tf32 ? 4 : in_8_bits(f) ? 1 : 2;
}

/// Bytes of an element of a product's result.
[[nodiscard]] constexpr int result_bytes(number_format f) { return in_8_bits(f) ? 2 : element_bytes(f); }

enum class operator_kind { gemm, flash_attention, softmax, norm, rowwise, elementwise, gather };

/// One kernel, by its shape. gemm: `batch` products (m x k)(k x n). flash_attention: `batch` heads of m queries, n keys and
/// width k. softmax, norm and rowwise: m rows of n elements, a block each. elementwise and gather: m elements. Make one with
/// the functions below.
struct operator_shape {
  operator_kind kind = operator_kind::elementwise;
  number_format format = number_format::fp32;
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  double traffic_bytes = 0;  ///< read and written at least: every operand once
  double causal_share =
      1;  ///< of forward's products that are computed: 0.5 under a causal mask that the kernel uses; backward 2.5
  std::int64_t key_heads = 0;  ///< of cached_attention: heads of keys and values
  bool scalar = false;         ///< a kernel with a block for each row that takes its elements one by one
  bool batched = false;        ///< a batched matrix product, for which libraries have fewer kernels
  bool quantised = false;      ///< a product in 8 bits whose left operand a kernel rounds first
  bool repeated = false;       ///< a product that runs again and again with few others between: L2 still holds what it read

  friend bool operator==(const operator_shape&, const operator_shape&) = default;
};

namespace detail {

inline void require_sizes(bool hold) {
  if (!hold) throw input_error("the sizes of an operator must be at least 1");
}

}  // namespace detail

/// FLOPs of the products in `op`, a multiplication and an addition each. What a causal mask spares does not count; operators
/// that multiply nothing have 0.
[[nodiscard]] constexpr double flops(const operator_shape& op) {
  const double products =
      static_cast<double>(op.batch) * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k);
  return op.kind == operator_kind::gemm              ? 2 * products
         : op.kind == operator_kind::flash_attention ? 4 * op.causal_share * products
                                                     : 0;
}

/// The product (m x k)(k x n), as of a linear layer with m tokens, k inputs and n outputs. In 8 bits the result has 16.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape gemm(std::int64_t m, std::int64_t n, std::int64_t k, number_format f);

/// A linear layer in fp8 or int8 as inference engines launch it: m rows in 16 bits are rounded to it, all with one scale, then
/// multiplied by a kernel that does not split the reduction. On devices that do not multiply in it, gemm in it.
/// Throws: input_error for sizes below 1, and a format of more bits.
[[nodiscard]] operator_shape quantised_gemm(std::int64_t m, std::int64_t n, std::int64_t k, number_format f = number_format::fp8);

/// `batch` products of one shape, each with its own operands.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape batched_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, number_format f);

/// Attention in one kernel that never stores its scores. `heads`: query heads of all sequences together; each group of them
/// shares one of `kv_heads`.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape flash_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries, std::int64_t keys,
                                             std::int64_t head_width, bool causal, number_format f);

/// Attention of an inference engine, which turns queries and keys and keeps keys and values in a cache: a prompt's where there
/// are as many queries as keys, a token's where there is one query. As flash_attention otherwise.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape cached_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries, std::int64_t keys,
                                              std::int64_t head_width, bool causal, number_format f);

/// The backward of flash_attention, in one kernel that computes the scores anew: five products where forward has two; it also
/// reads the output and its gradient, and writes the gradients of queries, keys and values. Throws: input_error for sizes
/// below 1.
[[nodiscard]] operator_shape flash_attention_backward(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                                                      std::int64_t keys, std::int64_t head_width, bool causal, number_format f);

/// Softmax over rows, by a scalar kernel.
/// Throws: input_error for sizes below 1.
[[nodiscard]] inline operator_shape softmax(std::int64_t rows, std::int64_t columns, number_format f) {
  detail::require_sizes(rows >= 1 && columns >= 1);
  const double bytes = 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * element_bytes(f);
  return {.kind = operator_kind::softmax, .format = f, .m = rows, .n = columns, .traffic_bytes = bytes, .scalar = true};
}

/// Layer or RMS norm over rows. `scalar`: by a kernel without vector loads, as inference engines have.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape norm(std::int64_t rows, std::int64_t columns, number_format f, bool scalar = false);

/// Reads `read` tensors of `elements` each and writes `written`.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape elementwise(std::int64_t elements, int read, int written, number_format f);

/// A gated activation or rotary embedding by a scalar kernel, which reads `read` tensors of rows x columns and writes one.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape rowwise(std::int64_t rows, std::int64_t columns, int read, number_format f);

/// Looks up `tokens` rows of `width` elements.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape embedding(std::int64_t tokens, std::int64_t width, number_format f);

/// Attention as four kernels that store the scores of all heads: scores, scale and mask, softmax, weighted sum.
/// Throws: input_error for sizes below 1.
[[nodiscard]] std::array<operator_shape, 4> plain_attention(std::int64_t heads, std::int64_t queries, std::int64_t keys,
                                                            std::int64_t head_width, number_format f);

/// A convolution's sizes; the output is height x width divided by the stride, "same" padding.
struct convolution_sizes {
  std::int64_t images = 1, height = 1, width = 1, in_channels = 1, out_channels = 1, kernel_height = 1, kernel_width = 1,
               stride = 1;
};

/// A convolution as an implicit matrix product: output pixels x output channels, reduced over the window and the input
/// channels.
/// Throws: input_error for sizes below 1.
[[nodiscard]] operator_shape convolution(const convolution_sizes& c, number_format f);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/operator.ipp>
#endif
