// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/check/check_test.cpp.

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/shape.hpp>

namespace hetsched::detail {

/// Kinds that their rank does by itself: they have no business with other ranks or with wires.
[[nodiscard]] constexpr bool is_own_work(action_kind k) { return !is_transfer(k) && k != action_kind::reduce_gradients; }

/// What is wrong with the structure of a schedule, each as a sentence; the index of its actions if nothing is. The one answer
/// to what makes a schedule complete and unique: check() reports it, simulate() throws its first sentence.
/// Complexity: O(actions + directions * stages * microbatches).
[[nodiscard]] std::optional<action_index> structure_findings(const schedule& order, finding_list& findings);

/// The index of the actions of a schedule of sound structure.
/// Throws: input_error with the first of structure_findings.
[[nodiscard]] action_index sound_index(const schedule& order);

/// Checks what validate_shape does, and every action by itself: that the schedule has its stage, and the lane it, and that
/// transfers cross boundaries between ranks. That is all that passes need. Throws: input_error with the first finding.
void validate_actions(const schedule& order);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/detail/structure.ipp>
#endif
