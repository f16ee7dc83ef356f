// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/function_ref.hpp>

#include <doctest/doctest.h>

using hetsched::function_ref;

TEST_CASE("a function_ref calls what it refers to, and changes it") {
  int calls = 0;
  auto add = [&calls](double a, double b) {
    ++calls;
    return a + b;
  };
  const function_ref<double(double, double)> ref = add;
  REQUIRE(ref);
  CHECK(ref(1, 2) == 3);
  const auto copy = ref;
  CHECK(copy(2, 2) == 4);
  CHECK(calls == 2);
  const auto constant = [](double a, double) { return a > 1; };
  CHECK(function_ref<bool(double, double)>(constant)(2, 0));
  CHECK_FALSE(function_ref<bool(double, double)>());
}
