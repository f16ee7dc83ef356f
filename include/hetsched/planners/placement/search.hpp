// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/search_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/placement/chain.hpp>
#include <hetsched/planners/placement/detail/path.hpp>

namespace hetsched {

/// What a search for stages found.
struct placement_found {
  std::optional<placed_chain> best{};  ///< none: there are no such stages
  double value = infinity;             ///< of best
  double bound = infinity;             ///< no stages have a smaller value
  bool complete = true;                ///< not stopped: value equals bound
  std::int64_t labels = 0;             ///< looked at
};

/// Called now and then with the labels so far, but in the first steps only once these have taken long; false stops a search.
using placement_progress = function_ref<bool(std::int64_t labels)>;

/// Asked often, from the start; false ends a search at once, with what it has found.
using placement_poll = function_ref<bool()>;

namespace detail {

inline constexpr double no_limit = infinity;

/// The values that the slowest part of any stages can have, within [low, high), in order; of those that differ by rounding, the
/// largest.
[[nodiscard]] inline std::vector<double> slowest_values(const placement_chain& chain, placement_path& path, double low,
                                                        double high) {
  std::vector<double> values;
  const auto add = [&](double x) {
    if (x >= low && x < high) values.push_back(x);
  };
  for (std::size_t k = 0; k < chain.kinds.size(); ++k) {
    const auto& sums = chain.kinds[k].seconds_before;
    for (int j = 1; j <= chain.layers; ++j)
      for (int i = path.earliest(static_cast<int>(k), j, chain.in_flight(1)); i < j; ++i) add(at(sums, j) - at(sums, i));
  }
  for (const auto& t : chain.transfers) add(t.occupied_s);
  std::sort(values.begin(), values.end());
  std::vector<double> apart;
  for (const double x : values)
    if (!apart.empty() && x - apart.back() <= tolerance::rounding * x)
      apart.back() = x;
    else
      apart.push_back(x);
  return apart;
}

/// least_slowest on a path that may know rents already.
[[nodiscard]] inline placement_found least_slowest(const placement_chain& chain, placement_path& path) {
  placement_found found;
  found.bound = 0;
  const auto stop = [&] {
    found.complete = false;
    return std::move(found);
  };
  auto first = path.any(no_limit);
  if (first.what == placement_path::answer::stopped) return stop();
  if (first.what == placement_path::answer::impossible) return {};
  found.best = std::move(first.chain);
  // Halves an interval of real numbers until few values are in it.
  double low = 0, high = found.best->slowest_s;
  const auto try_limit = [&](double limit_s) {
    auto next = path.any(limit_s);
    if (next.what == placement_path::answer::found) {
      high = next.chain.slowest_s;
      found.best = std::move(next.chain);
    } else if (next.what == placement_path::answer::impossible) {
      low = limit_s;
    }
    found.value = high, found.bound = low;
    return next.what != placement_path::answer::stopped;
  };
  found.value = high;
  while (high - low > high / 256)
    if (!try_limit(low + (high - low) / 2)) return stop();
  if (path.ended()) return stop();
  auto values = slowest_values(chain, path, low, high);
  // Of these, those below `high` are open; the least one that is possible wins.
  std::size_t from = 0, to = values.size();
  while (from < to) {
    const auto middle = from + (to - from) / 2;
    if (!try_limit(values[middle])) return stop();
    if (high <= values[middle])
      to = as_size(std::lower_bound(values.begin(), values.end(), high) - values.begin());
    else
      from = middle + 1;
  }
  found.bound = found.value = high;
  return found;
}

}  // namespace detail

/// The stages with the least sum of seconds and transfers: how soon a request is answered.
/// Throws: input_error for a chain whose arrays do not fit each other, or that has times or bytes that are none.
/// Complexity: O(layers * kinds^2) for each of up to 121 tables, then a label per (layer, kind, devices used per pool) that the
/// tables' bound does not rule out.
[[nodiscard]] inline placement_found least_sum(const placement_chain& chain, placement_progress go_on = {},
                                               placement_poll poll = {}) {
  detail::validate(chain);
  detail::placement_path path(chain);
  path.go_on = go_on;
  path.poll = poll;
  using answer = detail::placement_path::answer;
  auto any = path.any(detail::no_limit);  // cut short only by poll, and where it takes very long
  if (any.what == answer::impossible) return {.labels = path.labels()};
  if (any.what == answer::stopped) return {.bound = 0, .complete = false, .labels = path.labels()};
  auto got = path.least_sum(detail::no_limit);
  placement_found found{.labels = path.labels()};
  if (got.what != answer::found) {
    found.best = std::move(any.chain);
    found.value = found.best->sum_s;
    found.bound = got.bound, found.complete = false;
    return found;
  }
  found.value = found.bound = got.chain.sum_s;
  found.best = std::move(got.chain);
  return found;
}

/// The stages whose slowest stage or transfer is fastest: how many requests pass in a time, if enough are in flight. Of several,
/// such with the least sum, unless to show that takes long. Exact to a relative 1e-12.
/// Throws: input_error as least_sum.
/// Complexity: O(log values) searches as least_sum's, without seconds.
[[nodiscard]] inline placement_found least_slowest(const placement_chain& chain, placement_progress go_on = {},
                                                   placement_poll poll = {}) {
  detail::validate(chain);
  detail::placement_path path(chain);
  path.go_on = go_on;
  path.poll = poll;
  auto found = detail::least_slowest(chain, path);
  if (found.complete && found.best) {
    constexpr std::int64_t worth_it = 2'000;
    auto soonest = path.least_sum(found.value, worth_it);
    if (soonest.what == detail::placement_path::answer::found) found.best = std::move(soonest.chain);
  }
  found.labels = path.labels();
  return found;
}

/// The stages that let requests follow each other soonest with so many in flight: with the least of their slowest stage or
/// transfer and of the sum of all shared by those in flight, whichever is longer. To a relative 1e-9 if complete.
/// Throws: input_error as least_sum, and for none in flight.
/// Complexity: a search as least_slowest's, and up to some 30 as least_sum's within limits on the slowest.
[[nodiscard]] inline placement_found least_interval(const placement_chain& chain, int in_flight, placement_progress go_on = {},
                                                    placement_poll poll = {}) {
  detail::validate(chain);
  detail::expect_count(in_flight, "in_flight");
  detail::placement_path path(chain);
  path.go_on = go_on;
  path.poll = poll;
  const auto interval_of = [&](const placed_chain& c) { return std::max(c.slowest_s, c.sum_s / in_flight); };
  auto found = detail::least_slowest(chain, path);
  const auto end = [&](bool complete) {
    found.complete = complete;
    found.bound = complete ? found.value : std::min(found.bound, found.value);
    found.labels = path.labels();
    return std::move(found);
  };
  if (!found.best) return end(found.complete);
  found.value = interval_of(*found.best);
  using answer = detail::placement_path::answer;
  const auto consider = [&](detail::placement_path::result& got) {
    if (got.chain.stages.empty() || !(interval_of(got.chain) < found.value)) return;
    found.value = interval_of(got.chain);
    found.best = std::move(got.chain);
  };
  for (double slack = 1.0 / 64; slack < 1 && found.value > found.bound; slack *= 2)
    if (auto got = path.any(found.bound * (1 + slack)); got.what != answer::stopped) consider(got);
  // Stages within an interval have no part above it, and a sum of no more than so many of it.
  constexpr std::int64_t most_labels = 20'000;
  constexpr int most_unknown = 5;
  double low = found.bound;  // nothing is below, while in [low, from) nothing is known
  double from = low, high = found.value;
  int unknown = 0;
  for (double at = low; high - from > tolerance::sums * high && unknown < most_unknown; at = from + (high - from) / 2) {
    auto got = path.small_sum(at, most_labels, high * in_flight);
    consider(got);
    high = found.value;
    if (got.what == answer::stopped && got.bound <= at * in_flight) {
      if (!got.spent) return end(false);
      ++unknown;
      from = at;
    } else if (high > at) {
      low = from = at;
    }
    found.bound = low;
  }
  if (low < from || unknown == most_unknown) return end(false);
  return end(true);
}

/// How long least_iteration may search.
struct iteration_effort {
  std::int64_t labels = 5'000;  ///< for one limit on the slowest part
  int limits = 60;              ///< to try
  double near = 5e-4;           ///< so near, relative, the bound comes to what can be reached with these labels
};

/// The stages with the least sum of seconds and transfers plus `microbatches - 1` times the slowest of them: no schedule ends
/// sooner on these stages, and one with enough in flight ends then. Exact to a relative 1e-12 if complete; pools of dozens of
/// devices, of which all are needed, can take more than the effort.
/// Throws: input_error as least_sum, and for microbatches or labels below 1.
/// Complexity: searches as least_sum's, one for each limit on the slowest that the ones before do not rule out.
[[nodiscard]] inline placement_found least_iteration(const placement_chain& chain, int microbatches,
                                                     placement_progress go_on = {}, const iteration_effort& effort = {},
                                                     placement_poll poll = {}) {
  detail::validate(chain);
  detail::expect_count(microbatches, "microbatches");
  detail::expect_count(effort.labels, "labels");
  detail::expect_count(effort.limits, "limits", 0);
  detail::expect_natural(effort.near, "near");
  if (microbatches == 1) return least_sum(chain, go_on, poll);
  detail::placement_path path(chain);
  path.go_on = go_on;
  path.poll = poll;
  const double rounds = microbatches - 1;
  placement_found found;
  found.bound = 0;
  const auto end = [&](bool complete) {
    found.complete = complete;
    if (complete) found.bound = found.value;
    found.labels = path.labels();
    return std::move(found);
  };
  using answer = detail::placement_path::answer;
  struct under {
    double sum = 0;      // no stages within the limit have less
    double slowest = 0;  // of those with this sum; of unknown ones the limit
  };
  const auto consider = [&](placed_chain c) {
    const double value = c.sum_s + rounds * c.slowest_s;
    if (!(value < found.value)) return;
    found.value = value;
    found.best = std::move(c);
  };
  double reachable = detail::no_limit;  // no bound will be above this, as stages at these limits stay unknown
  // Of those whose slowest part is not below `slowest_s`; none if stopped.
  const auto solve = [&](double limit_s, double slowest_s) -> std::optional<under> {
    auto got = path.small_sum(limit_s, effort.labels, found.value * (1 - tolerance::rounding) - rounds * slowest_s);
    if (got.what == answer::impossible) return under{detail::no_limit, limit_s};
    if (got.what == answer::stopped && !got.spent) return std::nullopt;
    const under u = got.spent ? under{got.bound, limit_s} : under{got.chain.sum_s, got.chain.slowest_s};
    if (got.spent) reachable = std::min(reachable, got.bound + rounds * limit_s);
    if (!got.chain.stages.empty()) consider(std::move(got.chain));
    return u;
  };
  const auto fastest = detail::least_slowest(chain, path);
  if (fastest.best) consider(*fastest.best);
  if (!fastest.complete) return end(false);
  if (!fastest.best) return {.labels = path.labels()};
  const auto free = path.least_sum(detail::no_limit, 0);
  if (!free.spent || !solve(fastest.value, fastest.value)) return end(false);
  // Intervals of the slowest part [low, high) with the least sum below `high`.
  struct range {
    double low, high, sum;
    bool halve = false;  // before all of it is asked for again
  };
  constexpr double same = tolerance::rounding;
  std::vector<range> open;
  const auto bound_of = [&](const range& i) { return i.sum + rounds * i.low; };
  const auto later = [&](const range& a, const range& b) { return bound_of(a) > bound_of(b); };
  // The slowest part of what is better than the best has less than this.
  const auto slowest_of_better = [&](double sum) { return (found.value - sum) / rounds; };
  const auto put = [&](range i) {
    i.high = std::min(i.high, slowest_of_better(i.sum));
    if (!(i.low < i.high) || !(bound_of(i) < found.value * (1 - same))) return;
    open.push_back(i);
    std::push_heap(open.begin(), open.end(), later);
  };
  put({fastest.value, detail::no_limit, free.bound});
  for (int tried = 0; !open.empty(); ++tried) {
    std::pop_heap(open.begin(), open.end(), later);
    const auto now = open.back();
    open.pop_back();
    found.bound = std::min(found.value, bound_of(now));
    if (!(bound_of(now) < found.value * (1 - same))) break;
    if (tried >= effort.limits) return end(false);
    if (reachable < found.value * (1 - same) && found.bound > reachable * (1 - effort.near)) return end(false);
    const double high = std::min(now.high, slowest_of_better(now.sum));
    const bool whole = !now.halve && (tried == 0 || found.bound > found.value * (1 - effort.near));
    const double limit_s = whole ? high * (1 - same / 4) : now.low + (high - now.low) / 2;
    // One value of the slowest part, whose sum is not known exactly.
    if (!(limit_s > now.low && limit_s < high)) return end(false);
    const auto got = solve(limit_s, now.low);
    if (!got) return end(false);
    put({limit_s, now.high, now.sum});
    if (got->sum < detail::no_limit) put({now.low, got->slowest, std::max(got->sum, now.sum), whole});
  }
  return end(true);
}

}  // namespace hetsched
