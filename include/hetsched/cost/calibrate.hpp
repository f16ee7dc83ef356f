// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/tile.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// A device's constants by measurements, and how far the tile model was and is from these: mean of |predicted / measured - 1|.
struct calibrated_device {
  hetsched::device device{};
  double error_before = 0, error_after = 0;
};

/// What calibrate_device() may do.
struct calibrate_options {
  double prior = 0.1;  ///< for each constant, how many operators its logarithm's distance from the datasheet weighs as much as
  function_ref<void(int, double)> progress{};  ///< told the round and what is minimised
};

namespace detail {

// What is minimised: squares of logarithms of ratios, from 0.2 on only their size, so that an outlier does not decide.
inline constexpr double misfit_knee = 0.2;
[[nodiscard]] inline double misfit(double log_ratio) {
  const double size = std::abs(log_ratio);
  return size <= misfit_knee ? size * size : misfit_knee * (2 * size - misfit_knee);
}

// The solution of a system whose matrix is positive definite, with its right-hand side as the last column.
template <std::size_t N>
[[nodiscard]] std::array<double, N> solved(std::array<std::array<double, N + 1>, N> system) {
  for (std::size_t p = 0; p < N; ++p)
    for (std::size_t r = 0; r < N; ++r) {
      if (r == p) continue;
      const double times = system[r][p] / system[p][p];
      for (std::size_t c = p; c <= N; ++c) system[r][c] -= times * system[p][c];
    }
  std::array<double, N> x;
  for (std::size_t p = 0; p < N; ++p) x[p] = system[p][N] / system[p][p];
  return x;
}

}  // namespace detail

/// Fits the constants of a device's calibration to measured operators: rates of fp32 lanes, matrix units, memory and L2, and a
/// time added to each operator. Constants that no operator tells anything of stay as they are in `d`'s datasheet: a factor of 1.
/// Those of few operators move little.
/// Requires: as many times, in seconds and above 0, as operators; at least one.
/// Throws: input_error as make_tile_device() and predict_operator() do.
/// Complexity: O(operators) for each of at most a hundred rounds, and for each step that a round tries.
/// Source: Levenberg 1944, Marquardt 1963; weights as Huber 1964.
[[nodiscard]] inline calibrated_device calibrate_device(device d, std::span<const operator_shape> operators,
                                                        std::span<const double> measured_s,
                                                        const calibrate_options& options = {}) {
  HETSCHED_EXPECTS(!operators.empty() && operators.size() == measured_s.size());
  d.calibration = {};
  auto hardware = make_tile_device(d);
  const auto error = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < operators.size(); ++i)
      sum += std::abs(predict_operator(hardware, operators[i]).seconds / measured_s[i] - 1);
    return sum / static_cast<double>(operators.size());
  };
  calibrated_device result{.error_before = error()};
  // Logarithms of factors; of the launch, that of 1 + a multiple of a microsecond.
  constexpr std::size_t constants = 5;
  constexpr double microsecond = 1e-6, widest = 1.6, most_launch = 5;  // factors of 5, 147 us
  std::array<double, constants> x{};
  const auto use = [&](const std::array<double, constants>& at) {
    hardware.calibration = {.lane_rate = std::exp(at[0]),
                            .matrix_rate = std::exp(at[1]),
                            .memory_bandwidth = std::exp(at[2]),
                            .l2_bandwidth = std::exp(at[3]),
                            .launch_s = microsecond * std::expm1(at[4])};
  };
  const auto total = [&](const std::array<double, constants>& at) {
    use(at);
    double sum = 0;
    for (std::size_t i = 0; i < operators.size(); ++i)
      sum += detail::misfit(std::log(predict_operator(hardware, operators[i]).seconds / measured_s[i]));
    for (const double c : at) sum += options.prior * c * c;
    return sum;
  };
  // Levenberg and Marquardt's method, with slopes by differences.
  const auto bounded = [&](std::array<double, constants> at) {
    for (std::size_t c = 0; c < constants; ++c) at[c] = std::clamp(at[c], c == 4 ? 0.0 : -widest, c == 4 ? most_launch : widest);
    return at;
  };
  const auto ratios = [&](const std::array<double, constants>& at) {
    use(at);
    std::vector<double> logs;
    logs.reserve(operators.size());
    for (std::size_t i = 0; i < operators.size(); ++i)
      logs.push_back(std::log(predict_operator(hardware, operators[i]).seconds / measured_s[i]));
    return logs;
  };
  double best = total(x), damping = 1e-3;
  for (int round = 0; round < 100 && damping < 1e6; ++round) {
    const auto now = ratios(x);
    std::array<std::vector<double>, constants> slopes;
    constexpr double step = 1e-4;
    for (std::size_t c = 0; c < constants; ++c) {
      auto up = x;
      up[c] += step;
      slopes[c] = ratios(up);
      for (std::size_t i = 0; i < now.size(); ++i) slopes[c][i] = (slopes[c][i] - now[i]) / step;
    }
    std::array<std::array<double, constants + 1>, constants> normal{};  // and the right-hand side
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double weight = std::min(1.0, detail::misfit_knee / std::max(1e-300, std::abs(now[i])));
      for (std::size_t c = 0; c < constants; ++c) {
        for (std::size_t e = 0; e < constants; ++e) normal[c][e] += weight * slopes[c][i] * slopes[e][i];
        normal[c][constants] -= weight * slopes[c][i] * now[i];
      }
    }
    const double before = best;
    for (; damping < 1e6; damping *= 4) {
      auto system = normal;
      for (std::size_t c = 0; c < constants; ++c) {
        system[c][c] = system[c][c] * (1 + damping) + options.prior + 1e-9;
        system[c][constants] -= options.prior * x[c];
      }
      auto next = x;
      const auto move = detail::solved(system);
      for (std::size_t c = 0; c < constants; ++c) next[c] += move[c];
      next = bounded(next);
      if (const double sum = total(next); sum < best) {
        best = sum;
        x = next;
        damping /= 8;
        break;
      }
    }
    if (options.progress) options.progress(round, best);
    if (before - best <= 1e-9 * before) break;
  }
  use(x);
  result.error_after = error();
  d.calibration = hardware.calibration;
  result.device = std::move(d);
  return result;
}

}  // namespace hetsched
