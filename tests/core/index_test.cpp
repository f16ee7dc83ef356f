// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/index.hpp>

using namespace hetsched;

static_assert(at(std::array{3, 4}, 1) == 4);
static_assert(as_size(7) == 7u);

TEST_CASE("core.index: at is operator[] for any integer: the value itself, as constant as what holds it") {
  std::vector<int> values{1, 2, 3};
  at(values, 2) = 5;
  CHECK(values == std::vector{1, 2, 5});
  static_assert(std::is_same_v<decltype(at(values, 0)), int&>);
  static_assert(std::is_same_v<decltype(at(std::as_const(values), 0L)), const int&>);
  std::vector<bool> bits{false, true};
  at(bits, 0) = true;
  CHECK(bits == std::vector{true, true});
}
