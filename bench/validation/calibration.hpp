// SPDX-License-Identifier: Apache-2.0
#pragma once

// How well a device is known after twenty of its operators were measured.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cost/operators/calibrate.hpp>

#include "cases.hpp"
#include "text.hpp"
#include "tile_fit.hpp"

namespace validation {

/// Mean errors on the rows that were not drawn, of the model as it ships and calibrated on those that were.
struct calibration_draw {
  double before = 0, after = 0;
  device_calibration found{};
};

/// Draws 20 of the rows, which all are of one device, and calibrates on them.
[[nodiscard]] inline calibration_draw calibrate_on_twenty(const std::string& device, const std::vector<const measurement*>& rows,
                                                          random_source& random) {
  std::vector<const measurement*> shuffled = rows;
  const std::size_t drawn = std::min<std::size_t>(20, rows.size() / 2);
  std::vector<operator_shape> operators;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < drawn; ++i) {
    std::swap(shuffled[i],
              shuffled[static_cast<std::size_t>(random.integer(static_cast<int>(i), static_cast<int>(shuffled.size()) - 1))]);
    operators.push_back(shuffled[i]->op);
    seconds.push_back(shuffled[i]->seconds);
  }
  const auto plain = make_tile_device(catalogue_device(device));
  const auto calibrated = calibrate_device(catalogue_device(device), operators, seconds);
  const auto better = make_tile_device(calibrated.device);
  calibration_draw draw{.found = calibrated.device.calibration};
  for (std::size_t i = drawn; i < shuffled.size(); ++i) {
    const auto& x = *shuffled[i];
    draw.before += std::abs(predict_operator(plain, x.op).seconds / x.seconds - 1);
    draw.after += std::abs(predict_operator(better, x.op).seconds / x.seconds - 1);
  }
  const double rest = static_cast<double>(shuffled.size() - drawn) / 100;
  draw.before /= rest;
  draw.after /= rest;
  return draw;
}

/// Each row of some kind, by the calibration whose draw is the median of 20.
[[nodiscard]] inline validation_part calibration_part(const std::vector<group>& groups, bool products, double goal) {
  validation_part part{.title = std::string("Calibrated on twenty ") + (products ? "products" : "vector operators"),
                       .compared = std::string("NeuSight's ") + (products ? "products" : "vector operators") +
                                   " by the model calibrated on 20 of them",
                       .unit = "ms",
                       .method =
                           "`calibrate_device` is given 20 rows of a device, drawn at random, and predicts its other rows. "
                           "20 draws; the table is of the draw whose error is the median. The constants are the shipped "
                           "ones, to which all rows but H100's were fitted; before calibration nothing is added for the "
                           "host. The settings of the calibration itself (prior, noise, what an outlier can say, how sure a "
                           "gain must be) were chosen by other draws of these devices, so they are not held out.",
                       .goal_mean_percent = goal};
  std::map<std::string, std::vector<const measurement*>> devices;
  for (const auto& g : groups)
    for (const auto& x : g.rows)
      if (x.set == "NeuSight" && (x.op.kind == operator_kind::gemm) == products) devices[x.device].push_back(&x);
  random_source random(20);
  double worst = -1e300;
  std::string worst_device;
  for (const auto& [device, rows] : devices) {
    std::vector<calibration_draw> draws;
    for (int i = 0; i < 20; ++i) draws.push_back(calibrate_on_twenty(device, rows, random));
    for (const auto& d : draws)
      if (d.after - d.before > worst) worst = d.after - d.before, worst_device = device;
    std::sort(draws.begin(), draws.end(), [](const auto& a, const auto& b) { return a.after < b.after; });
    auto described = catalogue_device(device);
    described.calibration = draws[9].found;
    const auto hardware = make_tile_device(described), plain = make_tile_device(catalogue_device(device));
    for (const auto* x : rows)
      part.cases.push_back({.set = x->kind,
                            .group = device,
                            .what = std::to_string(x->op.batch) + " x " + std::to_string(x->op.m) + " x " +
                                    std::to_string(x->op.n) + " x " + std::to_string(x->op.k),
                            .measured = 1e3 * x->seconds,
                            .predicted = 1e3 * predict_operator(hardware, x->op).seconds,
                            .others = {1e3 * predict_operator(plain, x->op).seconds}});
  }
  part.others = {"not calibrated"};
  part.remarks = text(
      "Of all draws, the one that does worst beside the model without calibration changes the mean error by %+.1f "
      "points (%s).",
      worst, worst_device.c_str());
  return part;
}

}  // namespace validation
