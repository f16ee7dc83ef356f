// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan_test.cpp.

namespace hetsched::detail {

/// Devices up to which the search of stages on single devices takes little time beside others.
inline constexpr int quickly_placed = 16;

/// On more devices other planners' first plans, and what follows from them, take as long as a search.
inline constexpr int quickly_begun = 480;

}  // namespace hetsched::detail
