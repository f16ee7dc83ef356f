// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// What a calibration takes from measurements: nothing, factors on the datasheet, or also what those leave near each operator.
enum class calibration_depth { none, factors, residuals };
inline constexpr int calibration_depths = 3;

/// A device's constants by measurements, and how far the tile model was and is from these: mean of |predicted / measured - 1|.
struct calibrated_device {
  hetsched::device device{};
  double error_before = 0, error_after = 0;
  /// For each depth, how far predictions are from operators that the calibration was not shown, by cross-validation: the mean of
  /// |log(predicted / measured)|, by which twice as long is as wrong as half. All 0 for a single operator.
  std::array<double, calibration_depths> error_unseen{};
  calibration_depth depth = calibration_depth::none;
  double share = 0;  ///< of what that depth found is taken, in quarters: factors and residuals as powers
};

/// What calibrate_device() may do.
struct calibrate_options {
  double prior = 0.2;  ///< for each factor, how many operators its logarithm's distance from the datasheet weighs as much as
  function_ref<void(int, int)> progress{};  ///< told how many fits are done, and of how many
};

namespace detail {

struct measured_operators {
  std::vector<operator_shape> operators;
  std::vector<double> seconds;
};

// Weights of residuals by regularised least squares over at most 64 of the operators, evenly spread: of as many, kriging.
[[nodiscard]] std::vector<calibration_residual> fitted_residuals(const tile_device& d, const measured_operators& all);

// How much of what a depth found is taken.
struct taken_calibration {
  calibration_depth depth = calibration_depth::none;
  double share = 0;
};
inline constexpr std::array<taken_calibration, 9> taken_candidates{{{},
                                                                    {calibration_depth::factors, 0.25},
                                                                    {calibration_depth::factors, 0.5},
                                                                    {calibration_depth::factors, 0.75},
                                                                    {calibration_depth::factors, 1},
                                                                    {calibration_depth::residuals, 0.25},
                                                                    {calibration_depth::residuals, 0.5},
                                                                    {calibration_depth::residuals, 0.75},
                                                                    {calibration_depth::residuals, 1}}};
using unseen_errors = std::array<std::vector<double>, taken_candidates.size()>;

// The candidate that foretells unseen operators best, by its errors beside those of the first, which takes nothing: the largest
// mean gain less half of its standard error, so that of two the surer one is taken.
[[nodiscard]] taken_calibration best_taken(const unseen_errors& errors);

// Factors and residuals as powers, the launch in proportion.
[[nodiscard]] device_calibration share_of(device_calibration c, double share);

}  // namespace detail

/// Fits the constants of a device's calibration to measured operators: rates of fp32 lanes, matrix units, memory and L2, a time
/// added to each operator, and what these leave unexplained near each operator. Constants that no operator tells anything of stay
/// as they are in `d`'s datasheet: a factor of 1. Those of few operators move little. Cross-validation decides how much of it is
/// taken, as stacked predictions are weighed: where neither factors nor residuals foretell operators that were not shown, the
/// device stays as listed.
/// Throws: input_error unless there are as many times, in seconds and above 0, as operators, at least one; and as
/// make_tile_device() and predict_operator() do.
/// Complexity: O(operators) for each of at most a hundred rounds of ten fits, and for each step that a round tries.
/// Source: Levenberg 1944, Marquardt 1963; weights as Huber 1964; residuals by kriging, Rasmussen and Williams 2006 sec. 2.2,
/// with subsets of regressors, sec. 8.3.1; stacking, Wolpert 1992, Breiman 1996.
[[nodiscard]] calibrated_device calibrate_device(device d, std::span<const operator_shape> operators,
                                                 std::span<const double> measured_s, const calibrate_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/operators/calibrate.ipp>
#endif
