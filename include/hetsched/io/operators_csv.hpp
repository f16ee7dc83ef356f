// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// The sizes of a row of an operators CSV; what they mean, the operator says.
struct operator_sizes {
  std::int64_t batch = 1, m = 1, n = 1, k = 1;

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

template <int Read>
[[nodiscard]] operator_shape pointwise(const operator_sizes& s, number_format f) {
  return elementwise(s.elements(), Read, 1, f);
}

[[nodiscard]] inline operator_shape row_norm(const operator_sizes& s, number_format f) { return norm(s.rows(), s.n, f); }

template <bool Causal>
[[nodiscard]] operator_shape self_attention(const operator_sizes& s, number_format f) {
  return flash_attention(s.batch, s.batch, s.m, s.n, s.k, Causal, f);
}

template <bool Causal>
[[nodiscard]] operator_shape self_attention_backward(const operator_sizes& s, number_format f) {
  return flash_attention_backward(s.batch, s.batch, s.m, s.n, s.k, Causal, f);
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
       return s.batch == 1 ? gemm(s.m, s.n, s.k, f) : batched_gemm(s.batch, s.m, s.n, s.k, f);
     }},
    {"bmm", true, [](const operator_sizes& s, number_format f) { return batched_gemm(s.batch, s.m, s.n, s.k, f); }},
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

inline constexpr std::string_view format_names[] = {"fp32", "tf32", "fp16", "bf16", "fp8"};  // by number_format
inline constexpr other_name format_aliases[] = {{"float32", "fp32"}, {"float", "fp32"},    {"float16", "fp16"},
                                                {"half", "fp16"},    {"bfloat16", "bf16"}, {"float8", "fp8"}};

