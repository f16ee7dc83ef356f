// SPDX-License-Identifier: Apache-2.0
// The learning rate that is asked for.
#pragma once

#include <hetsched/runtime/trainer/learning_rate.hpp>

#include <train/training.hpp>

namespace train {

[[nodiscard]] inline hetsched::learning_rate rate_of(const arguments& given) {
  using enum hetsched::decay_shape;
  return {.peak = given.learning_rate,
          .warmup = given.warmup,
          .steps = given.steps,
          .shape = given.decay == "linear"   ? linear
                   : given.decay == "cosine" ? cosine
                                             : constant,
          .floor = given.rate_floor};
}

}  // namespace train
