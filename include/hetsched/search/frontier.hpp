// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// The plans of which none is both slower and dearer than another, by rising iteration and falling cost per sample; of equals the
/// first one. Requires: evaluated plans whose devices have prices. O(plans log plans).
[[nodiscard]] std::vector<plan> cheaper_when_slower(std::vector<plan> plans);

/// The same where their iterations take so many seconds, and cost as much more, as where ranks wait for what they send.
/// Requires: one for each plan.
[[nodiscard]] std::vector<plan> cheaper_when_slower(std::vector<plan> plans, const std::vector<double>& seconds);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/frontier.ipp>
#endif
