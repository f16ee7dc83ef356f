// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/operators/calibrate_test.cpp.

#include <array>
#include <span>

#include <hetsched/cluster/device.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// Operators as a calibration compares them: only those of one kernel resemble each other, the more so the closer they lie.
struct calibration_point {
  int kernel = 0;
  std::array<double, calibration_residual::coordinates> at{};
};

/// Where `op` lies, of which the model makes these times: sizes, time and what it waits for, as logarithms to the base e^3, so
/// that operators about 20 times apart are one apart. Requires: an operator, and times, of predict_operator. Complexity: O(1).
[[nodiscard]] calibration_point point_of(const operator_shape& op, bool on_matrix_units, double seconds, double compute_s,
                                         double memory_s, double waves);

/// How much what is left of the logarithms of two operators' times varies together: 0 for other kernels.
[[nodiscard]] double covariance(const calibration_point& a, const calibration_point& b);

/// The factor on the time of an operator there. Complexity: O(residuals).
/// Source: kriging, Rasmussen and Williams 2006, eq. 2.25.
[[nodiscard]] double residual_factor(std::span<const calibration_residual> residuals, const calibration_point& point);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/operators/residual.ipp>
#endif
