// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const loss_scaling& s) {
  if (!(s.scale > 0 && std::isfinite(s.scale) && s.growth >= 1 && std::isfinite(s.growth) && s.backoff > 0 && s.backoff <= 1 &&
        s.interval > 0))
    throw input_error("the loss needs a scale above 0, a growth of at least 1, a backoff from 0 to 1 and an interval above 0");
}

HETSCHED_INLINE void loss_scaling::follow(bool updated) {
  good_steps = updated ? good_steps + 1 : 0;
  if (!updated) scale *= backoff;
  if (good_steps < interval) return;
  scale *= growth;
  good_steps = 0;
}

}  // namespace hetsched
