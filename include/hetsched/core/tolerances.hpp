// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/core/tolerances_test.cpp.

#include <limits>

namespace hetsched {

/// What takes for ever, costs more than anything, or cannot be had: where no link leads, say.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// No time is as long: what takes longer cannot be done, and sums of what can stay finite.
inline constexpr double longest_time_s = 1e300;

/// By which share figures may part that are equal but for rounding.
namespace tolerance {

inline constexpr double rounding = 1e-12;  ///< of one sum or product, computed in one way: what keeps a bound a bound
inline constexpr double sums = 1e-9;       ///< of sums that are added up in different orders

}  // namespace tolerance

/// No stage of a model takes less: periods that divide are at least this.
inline constexpr double least_period_s = 1e-12;

}  // namespace hetsched
