// SPDX-License-Identifier: Apache-2.0
// Public functions under hostile arguments: each call returns, or throws an error of the library.
#pragma once

#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

namespace hetsched::test {

/// A public function, by name, and one call of it with random arguments, some of which are hostile.
struct door {
  std::string name;
  std::function<void(random_source&)> call;
  bool refuses = true;  ///< some of these calls; else it takes whatever it is given
};

/// What a call returned is not what it may return for arguments that it did not refuse.
inline void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}
inline void expect_time(double s) { expect(s >= 0 && std::isfinite(s), "the result is no time"); }

template <class List>
[[nodiscard]] decltype(auto) one_of(random_source& r, List&& list) {
  return list[static_cast<std::size_t>(r.integer(0, static_cast<int>(std::size(list)) - 1))];
}
[[nodiscard]] inline bool one_in(random_source& r, int n) { return r.integer(1, n) == 1; }

/// Counts: mostly good ones.
[[nodiscard]] inline int some_count(random_source& r, int most = 6) {
  constexpr int bad[] = {0, -1, INT_MIN, -7};
  return one_in(r, 12) ? one_of(r, bad) : r.integer(1, most);
}
/// Positions, and sizes of what is not allocated.
[[nodiscard]] inline int some_int(random_source& r) {
  constexpr int all[] = {0, 1, -1, 2, 3, INT_MAX, INT_MIN, INT_MAX - 1, 1 << 16, 1 << 30};
  return one_of(r, all);
}
[[nodiscard]] inline std::int64_t some_int64(random_source& r) {
  constexpr std::int64_t all[] = {0, 1, -1, 2, 7, 4096, INT64_MAX, INT64_MIN, INT64_MAX - 1, std::int64_t{1} << 40, INT_MAX};
  return one_of(r, all);
}
/// A good one, or in one of `n` cases any.
[[nodiscard]] inline int mostly(random_source& r, int good, int n = 10) { return one_in(r, n) ? some_int(r) : good; }
[[nodiscard]] inline std::int64_t mostly64(random_source& r, std::int64_t good, int n = 10) {
  return one_in(r, n) ? some_int64(r) : good;
}
[[nodiscard]] inline double some_double(random_source& r) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double all[] = {0, -0.0, 1, -1, inf, -inf, std::numeric_limits<double>::quiet_NaN(), 1e308, -1e308, 5e-324, 1e-9};
  return one_of(r, all);
}
[[nodiscard]] inline double some_time(random_source& r, int n = 10) { return one_in(r, n) ? some_double(r) : r.uniform(0, 2); }
[[nodiscard]] inline std::vector<double> some_times(random_source& r, int size, int n = 10) {
  std::vector<double> times;
  if (one_in(r, 12)) size += r.integer(-1, 1);
  for (int i = 0; i < size; ++i) times.push_back(some_time(r, n * (size + 1)));
  return times;
}

/// Two subclusters of two nodes.
[[nodiscard]] inline cluster hardware() {
  return {.subclusters = {{"a", catalogue_device("T4"), 2, 4, {1e-6, 1e10}, {1e-5, 1e9}, {}},
                          {"b", catalogue_device("A10"), 2, 4, {1e-6, 1e10}, {1e-5, 1e9}, {}}},
          .links = {{0, 1, {1e-4, 1e9}}}};
}

/// Calls each door in turn, `calls` times together, and one that has not returned or refused by then, though it can, a few times
/// more.
inline void knock(const std::vector<door>& doors, int calls) {
  random_source r(20260101);
  std::vector<int> returned(doors.size(), 0), refused(doors.size(), 0);
  const auto knock_at = [&](std::size_t d, int i) {
    INFO(doors[d].name, ", call ", i);
    try {
      doors[d].call(r);
      ++returned[d];
    } catch (const error&) {
      ++refused[d];
    } catch (const std::exception& e) {
      FAIL_CHECK(std::string(e.what()));
    }
  };
  for (int i = 0; i < calls; ++i) knock_at(static_cast<std::size_t>(i) % doors.size(), i);
  for (std::size_t d = 0; d < doors.size(); ++d)
    for (int i = calls; i < calls + 100 && (returned[d] == 0 || (doors[d].refuses && refused[d] == 0)); ++i) knock_at(d, i);
  for (std::size_t d = 0; d < doors.size(); ++d) {
    INFO(doors[d].name, ": ", returned[d], " returned, ", refused[d], " refused");
    CHECK(returned[d] > 0);
    CHECK((refused[d] > 0) == doors[d].refuses);
  }
}

}  // namespace hetsched::test
