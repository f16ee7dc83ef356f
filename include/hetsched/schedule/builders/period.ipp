// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>

namespace hetsched {

HETSCHED_INLINE double period(const pipeline& p, const std::vector<int>& warmups) {
  validate(p);
  validate_warmups(warmups, std::numeric_limits<int>::max());
  if (warmups.size() != p.forward_s.size()) throw input_error("a pipeline needs one warm-up count per stage");
  double longest = detail::unchecked::best_period(p);
  for (int i = 0; i < p.stages(); ++i) {
    double cycle_s = p.compute_s(i);
    for (int j = i + 1; j < p.stages(); ++j) {
      cycle_s += p.round_trip_s(j - 1) + p.compute_s(j);
      const int in_cycle = at(warmups, i) - at(warmups, j);
      longest = std::max(longest, cycle_s / (in_cycle + 1.0));
    }
  }
  return longest;
}

HETSCHED_INLINE double fastest_period(const pipeline& p, const std::vector<int>& caps) {
  validate(p);
  if (caps.size() != p.forward_s.size()) throw input_error("a pipeline needs one warm-up cap per stage");
  for (const int cap : caps)
    if (cap < 1) return infinity;
  const auto fits = [&](double candidate_s) {
    const auto counts = detail::unchecked::exact_warmups(p, candidate_s);
    return std::equal(counts.begin(), counts.end(), caps.begin(), [](int count, int cap) { return count <= cap; });
  };
  double low = detail::unchecked::best_period(p);
  if (fits(low)) return low;
  double high = 0;
  for (int i = 0; i < p.stages(); ++i) high += p.compute_s(i) + (i + 1 < p.stages() ? p.round_trip_s(i) : 0.0);
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (fits(middle) ? high : low) = middle;
  }
  return period(p, detail::unchecked::exact_warmups(p, high));
}

HETSCHED_INLINE double gpipe_period(const pipeline& p) {
  validate(p);
  double forward = 0, backward = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = as_size(i);
    const bool last = i + 1 == p.stages();
    forward = std::max({forward, p.forward_s[k], last ? 0 : p.activation_occupied_s(i)});
    backward = std::max({backward, p.backward_s[k], last ? 0 : p.gradient_occupied_s(i)});
  }
  return forward + backward;
}

}  // namespace hetsched
