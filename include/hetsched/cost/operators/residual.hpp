// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/operators/calibrate_test.cpp.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
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
/// that operators about 20 times apart are one apart. Complexity: O(1).
[[nodiscard]] inline calibration_point point_of(const operator_shape& op, bool on_matrix_units, double seconds, double compute_s,
                                                double memory_s, double waves) {
  const auto log = [](double x) { return std::log(x) / 3; };
  constexpr double least = 1e-3, many_waves = 3;
  const double balance = std::clamp(memory_s > 0 ? compute_s / memory_s : 1 / least, least, 1 / least);
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n);
  const int kernel = static_cast<int>(op.kind) * 4 + (on_matrix_units ? 2 : 0) + (op.scalar ? 1 : 0);
  if (op.kind == operator_kind::gemm || op.kind == operator_kind::flash_attention)
    return {kernel,
            {log(static_cast<double>(op.batch)), log(m), log(n), log(static_cast<double>(op.k)), log(seconds),
             op.batched ? 1.0 : 0.0, log(balance), 0.3 * std::min(waves, many_waves)}};
  return {kernel, {log(m), log(n), log(seconds), log(op.traffic_bytes / (m * n * element_bytes(op.format))), log(balance)}};
}

/// How much what is left of the logarithms of two operators' times varies together: 0 for other kernels.
[[nodiscard]] inline double covariance(const calibration_point& a, const calibration_point& b) {
  if (a.kernel != b.kernel) return 0;
  constexpr double common = 0.01, nearby = 0.02;
  double distance = 0;
  for (std::size_t i = 0; i < a.at.size(); ++i) distance += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
  return common + nearby * std::exp(-distance / 2);
}

/// The factor on the time of an operator there. Complexity: O(residuals).
/// Source: kriging, Rasmussen and Williams 2006, eq. 2.25.
[[nodiscard]] inline double residual_factor(std::span<const calibration_residual> residuals, const calibration_point& point) {
  double log_factor = 0;
  for (const auto& r : residuals)
    if (r.kernel == point.kernel) log_factor += r.weight * covariance({r.kernel, r.at}, point);
  return std::exp(log_factor);
}

}  // namespace hetsched
