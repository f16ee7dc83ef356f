// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

namespace detail {

template <class T>
concept number_matrix = requires(const T& m) {
  { m.rows() } -> std::convertible_to<std::ptrdiff_t>;
  { m.cols() } -> std::convertible_to<std::ptrdiff_t>;
  { m(0, 0) } -> std::convertible_to<double>;
};

// No letters: a name in place of numbers is a mistake.
template <class T>
concept number = std::convertible_to<T, double> && !std::same_as<std::remove_cvref_t<T>, char>;

template <class T>
concept number_range =
    !number_matrix<std::remove_cvref_t<T>> && std::ranges::input_range<T> && number<std::ranges::range_reference_t<T>>;

template <class T>
concept range_of_number_ranges =
    !number_matrix<std::remove_cvref_t<T>> && std::ranges::input_range<T> && number_range<std::ranges::range_reference_t<T>>;

}  // namespace detail

/// Numbers in rows of equal length, copied from what the caller has: {{1, 2}, {3, 4}}; any range of ranges; a matrix with rows(),
/// cols() and operator()(row, column), as Eigen's; or numbers in a row: {1, 2}, any range of them, a vector of Eigen's.
class number_table {
 public:
  number_table() = default;
  number_table(std::initializer_list<double> row) { add(row); }
  /// Throws: input_error unless all rows are of one length.
  number_table(std::initializer_list<std::initializer_list<double>> rows) {
    for (const auto& row : rows) add(row);
  }
  template <class Row>
  requires(detail::number_range<Row> && !std::same_as<std::remove_cvref_t<Row>, number_table>) number_table(Row&& row) {
    add(row);
  }
  /// Throws: input_error unless all rows are of one length.
  template <class Rows>
  requires(detail::range_of_number_ranges<Rows>) number_table(Rows&& rows) {
    for (auto&& row : rows) add(row);
  }
  /// Throws: input_error for more rows or columns than an int counts.
  template <detail::number_matrix Matrix>
  number_table(const Matrix& m) {
    for (const std::ptrdiff_t n : {static_cast<std::ptrdiff_t>(m.rows()), static_cast<std::ptrdiff_t>(m.cols())})
      if (n < 0 || n > INT_MAX) throw input_error("a table of " + std::to_string(n) + " rows or columns");
    rows_ = static_cast<int>(m.rows());
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < static_cast<int>(m.cols()); ++j) values_.push_back(static_cast<double>(m(i, j)));
  }

  [[nodiscard]] int rows() const { return rows_; }
  /// 0 where there are no rows.
  [[nodiscard]] int columns() const { return rows_ == 0 ? 0 : static_cast<int>(values_.size()) / rows_; }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  /// Row after row: of a single row or a single column, its numbers.
  [[nodiscard]] std::span<const double> values() const { return values_; }
  /// Throws: input_error unless 0 <= i < rows().
  [[nodiscard]] std::span<const double> operator[](int i) const {
    if (i < 0 || i >= rows_) throw input_error("a table of " + std::to_string(rows_) + " rows has no row " + std::to_string(i));
    return values().subspan(as_size(i) * as_size(columns()), as_size(columns()));
  }
  friend bool operator==(const number_table&, const number_table&) = default;

 private:
  template <class Row>
  void add(Row& row) {
    const auto before = values_.size();
    for (const auto& x : row) values_.push_back(static_cast<double>(x));
    if (const auto added = values_.size() - before; rows_ > 0 && added != before / as_size(rows_))
      throw input_error("row " + std::to_string(rows_) + " has " + std::to_string(added) + " numbers, expected " +
                        std::to_string(before / as_size(rows_)) + " as the rows before");
    ++rows_;
  }

  int rows_ = 0;
  std::vector<double> values_;  // row after row
};

}  // namespace hetsched
