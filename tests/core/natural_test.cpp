// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/natural.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("naturals compute as machine words do where these suffice") {
  random_source random(3);
  for (int i = 0; i < 2000; ++i) {
    const auto draw = [&] { return random() >> random.integer(33, 63) << random.integer(0, 1); };
    const std::uint64_t a = draw(), b = draw();
    INFO(a << " " << b);
    CHECK(natural(a) + natural(b) == natural(a + b));
    CHECK(natural(a) * natural(b) == natural(a * b));
    CHECK(natural(a + b) - natural(b) == natural(a));
    CHECK(to_string(natural(a * b)) == std::to_string(a * b));
    CHECK((natural(a) < natural(b)) == (a < b));
  }
}

TEST_CASE("naturals are known where they are large") {
  natural factorial = 1, power = 1;
  for (std::uint64_t i = 2; i <= 40; ++i) factorial *= i;
  CHECK(to_string(factorial) == "815915283247897734345611269596115894272000000000");
  for (int i = 0; i < 200; ++i) power *= 2;
  CHECK(to_string(power) == "1606938044258990275541962092341162602522202993782792835301376");
  CHECK(to_string(power - (power - natural(7))) == "7");
  CHECK((power - power == natural()));
  CHECK(to_string(natural()) == "0");
  CHECK(factorial < power);
  CHECK_FALSE(power < factorial);
  natural ten = 1;
  for (int i = 0; i < 30; ++i) ten *= 10;
  CHECK(to_string(ten) == "1" + std::string(30, '0'));
}

TEST_CASE("large naturals are rounded in short") {
  CHECK(short_text(1234567) == "1234567");
  CHECK(short_text(12345678) == "1.2e7");
  CHECK(short_text(12500000) == "1.3e7");
  CHECK(short_text(99500000) == "1.0e8");
}
