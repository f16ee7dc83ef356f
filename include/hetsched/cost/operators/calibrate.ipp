// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/operators/calibrate.hpp>
#include <hetsched/cost/operators/residual.hpp>

namespace hetsched::detail {

// What is minimised: squares of logarithms of ratios, from 0.2 on only their size, so that an outlier does not decide.
inline constexpr double misfit_knee = 0.2;

[[nodiscard]] inline double misfit(double log_ratio) {
  const double size = std::abs(log_ratio);
  return size <= misfit_knee ? size * size : misfit_knee * (2 * size - misfit_knee);
}

// The solution of a system whose matrix, by rows with the right-hand side last, is positive definite.
[[nodiscard]] inline std::vector<double> solved(std::vector<double> system, std::size_t n) {
  const auto at = [&](std::size_t r, std::size_t c) -> double& { return system[r * (n + 1) + c]; };
  for (std::size_t p = 0; p < n; ++p)
    for (std::size_t r = 0; r < n; ++r) {
      if (r == p) continue;
      const double times = at(r, p) / at(p, p);
      for (std::size_t c = p; c <= n; ++c) at(r, c) -= times * at(p, c);
    }
  std::vector<double> x(n);
  for (std::size_t p = 0; p < n; ++p) x[p] = at(p, n) / at(p, p);
  return x;
}

[[nodiscard]] inline double mean_error(const tile_device& d, const measured_operators& all) {
  double sum = 0;
  for (std::size_t i = 0; i < all.operators.size(); ++i)
    sum += std::abs(predict_operator(d, all.operators[i]).seconds / all.seconds[i] - 1);
  return sum / static_cast<double>(all.operators.size());
}

// Logarithms of predicted to measured.
[[nodiscard]] inline std::vector<double> log_ratios(const tile_device& d, const measured_operators& all) {
  std::vector<double> logs;
  logs.reserve(all.operators.size());
  for (std::size_t i = 0; i < all.operators.size(); ++i)
    logs.push_back(std::log(predict_operator(d, all.operators[i]).seconds / all.seconds[i]));
  return logs;
}

// The factors of a calibration as logarithms; of the launch, that of 1 + a multiple of a microsecond. A datasheet says nothing of
// the launch, so what it is believed to be weighs little.
inline constexpr std::size_t factor_count = 5;

using log_factors = std::array<double, factor_count>;

inline constexpr log_factors factor_weights = {1, 1, 1, 1, 0.01};

[[nodiscard]] inline device_calibration calibration_of(const log_factors& x) {
  constexpr double microsecond = 1e-6;
  return {.lane_rate = std::exp(x[0]),
          .matrix_rate = std::exp(x[1]),
          .memory_bandwidth = std::exp(x[2]),
          .l2_bandwidth = std::exp(x[3]),
          .launch_s = microsecond * std::expm1(x[4])};
}

// Levenberg and Marquardt's method, with slopes by differences.
[[nodiscard]] inline device_calibration fitted_factors(tile_device d, const measured_operators& all, double prior) {
  constexpr double widest = 1.6, most_launch = 5;  // factors of 5, 147 us
  const auto ratios = [&](const log_factors& at) {
    d.calibration = calibration_of(at);
    return log_ratios(d, all);
  };
  const auto total = [&](const log_factors& at) {
    double sum = 0;
    for (const double r : ratios(at)) sum += misfit(r);
    for (std::size_t c = 0; c < factor_count; ++c) sum += prior * factor_weights[c] * at[c] * at[c];
    return sum;
  };
  log_factors x{};
  double best = total(x), damping = 1e-3;
  for (int round = 0; round < 100 && damping < 1e6; ++round) {
    const auto now = ratios(x);
    std::array<std::vector<double>, factor_count> slopes;
    constexpr double step = 1e-4;
    for (std::size_t c = 0; c < factor_count; ++c) {
      auto up = x;
      up[c] += step;
      slopes[c] = ratios(up);
      for (std::size_t i = 0; i < now.size(); ++i) slopes[c][i] = (slopes[c][i] - now[i]) / step;
    }
    constexpr std::size_t width = factor_count + 1;  // the right-hand side comes last
    std::vector<double> normal(factor_count * width);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double weight = std::min(1.0, misfit_knee / std::max(1e-300, std::abs(now[i])));
      for (std::size_t c = 0; c < factor_count; ++c) {
        for (std::size_t e = 0; e < factor_count; ++e) normal[c * width + e] += weight * slopes[c][i] * slopes[e][i];
        normal[c * width + factor_count] -= weight * slopes[c][i] * now[i];
      }
    }
    const double before = best;
    for (; damping < 1e6; damping *= 4) {
      auto system = normal;
      for (std::size_t c = 0; c < factor_count; ++c) {
        const double weight = prior * factor_weights[c];
        system[c * width + c] = system[c * width + c] * (1 + damping) + weight + 1e-9;
        system[c * width + factor_count] -= weight * x[c];
      }
      auto next = x;
      const auto move = solved(std::move(system), factor_count);
      for (std::size_t c = 0; c < factor_count; ++c)
        next[c] = std::clamp(next[c] + move[c], c == 4 ? 0.0 : -widest, c == 4 ? most_launch : widest);
      if (const double sum = total(next); sum < best) {
        best = sum;
        x = next;
        damping /= 8;
        break;
      }
    }
    if (before - best <= 1e-9 * before) break;
  }
  return calibration_of(x);
}

