// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// A rank's clock, compared with rank 0's.
struct clock_offset {
  double seconds = 0;  ///< to be added to its times
  double error_s = 0;  ///< at most so far off, if clocks run alike
};

/// The offsets of all ranks' clocks from rank 0's, the same on every rank; `now_s`: the clock of their timelines. What rank r
/// sends at s_r in a gather has reached rank 0 by e_0, and the other way round, so the offset of r lies in [s_0 - e_r, e_0 -
/// s_r]. The bounds of all rounds are intersected, and the middle is taken. Clocks drift by some 10 us per second, so call it
/// near what is to be compared.
/// Requires: all ranks call it, with the same number of rounds.
/// Returns: empty at the deadline or after an abort.
/// Complexity: rounds + 1 gathers.
/// Source: Cristian 1989.
template <class Communicator, class Clock = double (*)()>
[[nodiscard]] std::vector<clock_offset> clock_offsets(Communicator& comm, deadline_time until, int rounds = 16,
                                                      Clock now_s = steady_now_s) {
  std::vector<double> mine;  // when each round began and ended
  std::vector<std::vector<double>> all;
  for (int k = 0; k < rounds; ++k) {
    const double start_s = now_s();
    if (comm.gather(std::span<const double>(&start_s, 1), all, until) != wait_result::progress) return {};
    mine.insert(mine.end(), {start_s, now_s()});
  }
  if (comm.gather(mine, all, until) != wait_result::progress) return {};
  std::vector<clock_offset> offsets(all.size());
  for (std::size_t r = 1; r < all.size(); ++r) {
    double low = -infinity, high = -low;
    for (std::size_t k = 0; k + 1 < std::min(all[0].size(), all[r].size()); k += 2) {
      low = std::max(low, all[0][k] - all[r][k + 1]);
      high = std::min(high, all[0][k + 1] - all[r][k]);
    }
    if (low > -infinity) offsets[r] = {(low + high) / 2, (high - low) / 2};
  }
  return offsets;
}

/// Shifts all times of a timeline.
void shift(timeline& t, double seconds);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/communicator/clock_offset.ipp>
#endif
