// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/reshard/layout_test.cpp.

#include <cstdint>
#include <span>
#include <vector>

namespace hetsched {

/// Where cuts lie that give parts these shares of a dimension: in whole indices, by largest remainder.
/// Throws: input_error for a negative extent, and unless there are shares, all finite and at least 0, and not all 0.
/// Source: HAP sec. 5; hetsched: rounding.
[[nodiscard]] std::vector<std::int64_t> cut_points(std::int64_t extent, std::span<const double> shares);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/cut_points.ipp>
#endif
