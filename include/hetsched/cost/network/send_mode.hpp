// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <array>
#include <string_view>

namespace hetsched {

/// How a rank hands tensors to others.
enum class send_mode {
  asynchronous,  ///< beside its computing, as evaluate has it
  grouped,       ///< it waits until they are there; sends and receives between the same two computations go together
  blocking,      ///< the same, one by one
};

/// Their names in files and commands, in their order.
inline constexpr std::array<std::string_view, 3> send_modes{"asynchronous", "grouped", "blocking"};

}  // namespace hetsched
