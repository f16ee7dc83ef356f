// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/frontier.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<plan> cheaper_when_slower(std::vector<plan> plans) {
  std::vector<double> seconds;
  for (const auto& p : plans) seconds.push_back(p.predicted.iteration_s);
  return cheaper_when_slower(std::move(plans), seconds);
}

HETSCHED_INLINE std::vector<plan> cheaper_when_slower(std::vector<plan> plans, const std::vector<double>& seconds) {
  detail::expect_size(seconds.size(), plans.size(), "iterations", "one for each plan");
  std::vector<std::tuple<double, double, std::size_t>> order;  // iteration, cost, plan
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto& own = plans[i].predicted;
    const double longer = seconds[i] == own.iteration_s ? 1 : seconds[i] / own.iteration_s;
    order.emplace_back(seconds[i], longer * own.cost_per_sample.value(), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<plan> kept;
  double least = infinity;
  for (const auto& [time, cost, i] : order) {
    if (cost >= least) continue;
    least = cost;
    kept.push_back(std::move(plans[i]));
  }
  return kept;
}

}  // namespace hetsched
