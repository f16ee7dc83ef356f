// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/min_sum.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>

#include "../sanitizer_share.hpp"

namespace {

using namespace hetsched;

struct instance {
  std::vector<int> domains;
  std::vector<spmd::min_sum_factor> factors;
  std::vector<std::vector<double>> tables;

  [[nodiscard]] double sum(const std::vector<int>& values) const {
    double all = 0;
    for (const auto& f : factors) {
      std::size_t at = 0;
      for (const int v : f.variables)
        at = at * static_cast<std::size_t>(domains[static_cast<std::size_t>(v)]) +
             static_cast<std::size_t>(values[static_cast<std::size_t>(v)]);
      all += tables[static_cast<std::size_t>(f.table)][at];
    }
    return all;
  }
  [[nodiscard]] double least() const {
    double best = infinity;
    std::vector<int> values(domains.size());
    while (true) {
      best = std::min(best, sum(values));
      std::size_t v = 0;
      while (v < values.size() && ++values[v] == domains[v]) values[v++] = 0;
      if (v == values.size()) return best;
    }
  }
};

instance random_instance(random_source& random) {
  instance i;
  for (int v = random.integer(1, 7); v > 0; --v) i.domains.push_back(random.integer(1, 4));
  for (int f = random.integer(0, 9); f > 0; --f) {
    std::vector<int> variables(i.domains.size());
    std::iota(variables.begin(), variables.end(), 0);
    for (std::size_t v = variables.size(); v > 1; --v)
      std::swap(variables[v - 1], variables[static_cast<std::size_t>(random.integer(0, static_cast<int>(v) - 1))]);
    variables.resize(static_cast<std::size_t>(random.integer(0, std::min(3, static_cast<int>(variables.size())))));
    std::size_t size = 1;
    for (const int v : variables) size *= static_cast<std::size_t>(i.domains[static_cast<std::size_t>(v)]);
    int table = -1;  // one that is there already, now and then
    for (std::size_t t = 0; t < i.tables.size(); ++t)
      if (i.tables[t].size() == size && random.integer(0, 1) == 0) table = static_cast<int>(t);
    if (table < 0) {
      table = static_cast<int>(i.tables.size());
      i.tables.emplace_back();
      for (std::size_t entry = 0; entry < size; ++entry)
        i.tables.back().push_back(random.integer(0, 9) == 0 ? infinity : random.integer(0, 20));
    }
    i.factors.push_back({std::move(variables), table});
  }
  return i;
}

}  // namespace

TEST_CASE("min_sum finds the least sum, and its bound is below when tables are too large") {
  int relaxed = 0, forbidden = 0;
  for (int number = 0; number < 2000 / hetsched::test::sanitizer_share; ++number) {
    random_source random(static_cast<std::uint64_t>(number));
    CAPTURE(number);
    const auto i = random_instance(random);
    const double least = i.least();
    const spmd::min_sum search(i.domains, i.factors);
    CHECK(search.exact());
    const auto found = search.solve(i.tables);
    CHECK(found.bound == least);
    CHECK(found.value == least);
    CHECK(i.sum(found.values) == least);
    const spmd::min_sum narrow(i.domains, i.factors, 8);
    const auto some = narrow.solve(i.tables);
    CHECK(some.bound <= least);
    CHECK(some.value == i.sum(some.values));
    relaxed += !narrow.exact() && some.bound < least;
    forbidden += least == infinity;
  }
  CHECK(relaxed > 0);
  CHECK(forbidden > 0);
}

TEST_CASE("min_sum does equal eliminations once") {
  // Blocks of two variables that hang on one.
  const std::vector<std::vector<double>> tables{{3, 1, 4, 1}, {5, 9, 2, 6}};
  const auto star = [](int blocks) {
    std::vector<spmd::min_sum_factor> factors;
    for (int b = 0; b < blocks; ++b) factors.insert(factors.end(), {{{0, 2 * b + 1}, 0}, {{2 * b + 1, 2 * b + 2}, 1}});
    return spmd::min_sum(std::vector<int>(static_cast<std::size_t>(2 * blocks + 1), 2), factors);
  };
  CHECK(star(100).work() == star(2).work());
  // With 1 in the middle: 1 and then 2.
  CHECK(star(100).solve(tables).value == 300);
}
