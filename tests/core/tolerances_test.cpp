// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/tolerances.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("sums in another order part by less than their tolerance, and one product by less than that of rounding") {
  random_source random(41);
  for (int n = 0; n < 100; ++n) {
    std::vector<double> parts;
    for (int i = 0; i < 10'000; ++i) parts.push_back(random.uniform(1e-6, 1e3));
    double there = 0, back = 0;
    for (const double p : parts) there += p;
    std::reverse(parts.begin(), parts.end());
    for (const double p : parts) back += p;
    CHECK(std::abs(there - back) <= tolerance::sums * there);
    const double x = random.uniform(1e-9, 1e9), y = random.uniform(1e-9, 1e9);
    CHECK(std::abs(x / y * y - x) <= tolerance::rounding * x);
  }
  CHECK_FALSE(std::isfinite(infinity));
}
