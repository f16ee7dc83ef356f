// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// assumptions.json: what the plan was made for, as far as it says: devices, memory and precision of each start, schedule,
/// stack, bytes of gradients, what is hidden behind computing, and the iteration that was predicted so.
[[nodiscard]] std::string assumptions_json(const placed_plan& placed);

/// assumptions.json, and on a cluster check.py, which launch.sh calls before it starts ranks: it ends with a line that says
/// why, unless the host's devices are there, have the memory and can compute in the precision.
[[nodiscard]] std::vector<export_file> assumption_files(const placed_plan& placed);

/// Seconds of an iteration if ranks of one stage each work in the order of 1F1B in place of the plan's: what was predicted, and
/// by how much the two orders differ on the plan's stages and links. Returns: none where the plan does not tell its times, and
/// for several stages per rank.
[[nodiscard]] std::optional<double> iteration_under_1f1b(const placed_plan& placed);

/// In sentences, where a target runs its own 1F1B, plain or interleaved, in place of the plan's schedule, and where the plan is
/// priced for another stack than the target's, as stack_remarks.
[[nodiscard]] std::vector<std::string> remarks_under_1f1b(const placed_plan& placed, std::string_view stack, bool fp8 = false);

/// In sentences, where the plan is priced for another stack than the target's, which `stack` names, and where products in fp8
/// are priced and its files do not ask for them (`fp8`: they do).
[[nodiscard]] std::vector<std::string> stack_remarks(const placed_plan& placed, std::string_view stack, bool fp8 = false);

namespace detail {

[[nodiscard]] inline std::string fp8_remark(const placed_plan& placed) {
  return "the plan is priced with products in fp8, where devices have it; " + placed.target + " is not told to use it";
}

}  // namespace detail

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/assumptions.ipp>
#endif
