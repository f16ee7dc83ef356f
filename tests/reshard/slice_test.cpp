// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard/slice.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/strided_runs.hpp>

using namespace hetsched;

namespace {

using element = std::vector<std::int64_t>;

// All indices of a slice, the last dimension fastest.
std::vector<element> indices_of(const slice& s) {
  std::vector<element> all{{}};
  for (const auto& i : s) {
    std::vector<element> longer;
    for (const auto& start : all)
      for (auto x = i.first; x < i.last; ++x) {
        longer.push_back(start);
        longer.back().push_back(x);
      }
    all = std::move(longer);
  }
  return all;
}

std::int64_t position(const std::vector<element>& all, const element& wanted) {
  const auto found = std::lower_bound(all.begin(), all.end(), wanted);
  REQUIRE((found != all.end() && *found == wanted));
  return found - all.begin();
}

slice random_slice(random_source& random, const std::vector<int>& shape) {
  slice s;
  for (const int extent : shape) {
    const int a = random.integer(0, extent), b = random.integer(0, extent);
    // Whole dimensions are what runs grow by.
    if (random.integer(0, 2) == 0)
      s.push_back({0, extent});
    else
      s.push_back({std::min(a, b), std::max(a, b)});
  }
  return s;
}

// A box of which `part` is a part.
slice around(random_source& random, const slice& part, const std::vector<int>& shape) {
  slice s;
  for (std::size_t d = 0; d < part.size(); ++d)
    s.push_back(random.integer(0, 1) ? part[d]
                                     : interval{random.integer(0, static_cast<int>(part[d].first)),
                                                random.integer(static_cast<int>(part[d].last), shape[d])});
  return s;
}

}  // namespace

TEST_CASE("slices against all their elements") {
  random_source random(31);
  int shared_some = 0, inside = 0;
  for (int n = 0; n < 4000; ++n) {
    std::vector<int> shape;
    for (int d = random.integer(0, 4); d > 0; --d) shape.push_back(random.integer(1, 5));
    const auto a = random_slice(random, shape), b = random.integer(0, 3) ? random_slice(random, shape) : around(random, a, shape);
    const auto of_a = indices_of(a), of_b = indices_of(b);
    std::vector<element> both;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(both));
    CAPTURE(n);
    REQUIRE(element_count(a) == static_cast<std::int64_t>(of_a.size()));
    const auto common = intersection(a, b);
    REQUIRE(element_count(common) == static_cast<std::int64_t>(both.size()));
    if (!both.empty()) REQUIRE(indices_of(common) == both);
    REQUIRE(overlap(a, b) == !both.empty());
    REQUIRE(contains(b, a) == (both.size() == of_a.size()));
    REQUIRE(contains(a, b) == (both.size() == of_b.size()));
    shared_some += !both.empty();
    inside += contains(b, a) && !of_a.empty();
  }
  CHECK(shared_some > 1000);
  CHECK(inside > 800);
}

TEST_CASE("a part lies in a slice in runs, and its copy brings every element") {
  random_source random(32);
  int one_run = 0;
  for (int n = 0; n < 4000; ++n) {
    std::vector<int> shape;
    for (int d = random.integer(0, 4); d > 0; --d) shape.push_back(random.integer(1, 5));
    const auto part = random_slice(random, shape), a = around(random, part, shape), b = around(random, part, shape);
    const auto of_part = indices_of(part), of_a = indices_of(a), of_b = indices_of(b);
    CAPTURE(n);
    REQUIRE(contains(a, part));
    std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
    for (const auto& i : of_part) expected.emplace_back(position(of_a, i), position(of_b, i));
    for_each_run(a, b, part, [&](std::int64_t in_a, std::int64_t in_b, std::int64_t length) {
      REQUIRE(length > 0);
      for (std::int64_t i = 0; i < length; ++i) found.emplace_back(in_a + i, in_b + i);
    });
    REQUIRE(found == expected);
    if (!of_part.empty()) {
      int runs = 0;
      for_each_run(a, a, part, [&](std::int64_t, std::int64_t, std::int64_t) { ++runs; });
      one_run += runs == 1;
    }
    std::vector<int> from(of_a.size()), to(of_b.size(), -1), wanted(of_b.size(), -1);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int>(i);
    for (const auto& [source, target] : expected) wanted[static_cast<std::size_t>(target)] = static_cast<int>(source);
    copy_part(from.data(), a, to.data(), b, part);
    REQUIRE(to == wanted);
  }
  CHECK(one_run > 500);
}

TEST_CASE("runs of a scalar and of nothing") {
  const slice scalar;
  CHECK(element_count(scalar) == 1);
  CHECK(overlap(scalar, scalar));
  CHECK(contains(scalar, scalar));
  double from = 3, to = 0;
  copy_part(&from, scalar, &to, scalar, scalar);
  CHECK(to == 3);

  const slice whole{{0, 4}, {0, 3}}, nothing{{2, 2}, {0, 3}}, elsewhere{{7, 7}, {0, 3}};
  CHECK(element_count(nothing) == 0);
  CHECK_FALSE(overlap(whole, nothing));
  CHECK(contains(whole, nothing));
  CHECK(contains(whole, elsewhere));  // it has no elements
  int runs = 0;
  for_each_run(whole, whole, nothing, [&](auto...) { ++runs; });
  CHECK(runs == 0);
  // Turned round by an intersection that finds nothing.
  CHECK(element_count(intersection(slice{{0, 2}}, slice{{5, 9}})) == 0);
}

TEST_CASE("dimensions that are whole make one run") {
  const slice whole{{0, 8}, {0, 4}, {0, 2}};
  const auto runs = [&](const slice& part) {
    int count = 0;
    for_each_run(whole, whole, part, [&](auto...) { ++count; });
    return count;
  };
  CHECK(runs({{2, 5}, {0, 4}, {0, 2}}) == 1);
  CHECK(runs({{2, 5}, {1, 3}, {0, 2}}) == 3);
  CHECK(runs({{2, 5}, {1, 3}, {0, 1}}) == 6);
  CHECK(runs({{3, 4}, {1, 3}, {0, 2}}) == 1);
}
