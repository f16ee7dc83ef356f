// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/outcome.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <doctest/doctest.h>

using hetsched::outcome;
using hetsched::refusal;

namespace {

outcome<int> half(int n) {
  if (n % 2 != 0) return refusal{refusal::kind::infeasible, std::to_string(n) + " is odd"};
  return n / 2;
}

}  // namespace

TEST_CASE("outcome holds a value or the reason why there is none") {
  const auto four = half(8);
  REQUIRE(four.has_value());
  CHECK(static_cast<bool>(four));
  CHECK(*four == 4);

  const auto none = half(7);
  REQUIRE(!none.has_value());
  CHECK(!none);
  CHECK(none.why_not().why == refusal::kind::infeasible);
  CHECK(none.why_not().reason == "7 is odd");
}

TEST_CASE("outcome tells a stopped search from an infeasible one") {
  const outcome<int> stopped = refusal{refusal::kind::stopped, "budget used up"};
  CHECK(stopped.why_not().why == refusal::kind::stopped);
}

TEST_CASE("outcome gives access through * and -> and moves out of a temporary") {
  outcome<std::string> text = std::string("plan");
  text->push_back('s');
  CHECK(*text == "plans");
  CHECK(std::as_const(text)->size() == 5);

  outcome<std::unique_ptr<int>> owner = std::make_unique<int>(3);
  const std::unique_ptr<int> taken = *std::move(owner);
  CHECK(*taken == 3);
}

TEST_CASE("outcome does not turn into a number or a bool by itself") {
  static_assert(!std::is_convertible_v<outcome<int>, bool>);
  static_assert(!std::is_convertible_v<outcome<int>, int>);
  static_assert(std::is_constructible_v<bool, outcome<int>>);
}
