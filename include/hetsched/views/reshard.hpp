// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include <hetsched/core/views.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/transfer_plan.hpp>

namespace hetsched::views {
inline namespace HETSCHED_VIEWS_KIND {

/// A message of a transfer plan with its phase and what it carries.
struct phased_message {
  std::size_t phase = 0;  ///< counted through all chunks
  const slice_message& message;
  std::span<const interval> slice;
};

/// The messages of a transfer plan, phase by phase.
template <shown<transfer_plan> Plan>
[[nodiscard]] auto messages_by_phase(Plan& p) {
  return iota(std::size_t{0}, p.phase_count()) | transform([&p](std::size_t phase) {
           return p.phase(phase) | transform([&p, phase](const slice_message& m) {
                    return phased_message{phase, m, p.slice_of(m)};
                  });
         }) |
         join;
}

}  // namespace HETSCHED_VIEWS_KIND
}  // namespace hetsched::views
