// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <array>
#include <string_view>

#include <hetsched/evaluate/evaluation.hpp>

namespace hetsched {

/// How a rank hands tensors to others.
enum class send_mode {
  asynchronous,  ///< beside its computing, as evaluate has it
  grouped,       ///< it waits until they are there; sends and receives between the same two computations go together
  blocking,      ///< the same, one by one
};

/// Their names in commands, in their order.
inline constexpr std::array<std::string_view, 3> send_modes{"asynchronous", "grouped", "blocking"};

/// Seconds of an iteration of an evaluated plan whose ranks send so: sends and receives stand in the order of computing, where
/// add_transfers puts them, and each holds up both of its ranks. Memory is as it was.
/// Throws: input_error for a plan that was not evaluated or was changed since, and for one whose own schedule lists transfers,
/// unless they are to be asynchronous.
/// Complexity: that of simulate, for each pipeline.
[[nodiscard]] double iteration_under(const evaluation& judged, send_mode sends);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/sends.ipp>
#endif