/// A name in lower case, without blanks around it, and with _ for blanks and hyphens in it.
[[nodiscard]] inline std::string plain_name(std::string_view cell) {
  std::string name(cell);
  for (char& c : name) c = c == ' ' || c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

class operators_reader {
 public:
  operators_reader(std::string_view text, std::string_view file) : rest_(text), file_(file) {}

  [[nodiscard]] operators_file read(function_ref<void(const file_error&)> on_bad_row) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
    operators_file result;
    result.heading = take_line();
    read_heading(result.heading);
    while (!rest_.empty()) {
      const auto line = take_line();
      if (trimmed(line).empty() && trimmed(rest_).empty()) break;
      try {
        read_row(line, result);
      } catch (const file_error& wrong) {
        if (!on_bad_row) throw;
        on_bad_row(wrong);
      }
    }
    return result;
  }

 private:
  void read_row(std::string_view line, operators_file& into) {
    split(line);
    if (cells_.size() != width_)
      fail("found " + std::to_string(cells_.size()) + " cells, expected " + std::to_string(width_) + " as in the heading");
    const auto& [row, shape] = read_operator();
    if (measured_ < width_) into.measured_ms.push_back(milliseconds());
    into.rows.push_back(row);
    into.operators.push_back(shape);
    into.lines.emplace_back(line);
    into.line_numbers.push_back(line_);
  }

  enum column { op, batch, m, n, k, dtype, columns };
  static constexpr std::string_view names[columns] = {"op", "batch", "m", "n", "k", "dtype"};
  static constexpr std::size_t missing = static_cast<std::size_t>(-1);

  [[nodiscard]] static std::string_view trimmed(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    const auto first = text.find_first_not_of(blanks);
    return first == std::string_view::npos ? std::string_view{} : text.substr(first, text.find_last_not_of(blanks) - first + 1);
  }

  std::string_view take_line() {
    ++line_;
    const auto end = std::min(rest_.find('\n'), rest_.size());
    auto line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    while (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  void split(std::string_view line) {
    cells_.clear();
    for (std::size_t begin = 0; begin <= line.size();) {
      const auto comma = std::min(line.find(',', begin), line.size());
      cells_.push_back(trimmed(line.substr(begin, comma - begin)));
      begin = comma + 1;
    }
  }

  void read_heading(std::string_view line) {
    split(line);
    width_ = cells_.size();
    measured_ = width_;
    place_.fill(missing);
    for (std::size_t c = 0; c < width_; ++c) {
      const auto name = plain_name(cells_[c]);
      if (name == "predicted_ms") fail("there is a column predicted_ms already");
      if (name == "measured_ms") measured_ = c;
      const auto known = std::find(std::begin(names), std::end(names), name);
      if (known == std::end(names)) continue;
      auto& place = place_[static_cast<std::size_t>(known - std::begin(names))];
      if (place != missing) fail("two columns are named " + name);
      place = c;
    }
    for (std::size_t c = 0; c < columns; ++c)
      if (place_[c] == missing)
        fail("no column is named " + std::string(names[c]) + "; found " + quoted(line) + ", expected op,batch,m,n,k,dtype");
  }

  [[nodiscard]] std::pair<operator_row, operator_shape> read_operator() const {
    const auto& kind = known_operator();
    operator_sizes sizes{.batch = size(batch), .m = size(m), .n = size(n)};
    // A table has something in this column also where it says nothing.
    if (kind.reduces || (!cell(k).empty() && cell(k) != "0")) sizes.k = size(k);
    const auto format = known_format();
    try {
      return {{kind.name, sizes, format}, kind.make(sizes, format)};
    } catch (const input_error& wrong) {
      fail(wrong.what());
    }
  }

  [[nodiscard]] const named_operator& known_operator() const {
    const auto name = resolved(cell(op), operator_aliases);
    for (const auto& known : named_operators)
      if (known.name == name) return known;
    std::vector<std::string_view> all;
    for (const auto& known : named_operators) all.push_back(known.name);
    fail(op, "unknown operator; " + suggestion(name, all));
  }

  [[nodiscard]] number_format known_format() const {
    const auto name = resolved(cell(dtype), format_aliases);
    const auto found = std::find(std::begin(format_names), std::end(format_names), name);
    if (found == std::end(format_names)) fail(dtype, "expected one of fp32, tf32, fp16, bf16, fp8");
    return static_cast<number_format>(found - std::begin(format_names));
  }

  template <std::size_t N>
  [[nodiscard]] static std::string resolved(std::string_view text, const other_name (&aliases)[N]) {
    auto name = plain_name(text);
    for (const auto& alias : aliases)
      if (alias.name == name) return std::string(alias.is);
    return name;
  }

  [[nodiscard]] std::int64_t size(column c) const {
    std::int64_t value = 0;
    const auto text = cell(c);
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc{} || end != text.data() + text.size() || value < 1) fail(c, "expected a whole number of at least 1");
    return value;
  }

  [[nodiscard]] double milliseconds() const {
    double value = 0;
    const auto text = cells_[measured_];
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc{} || end != text.data() + text.size() || !(value > 0 && value < 1e12))
      fail("column measured_ms: found " + quoted(text) + ", expected milliseconds above 0");
    return value;
  }

  [[nodiscard]] std::string_view cell(column c) const { return cells_[place_[c]]; }

  [[nodiscard]] static std::string quoted(std::string_view text) { return "\"" + excerpt(std::string(text)) + "\""; }

  [[noreturn]] void fail(column c, const std::string& complaint) const {
    fail("column " + std::string(names[c]) + ": found " + quoted(cell(c)) + ", " + complaint);
  }

  [[noreturn]] void fail(const std::string& complaint) const {
    throw file_error(file_, {}, "line " + std::to_string(line_) + ": " + complaint);
  }

  std::string_view rest_;
  std::string file_;
  int line_ = 0;
  std::vector<std::string_view> cells_;
  std::array<std::size_t, columns> place_{};
  std::size_t width_ = 0, measured_ = 0;
};

}  // namespace detail

/// Reads operators from CSV text with the columns op, batch, m, n, k, dtype in any order (docs/prediction.md says what the
/// sizes mean); other columns are kept. Names may be in any case, with blanks around them. Lines may end in \r\n. Cells are
/// not quoted.
/// on_bad_row: is told what is wrong with a row, which is left out then; none: the first such row is an error.
/// Throws: file_error that names line and column, what was found and what was expected.
/// Complexity: O(text).
[[nodiscard]] inline operators_file parse_operators(std::string_view text, std::string_view file_name,
                                                    function_ref<void(const file_error&)> on_bad_row = {}) {
  return detail::operators_reader(text, file_name).read(on_bad_row);
}

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
