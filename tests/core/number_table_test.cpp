// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <list>
#include <ranges>
#include <vector>

#include <Eigen/Core>

#include <doctest/doctest.h>

#include <hetsched/core/number_table.hpp>

using namespace hetsched;

namespace {

struct argument {
  number_table table = {};
};

}  // namespace

TEST_CASE("core.number_table: braces, ranges, ranges of ranges and Eigen's matrices of either order are the same rows") {
  const number_table expected{{1, 2, 3}, {4, 5, 6}};
  CHECK(expected.rows() == 2);
  CHECK(expected.columns() == 3);
  CHECK(expected[1][0] == 4);
  CHECK(argument{.table = {{1, 2, 3}, {4, 5, 6}}}.table == expected);
  CHECK(number_table(std::vector<std::vector<int>>{{1, 2, 3}, {4, 5, 6}}) == expected);
  CHECK(number_table(std::list<std::array<float, 3>>{{1, 2, 3}, {4, 5, 6}}) == expected);
  Eigen::MatrixXd columns(2, 3);
  columns << 1, 2, 3, 4, 5, 6;
  CHECK(number_table(columns) == expected);
  CHECK(number_table(Eigen::Matrix<float, 2, 3, Eigen::RowMajor>(columns.cast<float>())) == expected);
}

TEST_CASE("core.number_table: numbers in a row") {
  const number_table expected{0.5, 1.5};
  CHECK(expected.rows() == 1);
  CHECK(argument{.table = {0.5, 1.5}}.table == expected);
  CHECK(number_table(std::vector<double>{0.5, 1.5}) == expected);
  CHECK(number_table(std::views::iota(0, 2) | std::views::transform([](int i) { return i + 0.5; })) == expected);
  CHECK(number_table(Eigen::RowVector2d(0.5, 1.5)) == expected);
  const number_table column(Eigen::Vector2d(0.5, 1.5));  // two rows, the same values
  CHECK(column.rows() == 2);
  CHECK(std::ranges::equal(column.values(), expected.values()));
  CHECK(number_table().empty());
  CHECK(number_table().columns() == 0);
}

TEST_CASE("core.number_table: rows of different lengths are refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(number_table{{1, 2}, {3}, {4, 5}}), "row 1 has 1 numbers, expected 2 as the rows before",
                       input_error);
}
