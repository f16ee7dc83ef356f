// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>

using namespace hetsched;
using namespace hetsched::detail;

namespace {

packing random_packing(random_source& random, int most_items, int most_room) {
  packing p;
  const int resources = random.integer(1, 4);
  for (int k = 0; k < resources; ++k) p.room.push_back(random.integer(1, most_room));
  for (int i = random.integer(1, most_items); i > 0; --i) {
    packing::item item{static_cast<double>(random.integer(0, 20)), {}};
    for (int k = 0; k < resources; ++k) item.takes.push_back(random.integer(0, most_room / 2));
    item.takes[static_cast<std::size_t>(random.integer(0, resources - 1))] = random.integer(1, most_room);
    p.items.push_back(item);
  }
  return p;
}

std::string text(const packing& p) {
  std::ostringstream out;
  out << "room";
  for (const double r : p.room) out << ' ' << r;
  for (const auto& i : p.items) {
    out << "\nvalue " << i.value << " takes";
    for (const double t : i.takes) out << ' ' << t;
  }
  return out.str();
}

/// By trying all counts.
double most_value(const packing& p) {
  double best = 0;
  auto room = p.room;
  const std::function<void(std::size_t, double)> add = [&](std::size_t i, double value) {
    best = std::max(best, value);
    if (i == p.items.size()) return;
    add(i + 1, value);
    const auto before = room;
    for (int n = 1;; ++n) {
      bool fits = true;
      for (std::size_t k = 0; k < room.size(); ++k) fits = (room[k] -= p.items[i].takes[k]) >= 0 && fits;
      if (!fits) break;
      add(i + 1, value + n * p.items[i].value);
    }
    room = before;
  };
  add(0, 0);
  return best;
}

}  // namespace

TEST_CASE("a relaxed packing proves itself: counts that fit and prices that cover have one value") {
  random_source random(4201);
  for (int n = 0; n < 2000; ++n) {
    const auto given = random_packing(random, 30, 40);
    INFO(text(given));
    const auto found = solve_relaxed(given);
    double packed = 0, priced = 0;
    auto left = std::vector<double>(given.room.begin(), given.room.end());
    for (std::size_t i = 0; i < given.items.size(); ++i) {
      REQUIRE(found.counts[i] >= -1e-9);
      packed += found.counts[i] * given.items[i].value;
      double price = 0;
      for (std::size_t k = 0; k < left.size(); ++k) {
        left[k] -= found.counts[i] * given.items[i].takes[k];
        price += found.prices[k] * given.items[i].takes[k];
      }
      REQUIRE(price >= given.items[i].value - 1e-6);
    }
    for (std::size_t k = 0; k < left.size(); ++k) {
      REQUIRE(left[k] >= -1e-6);
      REQUIRE(found.prices[k] >= 0);
      priced += found.prices[k] * given.room[k];
    }
    REQUIRE(std::abs(packed - found.value) <= 1e-6 * (1 + found.value));
    REQUIRE(std::abs(priced - found.value) <= 1e-6 * (1 + found.value));
  }
}

TEST_CASE("a whole packing is the best of all") {
  random_source random(4202);
  for (int n = 0; n < 1000; ++n) {
    const auto given = random_packing(random, 5, 12);
    INFO(text(given));
    const auto relaxed = solve_relaxed(given);
    const auto found = solve_whole(given, relaxed.prices, 1e300, 1'000'000);
    REQUIRE(found.proved);
    REQUIRE(found.value == most_value(given));
    REQUIRE(found.value <= relaxed.value * (1 + 1e-9) + 1e-9);
    double value = 0;
    auto left = given.room;
    for (std::size_t i = 0; i < given.items.size(); ++i) {
      value += found.counts[i] * given.items[i].value;
      for (std::size_t k = 0; k < left.size(); ++k) left[k] -= found.counts[i] * given.items[i].takes[k];
    }
    REQUIRE(value == found.value);
    REQUIRE(*std::min_element(left.begin(), left.end()) >= 0);
  }
}
