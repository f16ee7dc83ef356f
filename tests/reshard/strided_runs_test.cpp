// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard/strided_runs.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("runs visit each element of a part once and in order, where both arrays have it") {
  random_source random(1);
  for (int run = 0; run < 3000; ++run) {
    slice a, b, part;
    for (int d = random.integer(0, 4); d > 0; --d) {
      const int first = random.integer(0, 3), size = random.integer(1, 4);
      part.push_back({first, first + size});
      const int kind = random.integer(0, 2);
      a.push_back({first - (kind == 1 ? random.integer(0, 2) : 0), first + size + (kind == 1 ? random.integer(0, 2) : 0)});
      b.push_back({first - (kind == 2 ? random.integer(0, 2) : 0), first + size + (kind == 2 ? random.integer(0, 2) : 0)});
    }
    const auto all = static_cast<int>(element_count(part));
    const int first = random.integer(0, all), last = random.integer(first, all);
    CAPTURE(run);
    std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
    std::int64_t next = 0;
    for_each_run(a, b, part, [&](std::int64_t x, std::int64_t y, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i, ++next)
        if (next >= first && next < last) expected.emplace_back(x + i, y + i);
    });
    const auto runs = runs_of(a, b, part, first, last);
    for (const auto& r : runs)
      for (std::int64_t row = 0; row < r.rows; ++row)
        for (std::int64_t i = 0; i < r.length; ++i)
          found.emplace_back(r.first_a + row * r.stride_a + i, r.first_b + row * r.stride_b + i);
    CHECK(found == expected);
  }
}

TEST_CASE("one cut makes one item") {
  const slice whole{{0, 10}, {0, 6}, {0, 4}}, part{{0, 10}, {2, 4}, {0, 4}};
  CHECK(runs_of(whole, part, part, 0, 80) == std::vector<strided_runs>{{8, 0, 8, 10, 24, 8}});
  CHECK(runs_of(whole, part, part, 3, 77).size() == 3);
  CHECK(runs_of(whole, whole, whole, 0, 240) == std::vector<strided_runs>{{0, 0, 240, 1, 0, 0}});
  CHECK(runs_of({}, {}, {}, 0, 1) == std::vector<strided_runs>{{0, 0, 1, 1, 0, 0}});
}
