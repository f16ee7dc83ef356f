// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <system_error>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/operators_csv.hpp>

namespace hetsched::detail {

inline constexpr other_name format_aliases[] = {{"float32", "fp32"}, {"float", "fp32"},    {"float16", "fp16"},
                                                {"half", "fp16"},    {"bfloat16", "bf16"}, {"float8", "fp8"}};

/// A name in lower case, without blanks around it, and with _ for blanks and hyphens in it.
[[nodiscard]] inline std::string plain_name(std::string_view cell) {
  std::string name(cell);
  for (char& c : name) c = c == ' ' || c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

[[nodiscard]] inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

HETSCHED_INLINE std::vector<std::string_view> csv_cells(std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::size_t begin = 0; begin <= line.size();) {
    auto end = std::min(line.find_first_not_of(" \t", begin), line.size());
    // A comma between quotes ends no cell; two quotes are one of the text.
    if (line.substr(end).starts_with('"')) {
      for (++end; end < line.size() && (line[end] != '"' || line.substr(end + 1).starts_with('"')); ++end)
        if (line[end] == '"') ++end;
      end = std::min(end, line.size());
    }
    const auto comma = std::min(line.find(',', end), line.size());
    auto cell = trimmed(line.substr(begin, comma - begin));
    if (cell.size() > 1 && cell.front() == '"' && cell.back() == '"') cell = trimmed(cell.substr(1, cell.size() - 2));
    cells.push_back(cell);
    begin = comma + 1;
  }
  return cells;
}

/// Whether quotes begin and end cells, and lines end only between them.
[[nodiscard]] inline bool well_quoted(std::string_view record) {
  bool inside = false, begins = true;  // a cell
  for (std::size_t i = 0; i < record.size(); ++i) {
    const char c = record[i];
    if (inside && c == '"') {
      inside = record.substr(i + 1).starts_with('"');
      if (inside)
        ++i;
      else if (const auto next = record.find_first_not_of(" \t", i + 1); next != record.npos && record[next] != ',')
        return false;
    } else if (!inside) {
      if (c == '\n' || (c == '"' && !begins)) return false;
      inside = c == '"';
      begins = c == ',' || (begins && (c == ' ' || c == '\t'));
    }
  }
  return !inside;
}

class operators_reader {
 public:
  operators_reader(std::string_view text, std::string_view file) : rest_(text), file_(file) {}

  [[nodiscard]] operators_file read(function_ref<void(const file_error&)> on_bad_row) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
    if (rest_.starts_with("\xFF\xFE") || rest_.starts_with("\xFE\xFF") || rest_.substr(0, 4).find('\0') != rest_.npos)
      throw file_error(file_, {}, "is in UTF-16, expected UTF-8 (Excel: CSV UTF-8)");
    if (rest_.find('\n') == rest_.npos && rest_.find('\r') != rest_.npos) line_end_ = '\r';  // as Excel did on a Macintosh
    operators_file result;
    result.heading = take_line();
    if (result.heading == "sep=,") result.heading = take_line();  // for Excel
    read_heading(result.heading);
    while (!rest_.empty()) {
      const auto line = take_record();
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
    into.line_numbers.push_back(row_line_);
  }

  enum column { op, batch, m, n, k, dtype, columns };
  static constexpr std::string_view names[columns] = {"op", "batch", "m", "n", "k", "dtype"};
  static constexpr std::size_t missing = static_cast<std::size_t>(-1);

