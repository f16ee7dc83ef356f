// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// assumptions.json: what the plan was made for, as far as it says: devices, memory and precision of each start, schedule,
/// stack, bytes of gradients, what is hidden behind computing, and the iteration that was predicted so.
[[nodiscard]] std::string assumptions_json(const placed_plan& placed);

/// assumptions.json, and check.py, which launch.sh calls before it starts ranks: it ends with a line that says why, unless the
/// host's devices are there, have the memory and can compute in the precision.
[[nodiscard]] std::vector<export_file> assumption_files(const placed_plan& placed);

/// In sentences, where the plan's schedule, or the stack that it was priced for, is not the target's. `runs`: the target's name
/// of its schedule, if it has but one, and what hetsched calls that; `stack`: of the target, empty for none.
[[nodiscard]] std::vector<std::string> assumption_remarks(const placed_plan& placed, std::string_view runs,
                                                          std::string_view runs_name, std::string_view stack);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/assumptions.ipp>
#endif
