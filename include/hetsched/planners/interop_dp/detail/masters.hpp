// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/masters_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>

namespace hetsched::detail {

/// A knapsack of several resources: each kind of item has a value and takes so much of each resource; any number of each fits in
/// as long as the resources last.
struct packing {
  struct item {
    double value = 0;
    std::vector<double> takes;  // by resource
  };
  std::vector<item> items;
  std::vector<double> room;  // by resource
};

/// The most value, and the prices of the resources, of a packing with fractions of items.
struct relaxed_packing {
  double value = 0;
  std::vector<double> prices;  // by resource: every item takes at least its value of them
  std::vector<double> counts;  // by item
};

/// Solves a packing with fractions by the simplex method with Bland's rule.
/// O(pivots * resources * items); no more than resources counts are above 0.
[[nodiscard]] inline relaxed_packing solve_relaxed(const packing& given) {
  const auto rows = given.room.size(), items = given.items.size(), columns = items + rows + 1;
  std::vector<double> tableau((rows + 1) * columns, 0.0);
  const auto cell = [&](std::size_t row, std::size_t column) -> double& { return tableau[row * columns + column]; };
  std::vector<std::size_t> basis(rows);
  for (std::size_t k = 0; k < rows; ++k) {
    for (std::size_t i = 0; i < items; ++i) cell(k, i) = given.items[i].takes[k];
    cell(k, items + k) = 1;
    cell(k, columns - 1) = given.room[k];
    basis[k] = items + k;
  }
  for (std::size_t i = 0; i < items; ++i) cell(rows, i) = -given.items[i].value;
  double largest = 0;
  for (const auto& i : given.items) largest = std::max(largest, i.value);
  const double nothing = 1e-11 * largest;
  for (int pivots = 0;; ++pivots) {
    // The steepest column; after many pivots the first, which cannot go in circles.
    std::size_t in = columns;
    for (std::size_t i = 0; i + 1 < columns; ++i)
      if (cell(rows, i) < -nothing && (in == columns || (pivots < 200 && cell(rows, i) < cell(rows, in)))) in = i;
    if (in == columns) break;
    std::size_t out = rows;
    double least = infinity;
    for (std::size_t k = 0; k < rows; ++k) {
      if (cell(k, in) <= tolerance::rounding) continue;
      const double ratio = cell(k, columns - 1) / cell(k, in);
      if (ratio < least || (ratio == least && basis[k] < basis[out])) {
        least = ratio;
        out = k;
      }
    }
    if (out == rows) break;  // no item is without a resource: cannot be
    const double by = 1 / cell(out, in);
    for (std::size_t i = 0; i < columns; ++i) cell(out, i) *= by;
    for (std::size_t k = 0; k <= rows; ++k) {
      const double factor = cell(k, in);
      if (k == out || factor == 0) continue;
      for (std::size_t i = 0; i < columns; ++i) cell(k, i) -= factor * cell(out, i);
    }
    basis[out] = in;
  }
  relaxed_packing found{.value = cell(rows, columns - 1), .prices = {}, .counts = std::vector<double>(items, 0.0)};
  for (std::size_t k = 0; k < rows; ++k) {
    found.prices.push_back(std::max(0.0, cell(rows, items + k)));
    if (basis[k] < items) found.counts[basis[k]] = cell(k, columns - 1);
  }
  return found;
}

/// A packing with fractions whose items grow in value with time, and when it holds what is wanted.
struct timed_packing {
  double seconds = 0;
  relaxed_packing solved;
};

/// When a packing holds as much as is wanted. Item i of a value above 0 gains one per periods[i], so what a packing holds is
/// convex in time: Newton's method from above, some five packings. `solve(seconds)`: the packing at a time.
/// Requires: it holds that much at `seconds`.
template <class Solve>
[[nodiscard]] timed_packing when_it_holds(double wanted, double seconds, const std::vector<double>& periods, const Solve& solve) {
  timed_packing found{seconds, solve(seconds)};
  for (int step = 0; step < 50 && found.solved.value > wanted * (1 + tolerance::sums); ++step) {
    double slope = 0;
    for (std::size_t i = 0; i < periods.size(); ++i) slope += found.solved.counts[i] / std::max(periods[i], least_period_s);
    if (!(slope > 0)) break;
    found.seconds -= (found.solved.value - wanted) / slope;
    found.solved = solve(found.seconds);
  }
  return found;
}

/// A packing with whole items: how many of each.
struct whole_packing {
  double value = 0;
  std::vector<int> counts;  // by item
  bool proved = false;      // no packing has more value
};

/// Solves a packing of whole values by branch and bound: items in order of falling value per price of what they take, the prices
/// being those of the relaxed packing. Ends with the best so far after `most` steps, or when `enough` is reached.
template <class Packing>
[[nodiscard]] whole_packing solve_whole(const Packing& given, const std::vector<double>& prices, double enough,
                                        std::int64_t most) {
  const auto items = given.items.size(), resources = given.room.size();
  std::vector<std::size_t> order;
  std::vector<double> rate(items);  // value per price
  for (std::size_t i = 0; i < items; ++i) {
    double price = 0;
    for (std::size_t k = 0; k < resources; ++k) price += prices[k] * given.items[i].takes[k];
    rate[i] = price > 0 ? given.items[i].value / price : given.items[i].value > 0 ? infinity : 0;
    if (given.items[i].value > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rate[a] > rate[b]; });
  whole_packing best{.value = 0, .counts = std::vector<int>(items, 0), .proved = true};
  std::vector<int> counts(items, 0);
  auto room = given.room;
  std::int64_t steps = 0;
  const auto bound = [&](std::size_t next) {
    if (next == order.size()) return 0.0;
    double price = 0;
    for (std::size_t k = 0; k < resources; ++k) price += prices[k] * room[k];
    return price > 0 || rate[order[next]] < infinity ? rate[order[next]] * price : infinity;
  };
  const auto look = [&](auto& self, std::size_t next, double value) -> bool {
    if (value > best.value) {
      best.value = value;
      best.counts = counts;
    }
    if (best.value >= enough) return false;
    // Values are whole: less than one more is none.
    if (next == order.size() || value + bound(next) < best.value + 1 - 1e-6) return true;
    if (++steps > most) {
      best.proved = false;
      return false;
    }
    const auto i = order[next];
    const auto& item = given.items[i];
    double most_fit = 1 << 30;
    for (std::size_t k = 0; k < resources; ++k)
      if (item.takes[k] > 0) most_fit = std::min(most_fit, room[k] / item.takes[k] * (1 + tolerance::sums));
    for (int n = static_cast<int>(most_fit); n >= 0; --n) {
      counts[i] = n;
      for (std::size_t k = 0; k < resources; ++k) room[k] -= n * item.takes[k];
      const bool go = self(self, next + 1, value + n * item.value);
      for (std::size_t k = 0; k < resources; ++k) room[k] += n * item.takes[k];
      if (!go) {
        counts[i] = 0;
        return false;
      }
    }
    counts[i] = 0;
    return true;
  };
  (void)look(look, 0, 0.0);
  return best;
}

}  // namespace hetsched::detail