  std::string_view take_line() {
    row_line_ = ++line_;
    const auto end = std::min(rest_.find(line_end_), rest_.size());
    auto line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    while (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  // A row, in which quoted cells may have line ends: more lines where these close the quotes and make the heading's columns.
  std::string_view take_record() {
    const auto line = take_line();
    const auto open = [](std::string_view text) { return std::count(text.begin(), text.end(), '"') % 2 != 0; };
    if (!open(line)) return line;
    const auto rest = rest_;
    const int first = row_line_;
    auto record = line;
    bool opens = true;
    while (opens && !rest_.empty()) {
      const auto next = take_line();
      record = {line.data(), static_cast<std::size_t>(next.data() + next.size() - line.data())};
      opens = opens != open(next);
    }
    row_line_ = first;
    if (well_quoted(record) && csv_cells(record).size() == width_) return record;
    rest_ = rest;
    line_ = first;
    return line;
  }

  void split(std::string_view line) { cells_ = csv_cells(line); }

  void read_heading(std::string_view line) {
    split(line);
    width_ = cells_.size();
    measured_ = key_heads_ = width_;
    place_.fill(missing);
    for (std::size_t c = 0; c < width_; ++c) {
      const auto name = plain_name(cells_[c]);
      if (name == "predicted_ms") fail("there is a column predicted_ms already");
      if (name == "measured_ms") measured_ = c;
      if (name == "kv_heads") key_heads_ = c;
      const auto known = std::find(std::begin(names), std::end(names), name);
      if (known == std::end(names)) continue;
      auto& place = at(place_, known - std::begin(names));
      if (place != missing) fail("two columns are named " + name);
      place = c;
    }
    if (place_[op] == missing)
      for (const auto& [separator, name] : {std::pair{';', "semicolons"}, {'\t', "tabs"}, {'|', "bars"}, {' ', "blanks"}})
        if (line.find(separator) != line.npos && line.find(',') == line.npos)
          fail(std::string("cells are separated by ") + name + ", expected commas; found " + quoted(line));
    for (std::size_t c = 0; c < columns; ++c)
      if (place_[c] == missing)
        fail("no column is named " + std::string(names[c]) + "; found " + quoted(line) + ", expected op,batch,m,n,k,dtype");
  }

  [[nodiscard]] std::pair<operator_row, operator_shape> read_operator() const {
    const auto& kind = known_operator();
    operator_sizes sizes{.batch = size(batch), .m = size(m), .n = size(n)};
    // A table has something in this column also where it says nothing.
    if (kind.reduces || !says_nothing(cell(k))) sizes.k = size(k);
    const auto format = known_format();
    if (kind.name.starts_with("flash_attention") && key_heads_ < width_ && !says_nothing(cells_[key_heads_])) {
      sizes.kv_heads = whole(cells_[key_heads_], "kv_heads");
      if (sizes.batch % sizes.kv_heads != 0)
        fail("column kv_heads: found " + quoted(cells_[key_heads_]) + ", expected a divisor of the " +
             std::to_string(sizes.batch) + " heads in column batch");
    }
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
    auto text = cell(dtype);
    if (constexpr std::string_view torch = "torch."; text.starts_with(torch)) text.remove_prefix(torch.size());
    const auto name = resolved(text, format_aliases);
    const auto found = std::find(std::begin(format_names), std::end(format_names), name);
    if (found == std::end(format_names)) fail(dtype, "expected one of fp32, tf32, fp16, bf16, fp8, int8");
    return static_cast<number_format>(found - std::begin(format_names));
  }

  template <std::size_t N>
  [[nodiscard]] static std::string resolved(std::string_view text, const other_name (&aliases)[N]) {
    auto name = plain_name(text);
    for (const auto& alias : aliases)
      if (alias.name == name) return std::string(alias.is);
    return name;
  }

  [[nodiscard]] std::int64_t size(column c) const { return whole(cell(c), names[c]); }

  // What is written for a number that is not there: by R, by pandas, by databases, by workbooks; by plain_name.
  [[nodiscard]] static bool says_nothing(std::string_view cell) {
    constexpr std::string_view nothing[] = {"", "na", "nan", "null", "none", "<na>", "0", "0.0", "n/a", "#n/a", "\\n", "_"};
    return std::find(std::begin(nothing), std::end(nothing), plain_name(cell)) != std::end(nothing);
  }

  // At least 1, also as 4096.0 or 1e+05.
  [[nodiscard]] std::int64_t whole(std::string_view text, std::string_view heading) const {
    std::int64_t value = 0;
    const auto last = text.data() + text.size();
    auto [end, wrong] = std::from_chars(text.data(), last, value);
    if (wrong == std::errc{} && end != last) {
      double real = 0;
      const auto read = std::from_chars(text.data(), last, real);
      end = read.ptr;
      wrong = read.ec;
      constexpr double exact = 9007199254740992;  // whole numbers below are
      value = real >= 1 && real <= exact && real == std::floor(real) ? static_cast<std::int64_t>(real) : 0;
    }
    if (wrong != std::errc{} || end != last || value < 1)
      fail("column " + std::string(heading) + ": found " + quoted(text) + ", expected a whole number of at least 1");
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

  [[nodiscard]] static std::string quoted(std::string_view text) { return "\"" + excerpt(printable(text)) + "\""; }

  [[noreturn]] void fail(column c, const std::string& complaint) const {
    fail("column " + std::string(names[c]) + ": found " + quoted(cell(c)) + ", " + complaint);
  }

  [[noreturn]] void fail(const std::string& complaint) const {
    throw file_error(file_, {}, "line " + std::to_string(row_line_) + ": " + complaint);
  }

  std::string_view rest_;
  std::string file_;
  int line_ = 0, row_line_ = 0;  ///< read last, and where its row begins
  char line_end_ = '\n';
  std::vector<std::string_view> cells_;
  std::array<std::size_t, columns> place_{};
  std::size_t width_ = 0, measured_ = 0, key_heads_ = 0;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE operators_file parse_operators(std::string_view text, std::string_view file_name,
                                               function_ref<void(const file_error&)> on_bad_row) {
  return detail::operators_reader(text, file_name).read(on_bad_row);
}

HETSCHED_INLINE std::string measured_csv(std::span<const operator_row> rows, std::span<const double> measured_ms) {
  HETSCHED_EXPECTS(measured_ms.size() == rows.size());
  const bool cached = std::any_of(rows.begin(), rows.end(), [](const auto& r) { return r.sizes.kv_heads > 0; });
  std::string text = cached ? "op,batch,m,n,k,dtype,kv_heads,measured_ms\n" : "op,batch,m,n,k,dtype,measured_ms\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, sizes, format] = rows[i];
    text += name;
    for (const auto size : {sizes.batch, sizes.m, sizes.n, sizes.k}) text += ',' + std::to_string(size);
    text += ',';
    text += at(detail::format_names, format);
    if (cached) text += ',' + (sizes.kv_heads > 0 ? std::to_string(sizes.kv_heads) : std::string());
    text += detail::print(",%.6f\n", measured_ms[i]);
  }
  return text;
}

HETSCHED_INLINE std::string to_csv(const operators_file& file, const std::vector<double>& predicted_ms) {
  HETSCHED_EXPECTS(predicted_ms.size() == file.lines.size());
  const bool measured = !file.measured_ms.empty();
  std::string text = file.heading + (measured ? ",predicted_ms,error_percent\n" : ",predicted_ms\n");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    text += file.lines[i] + detail::print(",%.6f", predicted_ms[i]);
    if (measured) text += detail::print(",%.2f", (predicted_ms[i] / file.measured_ms[i] - 1) * 100);
    text += '\n';
  }
  return text;
}

}  // namespace hetsched
