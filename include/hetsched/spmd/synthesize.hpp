// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd {

/// What synthesis may do.
struct synthesis_options {
  std::size_t largest_table = std::size_t{1} << 20;  ///< entries of a table of min_sum()
  int rounds = 8;                                    ///< of program and shares in turn, 1 to 10^6
  double work = 1e8;                              ///< table entries to look at before the proof stops; a tenth of a second, about
  double gap = 1e-3;                              ///< to stop at, as a share of the bound; below 0: never
  function_ref<bool(double, double)> progress{};  ///< told the seconds and the bound so far; false stops
};

/// A program with shares.
struct solution {
  spmd::program program{};
  std::vector<double> shares{};  ///< per segment, in each of a device of each kind
  double seconds = 0;
  double bound = 0;  ///< no program, with any shares for each of its tensors, takes less
};

/// What even data parallelism takes: whole parameters on every device, equal shares of the batch, gradients by all-reduce.
/// Returns: none where an operator needs the whole batch. Throws: as synthesize.
[[nodiscard]] std::optional<spmd::solution> even_data_parallel(spmd::problem problem, const synthesis_options& options = {});

/// A program for the goal of a problem and shares of the devices for it, as good as can be proved with the work that the options
/// allow. In turn, the program is the best under prices that no program undercuts, and the shares are the best for it; then the
/// shares are cut into boxes, each with a bound for all programs.
/// Returns: none if a tensor cannot be had in the form that is asked for, which happens under data_parallel_only alone.
/// Throws: as validate of the problem; input_error for options out of range, and for an operator that reads so many tensors in so
/// many forms that a table of them all has more than 2^28 entries.
/// Complexity: O(options.work), or a few times that of min_sum() on the different blocks of the graph if that is more.
/// Determinism: equal input, equal result.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 3 to 5; the bound is ours: Lagrange multipliers for the devices' finishing
/// times.
[[nodiscard]] std::optional<spmd::solution> synthesize(const spmd::problem& problem, const synthesis_options& options = {});

namespace detail {

void expect_options(const synthesis_options& options);

// The same for what is valid.
namespace unchecked {
[[nodiscard]] std::optional<spmd::solution> even_data_parallel(spmd::problem problem, const synthesis_options& options);
[[nodiscard]] std::optional<spmd::solution> synthesize(const spmd::problem& problem, const synthesis_options& options);
}  // namespace unchecked

}  // namespace detail

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/synthesize.ipp>
#endif
