// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/page/timeline_svg_test.cpp.

#include <string>

namespace hetsched::detail {

/// The text of a time on an axis whose ticks are `step` seconds apart, in the unit that suits the whole.
[[nodiscard]] std::string tick_text(double time_s, double step, double whole_s);

/// The smallest round number of seconds that takes at least `pixels` on a scale of `pixels_per_s`, at most `span_s`.
[[nodiscard]] double tick_step(double span_s, double pixels_per_s, double pixels);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/detail/timeline_axis.ipp>
#endif
