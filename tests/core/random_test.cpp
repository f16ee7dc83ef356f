// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/random.hpp>

#include <array>
#include <cstdint>
#include <limits>

#include <doctest/doctest.h>

using hetsched::random_source;

TEST_CASE("random_source gives the published SplitMix64 numbers") {
  // Seed 1234567: the reference values of Rosetta Code's "Pseudo-random numbers/Splitmix64".
  random_source random(1234567);
  const std::array<std::uint64_t, 5> published{6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                               4593380528125082431u, 16408922859458223821u};
  for (const auto number : published) CHECK(random() == number);
}

TEST_CASE("random_source is a value: a copy repeats the original") {
  random_source random(42);
  random();
  auto copy = random;
  for (int i = 0; i < 10; ++i) CHECK(copy() == random());
}

TEST_CASE("random_source works in constant expressions") {
  static_assert(random_source(7).integer(3, 3) == 3);
  static_assert(random_source(7).uniform() < 1);
  static_assert(random_source::min() == 0);
  static_assert(random_source::max() == std::numeric_limits<std::uint64_t>::max());
}

TEST_CASE("uniform stays in its half-open interval and fills it evenly") {
  random_source random(5);
  constexpr int draws = 100'000;
  std::array<int, 10> hits{};
  double sum = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = random.uniform();
    REQUIRE(x >= 0);
    REQUIRE(x < 1);
    sum += x;
    ++hits[static_cast<std::size_t>(x * 10)];
  }
  // Five standard deviations: sqrt(1/12/draws) for the mean, sqrt(draws * 0.1 * 0.9) for a tenth.
  CHECK(std::abs(sum / draws - 0.5) < 5 * 0.000913);
  for (const int n : hits) CHECK(std::abs(n - draws / 10) < 5 * 95);
  for (int i = 0; i < 1000; ++i) {
    const double x = random.uniform(-2, 3);
    REQUIRE(x >= -2);
    REQUIRE(x < 3);
  }
}

TEST_CASE("integer reaches both ends and nothing beyond") {
  random_source random(6);
  std::array<int, 6> hits{};
  for (int i = 0; i < 60'000; ++i) {
    const int n = random.integer(-2, 3);
    REQUIRE(n >= -2);
    REQUIRE(n <= 3);
    ++hits[static_cast<std::size_t>(n + 2)];
  }
  for (const int n : hits) CHECK(std::abs(n - 10'000) < 5 * 92);

  constexpr int lowest = std::numeric_limits<int>::min();
  constexpr int highest = std::numeric_limits<int>::max();
  for (int i = 0; i < 1000; ++i) {
    const int n = random.integer(highest - 1, highest);
    CHECK(n >= highest - 1);
  }
  int negative = 0;
  for (int i = 0; i < 1000; ++i) negative += random.integer(lowest, highest) < 0;
  CHECK(negative > 400);
  CHECK(negative < 600);
}