HETSCHED_INLINE std::vector<calibration_residual> fitted_residuals(const tile_device& d, const measured_operators& all) {
  constexpr std::size_t most = 64;
  constexpr double noise = 0.003, widest = 0.3;  // of single measurements: 5 %; the logarithm of what an outlier can say
  const std::size_t n = all.operators.size(), kept = std::min(n, most);
  std::vector<calibration_point> points;
  std::vector<double> left;
  for (std::size_t i = 0; i < n; ++i) {
    const auto time = predict_operator(d, all.operators[i]);
    points.push_back(point_of(d, all.operators[i], time));
    left.push_back(std::clamp(std::log(all.seconds[i] / time.seconds), -widest, widest));
  }
  const auto centre = [&](std::size_t c) -> const calibration_point& { return points[c * n / kept]; };
  std::vector<double> system(kept * (kept + 1)), shared(n * kept);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t c = 0; c < kept; ++c) shared[i * kept + c] = covariance(points[i], centre(c));
  for (std::size_t r = 0; r < kept; ++r) {
    for (std::size_t c = 0; c < kept; ++c)
      system[r * (kept + 1) + c] = noise * (covariance(centre(r), centre(c)) + (r == c ? 1e-6 : 0));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t c = 0; c < kept; ++c) system[r * (kept + 1) + c] += shared[i * kept + r] * shared[i * kept + c];
      system[r * (kept + 1) + kept] += shared[i * kept + r] * left[i];
    }
  }
  const auto weights = solved(std::move(system), kept);
  std::vector<calibration_residual> residuals;
  for (std::size_t c = 0; c < kept; ++c) residuals.push_back({centre(c).kernel, centre(c).at, weights[c]});
  return residuals;
}

[[nodiscard]] inline std::array<device_calibration, calibration_depths> fitted_depths(tile_device d,
                                                                                      const measured_operators& all,
                                                                                      double prior) {
  std::array<device_calibration, calibration_depths> found{};
  found[1] = found[2] = d.calibration = fitted_factors(d, all, prior);
  found[2].residuals = fitted_residuals(d, all);
  return found;
}

HETSCHED_INLINE taken_calibration best_taken(const unseen_errors& errors) {
  const auto& as_listed = errors[0];
  const auto count = static_cast<double>(as_listed.size());
  std::size_t best = 0;
  double most = 0;
  for (std::size_t c = 1; c < taken_candidates.size(); ++c) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < as_listed.size(); ++i) {
      const double gain = as_listed[i] - errors[c][i];
      sum += gain;
      squares += gain * gain;
    }
    const double deviation = std::sqrt(std::max(0.0, squares - sum * sum / count) / std::max(1.0, count - 1) * count);
    if (const double gained = sum - 0.5 * deviation; gained > most) {
      most = gained;
      best = c;
    }
  }
  return taken_candidates[best];
}

HETSCHED_INLINE device_calibration share_of(device_calibration c, double share) {
  for (double* factor : {&c.lane_rate, &c.matrix_rate, &c.memory_bandwidth, &c.l2_bandwidth}) *factor = std::pow(*factor, share);
  c.launch_s *= share;
  for (auto& r : c.residuals) r.weight *= share;
  return c;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE calibrated_device calibrate_device(device d, std::span<const operator_shape> operators,
                                                   std::span<const double> measured_s, const calibrate_options& options) {
  if (operators.empty() || operators.size() != measured_s.size())
    throw input_error("a calibration needs operators, at least one, and a time for each: " + std::to_string(operators.size()) +
                      " operators, " + std::to_string(measured_s.size()) + " times");
  for (const double s : measured_s)
    if (!(s > 1e-12 && s < 1e9)) throw input_error("an operator's measured seconds must be positive and finite");
  if (!(options.prior >= 0 && std::isfinite(options.prior))) throw input_error("prior must be finite and not negative");
  d.calibration = {};
  auto hardware = make_tile_device(d);
  const detail::measured_operators all{{operators.begin(), operators.end()}, {measured_s.begin(), measured_s.end()}};
  const std::size_t n = operators.size(), folds = n > 1 ? std::min<std::size_t>(n, 10) : 0;
  calibrated_device result{.error_before = detail::mean_error(hardware, all)};
  detail::unseen_errors errors;
  const auto told = [&](std::size_t fits) {
    if (options.progress) options.progress(static_cast<int>(fits), static_cast<int>(folds + 1));
  };
  for (std::size_t fold = 0; fold < folds; ++fold) {
    detail::measured_operators shown, unseen;
    for (std::size_t i = 0; i < n; ++i) {
      auto& to = i % folds == fold ? unseen : shown;
      to.operators.push_back(operators[i]);
      to.seconds.push_back(measured_s[i]);
    }
    hardware.calibration = {};
    const auto found = detail::fitted_depths(hardware, shown, options.prior);
    for (std::size_t c = 0; c < errors.size(); ++c) {
      const auto& [depth, share] = detail::taken_candidates[c];
      hardware.calibration = detail::share_of(at(found, depth), share);
      for (const double r : detail::log_ratios(hardware, unseen)) {
        errors[c].push_back(std::abs(r));
        if (c == 0 || share == 1) at(result.error_unseen, depth) += std::abs(r) / static_cast<double>(n);
      }
    }
    told(fold + 1);
  }
  hardware.calibration = {};
  auto found = detail::fitted_depths(hardware, all, options.prior);
  const auto taken = folds == 0 ? detail::taken_calibration{calibration_depth::factors, 1} : detail::best_taken(errors);
  result.depth = taken.depth;
  result.share = taken.share;
  d.calibration = detail::share_of(std::move(at(found, taken.depth)), taken.share);
  hardware.calibration = d.calibration;
  result.error_after = detail::mean_error(hardware, all);
  told(folds + 1);
  result.device = std::move(d);
  return result;
}

}  // namespace hetsched
