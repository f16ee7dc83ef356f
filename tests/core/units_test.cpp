// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/units.hpp>

#include <cstdint>
#include <limits>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

using hetsched::ceil_div;
using hetsched::checked_add;
using hetsched::checked_mul;

namespace {

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

__extension__ typedef __int128 wide;
constexpr bool fits(wide n) { return n >= lowest && n <= highest; }

}  // namespace

TEST_CASE("byte units and link rates") {
  static_assert(hetsched::kib == 1024);
  static_assert(hetsched::mib == 1048576);
  static_assert(hetsched::gib == 1073741824);
  static_assert(hetsched::gbit_per_s(8) == 1e9);
  static_assert(hetsched::gbit_per_s(5) == 625e6);
}

TEST_CASE("checked sums and products agree with 128-bit arithmetic") {
  hetsched::random_source random(11);
  int overflows = 0;
  for (int round = 0; round < 20'000; ++round) {
    // Arithmetic shifts spread the magnitudes, so that some fit and some do not.
    const auto a = static_cast<std::int64_t>(random()) >> random.integer(0, 63);
    const auto b = static_cast<std::int64_t>(random()) >> random.integer(0, 63);
    CAPTURE(a);
    CAPTURE(b);
    const wide sum = static_cast<wide>(a) + b;
    const wide product = static_cast<wide>(a) * b;
    if (fits(sum))
      CHECK(checked_add(a, b) == static_cast<std::int64_t>(sum));
    else
      CHECK_THROWS_AS((void)checked_add(a, b), hetsched::input_error);
    if (fits(product))
      CHECK(checked_mul(a, b) == static_cast<std::int64_t>(product));
    else
      CHECK_THROWS_AS((void)checked_mul(a, b), hetsched::input_error);
    overflows += !fits(sum) + !fits(product);
  }
  CHECK(overflows > 1000);
}

TEST_CASE("checked arithmetic at the ends of the range") {
  CHECK(checked_add(highest, 0) == highest);
  CHECK(checked_add(highest, lowest) == -1);
  CHECK_THROWS_AS((void)checked_add(highest, 1), hetsched::input_error);
  CHECK_THROWS_AS((void)checked_add(lowest, -1), hetsched::input_error);
  CHECK(checked_mul(lowest, 1) == lowest);
  CHECK_THROWS_AS((void)checked_mul(lowest, -1), hetsched::input_error);
}

TEST_CASE("checked_mul takes any number of factors and checks each step") {
  static_assert(checked_mul(2, 3, 5, 7) == 210);
  CHECK(checked_mul(std::int64_t{1} << 31, std::int64_t{1} << 31) == std::int64_t{1} << 62);
  CHECK_THROWS_AS((void)checked_mul(std::int64_t{1} << 31, std::int64_t{1} << 31, 2), hetsched::input_error);
  CHECK_THROWS_AS((void)checked_mul(std::int64_t{1} << 32, std::int64_t{1} << 32, 0), hetsched::input_error);
}

TEST_CASE("ceil_div is the least integer that covers") {
  for (std::int64_t a = 0; a < 100; ++a)
    for (std::int64_t b = 1; b < 20; ++b) {
      CAPTURE(a);
      CAPTURE(b);
      const auto q = ceil_div(a, b);
      CHECK(q * b >= a);
      CHECK((q - 1) * b < a);
    }
  CHECK(ceil_div(highest, highest) == 1);
  CHECK(ceil_div(highest, 1) == highest);
}
