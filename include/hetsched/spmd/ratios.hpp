// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd {

/// The shares that make stages shortest, and a proof.
struct optimal_shares {
  std::vector<double> shares{};  ///< per segment of a device of each kind; times their counts they add up to 1
  double seconds = 0;
  double bound = 0;  ///< no shares take less, by the duals of the last linear program
};

/// The shares per segment and kind of device for which stages take least: a linear program, solved by cuts. Devices of a kind
/// have equal shares, which loses nothing, as the time is convex in them.
/// Throws: input_error unless there are kinds, of at least one device; costs are finite and not negative, one for each of the
/// shares; and `start` has shares of each segment that times counts add up to 1. Complexity: O(cuts * (stages * kinds + pivots *
/// kinds * cuts)), with about 10 cuts for each kind. Source: Zhang et al., HAP (EuroSys 2024), sec. 5.1; Kelley, The
/// cutting-plane method (1960).
[[nodiscard]] optimal_shares best_shares(const std::vector<spmd::stage>& stages, const std::vector<device_kind>& kinds,
                                         std::vector<double> start);

/// Parts of a dimension by shares: whole ones that add up to `parts`, by largest remainder.
/// Returns: parts per device, kind by kind.
/// Throws: input_error unless there are 0 to 2^53 parts, and a share of at least 0 for each kind; times counts they add up to 1.
/// Complexity: O(devices log devices).
[[nodiscard]] std::vector<std::int64_t> whole_parts(std::int64_t parts, const std::vector<device_kind>& kinds,
                                                    const std::vector<double>& shares);

/// Shares in whole parts.
struct whole_shares {
  std::map<std::pair<int, std::int64_t>, std::vector<std::int64_t>>
      parts{};         ///< by segment, and number of parts of a dimension: how many of them each device has
  double seconds = 0;  ///< what the program takes with them
};

/// Rounds the shares of a program: by largest remainder, then a part from a device of one kind to one of another as long as that
/// saves time.
/// Throws: as validate, of problem and program; input_error for shares that whole_parts() would refuse in a segment.
/// Complexity: O(instructions) + O(stages * dimensions * devices) for each of the kinds^2 moves of a round.
[[nodiscard]] whole_shares round_shares(const spmd::problem& problem, const spmd::program& steps,
                                        const std::vector<double>& shares);

namespace detail::unchecked {

// The same for what is valid.
[[nodiscard]] optimal_shares best_shares(const std::vector<spmd::stage>& stages, const std::vector<device_kind>& kinds,
                                         std::vector<double> start);
[[nodiscard]] std::vector<std::int64_t> whole_parts(std::int64_t parts, const std::vector<device_kind>& kinds,
                                                    const std::vector<double>& shares);
[[nodiscard]] whole_shares round_shares(const spmd::problem& problem, const spmd::program& steps,
                                        const std::vector<double>& shares);

}  // namespace detail::unchecked

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/ratios.ipp>
#endif
