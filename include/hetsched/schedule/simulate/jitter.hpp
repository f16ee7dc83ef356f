// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

/// How much ranks and wires vary from iteration to iteration.
struct jitter_options {
  double spread = 0.1;  ///< standard deviation of the logarithm of each one's factor, whose mean is 1
  int samples = 1000;
  std::uint64_t seed = 1;
  send_semantics semantics = send_semantics::buffered;
  function_ref<void(int done)> progress = {};  ///< called before each sample
};

/// The workload with computations of rank r, and its optimizer, taking ranks[r] times as long, and legs as many times as the
/// slowest of their wires.
/// Throws: input_error for an invalid workload or one that does not fit the schedule, and unless there is a factor, finite and at
/// least 0, for each of its ranks and wires.
[[nodiscard]] workload with_factors(workload w, const schedule& order, const std::vector<double>& ranks,
                                    const std::vector<double>& wires);

namespace detail {

namespace unchecked {

// The function of the same name above, of a workload and factors that are known to be good.
[[nodiscard]] workload with_factors(workload w, const schedule& order, const std::vector<double>& ranks,
                                    const std::vector<double>& wires);

}  // namespace unchecked

/// A random factor of mean 1, whose logarithm is normal with that deviation.
[[nodiscard]] inline double noise_factor(random_source& random, double spread) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  const double normal = radius * std::cos(2 * std::numbers::pi * random.uniform());
  return std::exp(spread * normal - spread * spread / 2);
}

}  // namespace detail

/// The makespans of iterations in which every rank and every wire is faster or slower by a random factor, which it keeps through
/// the iteration; in seconds, one per sample, in the order in which they were drawn.
/// Throws: as simulate, and input_error unless options.spread is finite and at least 0, and options.samples is at least 0.
/// Complexity: samples times simulate.
/// Determinism: by the arguments, as far as std::log and std::cos give the same bits.
[[nodiscard]] std::vector<double> makespans_under_jitter(const workload& w, const schedule& order,
                                                         const jitter_options& options = {});

/// The least of some values that a share of them does not exceed.
/// Requires: values in order.
/// Throws: input_error unless there is one, and the share is in [0, 1].
[[nodiscard]] double quantile(const std::vector<double>& ordered, double share);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/jitter.ipp>
#endif
