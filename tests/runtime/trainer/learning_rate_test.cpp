// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/learning_rate.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <numbers>

using namespace hetsched;

TEST_CASE("learning rates rise to their peak, and decay as their shape says") {
  learning_rate rate{.peak = 0.4, .warmup = 4, .steps = 24, .floor = 0.25};
  for (const auto shape : {decay_shape::constant, decay_shape::linear, decay_shape::cosine, decay_shape::steps}) {
    rate.shape = shape;
    CHECK(rate.at(0) == doctest::Approx(0.1));
    CHECK(rate.at(2) == doctest::Approx(0.3));
    CHECK(rate.at(3) == doctest::Approx(0.4));
    CHECK(rate.at(4) == doctest::Approx(0.4));  // nothing has decayed yet
  }
  rate.shape = decay_shape::constant;
  CHECK(rate.at(1000) == 0.4);
  rate.shape = decay_shape::linear;
  CHECK(rate.at(14) == doctest::Approx(0.25));  // half of the way to 0.1
  rate.shape = decay_shape::cosine;
  CHECK(rate.at(14) == doctest::Approx(0.25));
  CHECK(rate.at(9) == doctest::Approx(0.1 + 0.3 * (1 + std::cos(std::numbers::pi / 4)) / 2));
  for (const auto shape : {decay_shape::linear, decay_shape::cosine}) {
    rate.shape = shape;
    CHECK(rate.at(24) == doctest::Approx(0.1));
    CHECK(rate.at(1000) == doctest::Approx(0.1));
    for (std::int64_t step = 5; step < 24; ++step) CHECK(rate.at(step) < rate.at(step - 1));
  }
  rate.shape = decay_shape::steps;
  rate.interval = 5;
  rate.factor = 0.1;
  CHECK(rate.at(8) == doctest::Approx(0.4));
  CHECK(rate.at(9) == doctest::Approx(0.04));
  CHECK(rate.at(14) == doctest::Approx(0.004));
}

TEST_CASE("learning rates of trainings without steps or warm-up") {
  CHECK(learning_rate{.peak = 2}.at(0) == 2);
  for (const auto shape : {decay_shape::linear, decay_shape::cosine}) {
    const learning_rate at_once{.peak = 2, .shape = shape, .floor = 0.5};
    CHECK(at_once.at(0) == 2);
    CHECK(at_once.at(1) == doctest::Approx(1));
  }
}
