// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/views.hpp>

#include <list>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

// Compiled twice: with range-v3, and from views_fallback_test.cpp with the equivalents that nvcc gets. Both meet the same loops.
#ifdef HETSCHED_VIEWS_FALLBACK
#define VIEWS "fallback views: "
#else
#define VIEWS "range-v3 views: "
#endif

namespace {

using hetsched::random_source;
using numbers = std::vector<int>;

numbers random_numbers(random_source& random, int longest) {
  numbers result(static_cast<std::size_t>(random.integer(0, longest)));
  for (int& n : result) n = random.integer(0, 3);
  return result;
}

template <class Slices>
std::vector<numbers> copied(Slices&& slices) {
  std::vector<numbers> result;
  for (auto&& slice : slices) {
    result.emplace_back();
    for (int n : slice) result.back().push_back(n);
  }
  return result;
}

}  // namespace

TEST_CASE(VIEWS "zip walks in step and ends with the shortest") {
  random_source random(1);
  for (int round = 0; round < 200; ++round) {
    const numbers a = random_numbers(random, 6);
    const numbers raw = random_numbers(random, 6);
    const std::list<int> b(raw.begin(), raw.end());
    CAPTURE(round);
    CAPTURE(a);
    CAPTURE(raw);
    std::size_t row = 0;
    for (auto&& [x, y] : hetsched::views::zip(a, b)) {
      REQUIRE(row < std::min(a.size(), raw.size()));
      CHECK(x == a[row]);
      CHECK(y == raw[row]);
      ++row;
    }
    CHECK(row == std::min(a.size(), raw.size()));
  }
}

TEST_CASE(VIEWS "zip hands out references") {
  numbers a{1, 2, 3};
  const numbers b{10, 20, 30};
  for (auto&& [x, y] : hetsched::views::zip(a, b)) x += y;
  CHECK(a == numbers{11, 22, 33});
}

TEST_CASE(VIEWS "zip of three") {
  const numbers a{1, 2};
  const std::vector<double> b{0.5, 1.5};
  const std::vector<bool> c{true, false};
  double sum = 0;
  for (auto&& [x, y, z] : hetsched::views::zip(a, b, c)) sum += z ? x * y : 100 * x * y;
  CHECK(sum == 0.5 + 300);
}

TEST_CASE(VIEWS "cartesian_product runs the last range fastest") {
  random_source random(2);
  for (int round = 0; round < 200; ++round) {
    const numbers a = random_numbers(random, 4);
    const numbers b = random_numbers(random, 4);
    const numbers c = random_numbers(random, 3);
    CAPTURE(round);
    CAPTURE(a);
    CAPTURE(b);
    CAPTURE(c);
    std::vector<numbers> expected;
    for (int x : a)
      for (int y : b)
        for (int z : c) expected.push_back({x, y, z});
    std::vector<numbers> found;
    for (auto&& [x, y, z] : hetsched::views::cartesian_product(a, b, c)) found.push_back({x, y, z});
    CHECK(found == expected);
  }
}

TEST_CASE(VIEWS "sliding shows every window of the width") {
  random_source random(3);
  for (int round = 0; round < 200; ++round) {
    const numbers a = random_numbers(random, 7);
    const int width = random.integer(1, 5);
    CAPTURE(round);
    CAPTURE(a);
    CAPTURE(width);
    std::vector<numbers> expected;
    for (auto first = a.begin(); a.end() - first >= width; ++first) expected.emplace_back(first, first + width);
    CHECK(copied(hetsched::views::sliding(a, width)) == expected);
    CHECK(copied(a | hetsched::views::sliding(width)) == expected);
  }
}

TEST_CASE(VIEWS "chunk_by cuts where neighbours do not belong together") {
  random_source random(4);
  for (int round = 0; round < 200; ++round) {
    const numbers a = random_numbers(random, 8);
    CAPTURE(round);
    CAPTURE(a);
    const auto rising = [](int before, int after) { return before <= after; };
    std::vector<numbers> expected;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (i == 0 || a[i - 1] > a[i]) expected.emplace_back();
      expected.back().push_back(a[i]);
    }
    CHECK(copied(hetsched::views::chunk_by(a, rising)) == expected);
    CHECK(copied(a | hetsched::views::chunk_by(rising)) == expected);
  }
}
