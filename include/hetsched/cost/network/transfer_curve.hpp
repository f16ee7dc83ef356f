// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/network/collective_test.cpp.

#include <algorithm>
#include <span>
#include <vector>

#include <hetsched/core/tolerances.hpp>

namespace hetsched {

/// One measurement: a message, or a collective on a tensor, of `bytes` took `seconds`.
struct transfer_sample {
  double bytes = 0;
  double seconds = 0;

  friend bool operator==(const transfer_sample&, const transfer_sample&) = default;
};

/// A latency and a bandwidth that hold up to some size.
struct transfer_piece {
  double up_to_bytes = infinity;
  double latency_s = 0;
  double s_per_byte = 0;  ///< 0 where size does not matter yet

  friend bool operator==(const transfer_piece&, const transfer_piece&) = default;
};

/// Seconds by size, a latency and a bandwidth for each range of sizes: communication libraries change their algorithm,
/// protocol and channels with the size, so one pair does not fit them. The curve may jump between ranges, down too,
/// as measurements do. Pieces lie in rising order and the last one has no end.
struct transfer_curve {
  std::vector<transfer_piece> pieces{};

  /// Seconds for `bytes` >= 0; O(log pieces). Requires: there is a piece, and the last has no end.
  [[nodiscard]] double transfer_s(double bytes) const {
    const auto at = std::lower_bound(pieces.begin(), pieces.end(), bytes,
                                     [](const transfer_piece& p, double b) { return p.up_to_bytes < b; });
    return at->latency_s + at->s_per_byte * bytes;
  }

  friend bool operator==(const transfer_curve&, const transfer_curve&) = default;
};

struct transfer_fit_options {
  int max_pieces = 8;
  double noise = 0.01;  ///< relative error below which a fit is not made finer
};

/// Fits a curve to measurements, in any order: the number of pieces is the one with the least Bayesian information criterion,
/// their ends the ones of least squared relative error, which dynamic programming finds; a piece holds at least three samples.
/// Throws input_error without samples, for a size or time that is not finite and positive, or for options that make no sense.
/// O(max_pieces * samples^2), deterministic.
[[nodiscard]] transfer_curve fit_transfer_curve(std::span<const transfer_sample> samples,
                                                const transfer_fit_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/network/transfer_curve.ipp>
#endif
