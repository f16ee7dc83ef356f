// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// The sizes of a row of an operators CSV; what they mean, the operator says.
struct operator_sizes {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  std::int64_t kv_heads = 0;  ///< of attention over a cache; 0: not told

  [[nodiscard]] std::int64_t rows() const { return checked_mul(batch, m); }
  [[nodiscard]] std::int64_t elements() const { return checked_mul(batch, m, n); }
  friend bool operator==(const operator_sizes&, const operator_sizes&) = default;
};

/// What a row of an operators CSV says: `name` is that of docs/prediction.md, whatever alias the row has.
struct operator_row {
  std::string_view name;
  operator_sizes sizes;
  number_format format = number_format::fp32;
  friend bool operator==(const operator_row&, const operator_row&) = default;
};

/// The rows of an operators CSV, and what they run.
struct operators_file {
  std::string heading;             ///< as in the file, without its line end
  std::vector<std::string> lines;  ///< rows as in the file
  std::vector<int> line_numbers;   ///< where they stand in it, the heading is line 1
  std::vector<operator_row> rows;
  std::vector<operator_shape> operators;
  std::vector<double> measured_ms;  ///< of the column of that name; empty if there is none

  friend bool operator==(const operators_file&, const operators_file&) = default;
};

namespace detail {

struct named_operator {
  std::string_view name;
  bool reduces;  // whether k counts
  operator_shape (*make)(const operator_sizes&, number_format);
};

// Who measures operators for a table repeats each, on few operands in turn.
[[nodiscard]] inline operator_shape repeated(operator_shape op) {
  op.repeated = true;
  return op;
}

[[nodiscard]] inline operator_shape batched_product(const operator_sizes& s, number_format f) {
  return repeated(batched_gemm(s.batch, s.m, s.n, s.k, f));
}

template <int Read>
[[nodiscard]] operator_shape pointwise(const operator_sizes& s, number_format f) {
  return elementwise(s.elements(), Read, 1, f);
}

[[nodiscard]] inline operator_shape row_norm(const operator_sizes& s, number_format f) { return norm(s.rows(), s.n, f); }

template <bool Causal>
[[nodiscard]] operator_shape self_attention(const operator_sizes& s, number_format f) {
  return s.kv_heads > 0 ? cached_attention(s.batch, s.kv_heads, s.m, s.n, s.k, Causal, f)
                        : flash_attention(s.batch, s.batch, s.m, s.n, s.k, Causal, f);
}

template <bool Causal>
[[nodiscard]] operator_shape self_attention_backward(const operator_sizes& s, number_format f) {
  return flash_attention_backward(s.batch, s.kv_heads > 0 ? s.kv_heads : s.batch, s.m, s.n, s.k, Causal, f);
}

// A fused step of an optimizer on each of its elements.
template <int Read, int Written>
[[nodiscard]] operator_shape optimizer_step(const operator_sizes& s, number_format f) {
  return elementwise(s.elements(), Read, Written, f);
}

[[nodiscard]] inline operator_shape row_softmax(const operator_sizes& s, number_format f) { return softmax(s.rows(), s.n, f); }

// Dropout writes a mask of one byte per element beside its output.
[[nodiscard]] inline operator_shape dropout(const operator_sizes& s, number_format f) {
  auto op = pointwise<1>(s, f);
  op.traffic_bytes += static_cast<double>(op.m);
  return op;
}

inline constexpr named_operator named_operators[] = {
    {"gemm", true,
     [](const operator_sizes& s, number_format f) {
       return s.batch > 1    ? batched_product(s, f)
              : in_8_bits(f) ? repeated(quantised_gemm(s.m, s.n, s.k, f))
                             : repeated(gemm(s.m, s.n, s.k, f));
     }},
    {"scaled_mm", true,
     [](const operator_sizes& s, number_format f) {
       return s.batch > 1 ? batched_product(s, f) : repeated(gemm(s.m, s.n, s.k, f));
     }},
    {"bmm", true, batched_product},
    {"flash_attention", true, self_attention<false>},
    {"flash_attention_causal", true, self_attention<true>},
    {"flash_attention_backward", true, self_attention_backward<false>},
    {"flash_attention_causal_backward", true, self_attention_backward<true>},
    {"softmax", false, row_softmax},
    {"cross_entropy", false, row_softmax},
    {"moe_routing", false, row_softmax},
    {"rotary", false, [](const operator_sizes& s, number_format f) { return rowwise(s.rows(), s.n, 1, f); }},
    {"adam", false, optimizer_step<4, 3>},
    {"sgd_momentum", false, optimizer_step<3, 2>},
    {"sgd", false, optimizer_step<2, 1>},
    {"layernorm", false, row_norm},
    {"rmsnorm", false, row_norm},
    {"embedding", false, [](const operator_sizes& s, number_format f) { return embedding(s.rows(), s.n, f); }},
    {"elementwise_add", false, pointwise<2>},
    {"elementwise_sub", false, pointwise<2>},
    {"elementwise_mul", false, pointwise<2>},
    {"elementwise_div", false, pointwise<2>},
    {"elementwise_pow", false, pointwise<2>},
    {"swiglu", false, pointwise<2>},
    {"gelu", false, pointwise<1>},
    {"relu", false, pointwise<1>},
    {"silu", false, pointwise<1>},
    {"tanh", false, pointwise<1>},
    {"sigmoid", false, pointwise<1>},
    {"scale", false, pointwise<1>},
    {"copy", false, pointwise<1>},
    {"dropout", false, dropout},
};

struct other_name {
  std::string_view name, is;
};

inline constexpr other_name operator_aliases[] = {
    {"grouped_gemm", "bmm"},     {"rope", "rotary"},         {"adamw", "adam"},          {"moe_permute", "embedding"},
    {"matmul", "gemm"},          {"linear", "gemm"},         {"batched_gemm", "bmm"},    {"batched_matmul", "bmm"},
    {"layer_norm", "layernorm"}, {"ln", "layernorm"},        {"rms_norm", "rmsnorm"},    {"add", "elementwise_add"},
    {"sub", "elementwise_sub"},  {"mul", "elementwise_mul"}, {"div", "elementwise_div"}, {"pow", "elementwise_pow"}};

/// The cells of a line of CSV text, without blanks and quotes around them. O(length).
[[nodiscard]] std::vector<std::string_view> csv_cells(std::string_view line);

inline constexpr std::string_view format_names[] = {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"};  // by number_format

}  // namespace detail

/// Reads operators from CSV text with the columns op, batch, m, n, k, dtype in any order (docs/prediction.md says what the
/// sizes mean), and kv_heads of attention where there is one; other columns are kept. Names may be in any case, with blanks
/// around them. Lines may end in \r\n or \r. Cells may be in quotes,
/// also with line ends in them, and whole numbers written as 4096.0.
/// on_bad_row: is told what is wrong with a row, which is left out then; none: the first such row is an error.
/// Throws: file_error that names line and column, what was found and what was expected.
/// Complexity: O(text).
[[nodiscard]] operators_file parse_operators(std::string_view text, std::string_view file_name,
                                             function_ref<void(const file_error&)> on_bad_row = {});

/// Reads an operators CSV.
/// Throws: as parse_operators.
[[nodiscard]] inline operators_file read_operators(const std::string& path) { return parse_operators(read_text(path), path); }

/// Rows with what was measured of them, in milliseconds: an operators CSV that parse_operators reads.
/// Requires: one time per row.
[[nodiscard]] std::string measured_csv(std::span<const operator_row> rows, std::span<const double> measured_ms);

/// The rows as they were read, with the column predicted_ms behind the others, and error_percent (predicted over measured,
/// less one) where the rows say what was measured.
/// Requires: one time per row, in milliseconds.
[[nodiscard]] std::string to_csv(const operators_file& file, const std::vector<double>& predicted_ms);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/operators_csv.ipp>
#endif
