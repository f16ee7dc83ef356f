// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Seconds per microbatch of the 1F1B family once the pipeline is full: the largest cycle ratio of its timed event graph,
///   max( max t_i, max o_i, max over i < j of (sum of t over i..j + sum of round trips between them) / (N_i - N_j + 1) )
/// with o_i how long transfers occupy boundary i, and round trips in full. No other cycle can bind: one that leaves its first
/// stage and turns back more than once passes a forward twice.
/// Throws: input_error for an invalid pipeline and as validate_warmups.
/// Complexity: O(S^2) for S stages.
[[nodiscard]] inline double period(const pipeline& p, const std::vector<int>& warmups) {
  validate(p);
  validate_warmups(warmups, std::numeric_limits<int>::max());
  if (warmups.size() != p.forward_s.size()) throw input_error("a pipeline needs one warm-up count per stage");
  double longest = best_period(p);
  for (int i = 0; i < p.stages(); ++i) {
    double cycle_s = p.compute_s(i);
    for (int j = i + 1; j < p.stages(); ++j) {
      cycle_s += p.round_trip_s(j - 1) + p.compute_s(j);
      const int in_cycle = warmups[static_cast<std::size_t>(i)] - warmups[static_cast<std::size_t>(j)];
      longest = std::max(longest, cycle_s / (in_cycle + 1.0));
    }
  }
  return longest;
}

/// Least period that any warm-up counts with N_i <= caps[i] reach; exact_warmups(p, fastest_period(p, caps)) are such counts.
/// Bisection over the period, in which exact_warmups falls, down to neighbouring doubles.
/// Returns: the period() of the counts found; infinity if a cap is below 1, and only then, as caps of 1 throughout are enough
/// for the period of the whole round trip, one microbatch after the other.
/// Throws: input_error for an invalid pipeline or if caps are not one per stage.
/// Complexity: O(S^2 + 60 S) for S stages.
[[nodiscard]] inline double fastest_period(const pipeline& p, const std::vector<int>& caps) {
  validate(p);
  if (caps.size() != p.forward_s.size()) throw input_error("a pipeline needs one warm-up cap per stage");
  for (const int cap : caps)
    if (cap < 1) return std::numeric_limits<double>::infinity();
  const auto fits = [&](double candidate_s) {
    const auto counts = exact_warmups(p, candidate_s);
    return std::equal(counts.begin(), counts.end(), caps.begin(), [](int count, int cap) { return count <= cap; });
  };
  double low = best_period(p);
  if (fits(low)) return low;
  double high = 0;
  for (int i = 0; i < p.stages(); ++i) high += p.compute_s(i) + (i + 1 < p.stages() ? p.round_trip_s(i) : 0.0);
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (fits(middle) ? high : low) = middle;
  }
  return period(p, exact_warmups(p, high));
}

/// Least warm-up counts of the shortest period that memory allows: N_i <= caps[i].
/// Requires: every cap >= 1.
/// Throws: as fastest_period.
/// Complexity: as fastest_period.
[[nodiscard]] inline std::vector<int> exact_warmups_within(const pipeline& p, const std::vector<int>& caps) {
  return exact_warmups(p, fastest_period(p, caps));
}

/// GPipe's period: its phases follow each other, each as slow as its slowest step. Requires: a valid pipeline.
[[nodiscard]] inline double gpipe_period(const pipeline& p) {
  double forward = 0, backward = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const bool last = i + 1 == p.stages();
    forward = std::max({forward, p.forward_s[k], last ? 0 : p.activation_occupied_s(i)});
    backward = std::max({backward, p.backward_s[k], last ? 0 : p.gradient_occupied_s(i)});
  }
  return forward + backward;
}

}  // namespace hetsched
