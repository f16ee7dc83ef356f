// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/simulate/explain_difference.hpp>

namespace hetsched {

HETSCHED_INLINE difference_parts explain_difference(const timeline& predicted, const timeline& measured) {
  const auto both = compare_timelines(predicted, measured);
  const detail::replay again(from_departure(measured));
  const auto departing = from_departure(predicted);  // of both, a transfer begins when the one before it has arrived
  const double as_predicted_s = again.makespan_s(departing, false, false, false),
               work_s = again.makespan_s(departing, true, false, false), moved_s = again.makespan_s(departing, true, true, false);
  return {.compute_s = work_s - as_predicted_s,
          .transport_s = moved_s - work_s,
          .host_s = both.measured.makespan_s - moved_s,
          .wait_s = as_predicted_s - both.predicted.makespan_s};
}

}  // namespace hetsched
