// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// One timeline from those of the ranks (pipeline_executor::measured()) of one step. It begins at 0 and lists every transfer
/// once, by its sender. A transfer ends when its receiver has it, as senders may believe so too early; where the receiver's
/// part is missing, when the sender believes so. Arrivals whose sender's part is missing are left out.
/// Requires: the ranks' times are on one clock (see clock_offsets).
/// Complexity: O(actions * log(actions)).
[[nodiscard]] timeline merged(std::span<const timeline> parts);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/measured.ipp>
#endif
