// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include <hetsched/runtime/trainer/optimizer.hpp>

namespace hetsched {

enum class decay_shape : std::uint8_t { constant, linear, cosine, steps };

/// A learning rate over the steps of a training: it rises evenly to its peak, and decays from there to the last step.
/// Determinism: a function of the step, so a training that goes on from a checkpoint has the rates of one that was not stopped;
/// cosine with the bits of std::cos, which ranks have alike if their mathematical libraries are.
/// Example:
///   const learning_rate rate{.peak = 3e-4, .warmup = 100, .steps = 10'000, .shape = decay_shape::cosine};
///   for (auto step = trainer.committed_step(); step < rate.steps; ++step) {
///     trainer.optimizer_settings().learning_rate = rate.at(step);
///     trainer.step(inputs, targets, loss);
///   }
struct learning_rate {
  double peak = 1e-3;
  std::int64_t warmup = 0;  ///< steps; the first has peak / warmup, the last of them the peak
  std::int64_t steps = 0;   ///< of the training: where linear and cosine end
  decay_shape shape = decay_shape::constant;
  double floor = 0;           ///< of the peak: what linear and cosine come to
  std::int64_t interval = 1;  ///< steps: after so many behind the warm-up ...
  double factor = 0.5;        ///< ... the rate is multiplied by this

  /// Of a step, counted from 0. Behind the last step it stays.
  [[nodiscard]] double at(std::int64_t step) const {
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const auto since = step - warmup;
    const auto length = std::max<std::int64_t>(steps - warmup, 1);
    const double done = static_cast<double>(std::min(since, length)) / static_cast<double>(length);
    switch (shape) {
      case decay_shape::constant:
        break;
      case decay_shape::linear:
        return peak * (1 - (1 - floor) * done);
      case decay_shape::cosine:
        return peak * (floor + (1 - floor) * (1 + std::cos(std::numbers::pi * done)) / 2);
      case decay_shape::steps:
        return peak * detail::power(factor, since / std::max<std::int64_t>(interval, 1));
    }
    return peak;
  }
};

}  // namespace hetsched
