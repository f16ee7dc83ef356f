// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/operators/residual.hpp>

namespace hetsched {

HETSCHED_INLINE calibration_point point_of(const operator_shape& op, bool on_matrix_units, double seconds, double compute_s,
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

HETSCHED_INLINE double covariance(const calibration_point& a, const calibration_point& b) {
  if (a.kernel != b.kernel) return 0;
  constexpr double common = 0.01, nearby = 0.02;
  double distance = 0;
  for (std::size_t i = 0; i < a.at.size(); ++i) distance += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
  return common + nearby * std::exp(-distance / 2);
}

HETSCHED_INLINE double residual_factor(std::span<const calibration_residual> residuals, const calibration_point& point) {
  double log_factor = 0;
  for (const auto& r : residuals)
    if (r.kernel == point.kernel) log_factor += r.weight * covariance({r.kernel, r.at}, point);
  return std::exp(log_factor);
}

}  // namespace hetsched
