// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

namespace hetsched {

HETSCHED_INLINE double largest_residual(const link& fitted, std::span<const link_sample> samples) {
  double worst = 0;
  for (const auto& s : samples)
    worst = std::max(worst, std::abs(fitted.transfer_s(static_cast<double>(s.bytes)) / s.took.median_s - 1));
  return worst;
}

HETSCHED_INLINE link fit_link(std::span<const link_sample> samples) {
  constexpr double least_s_per_byte = 1e-12;
  double ones = 0, b = 0, bb = 0, t = 0, bt = 0;
  bool sizes_differ = false;
  for (const auto& s : samples) {
    if (!(s.took.median_s > 0)) throw input_error("a link's time must be positive");
    const double weight = 1 / (s.took.median_s * s.took.median_s), bytes = static_cast<double>(s.bytes);
    sizes_differ = sizes_differ || s.bytes != samples.front().bytes;
    ones += weight;
    b += weight * bytes;
    bb += weight * bytes * bytes;
    t += weight * s.took.median_s;
    bt += weight * bytes * s.took.median_s;
  }
  if (!sizes_differ) throw input_error("a link's latency and bandwidth need messages of two sizes");
  double per_byte_s = (ones * bt - b * t) / (ones * bb - b * b);
  if (t - per_byte_s * b < 0) per_byte_s = bt / bb;
  per_byte_s = std::max(per_byte_s, least_s_per_byte);
  const link fitted{.latency_s = std::max(0.0, (t - per_byte_s * b) / ones), .bandwidth = 1 / per_byte_s};
  const auto [least, most] =
      std::minmax_element(samples.begin(), samples.end(), [](const auto& x, const auto& y) { return x.bytes < y.bytes; });
  if (most->took.median_s <= least->took.median_s || largest_residual(fitted, {&*most, 1}) <= poor_link_fit) return fitted;
  const double few = static_cast<double>(least->bytes), many = static_cast<double>(most->bytes);
  per_byte_s = (most->took.median_s - least->took.median_s) / (many - few);
  if (per_byte_s * few > least->took.median_s) per_byte_s = most->took.median_s / many;
  per_byte_s = std::max(per_byte_s, least_s_per_byte);
  return {.latency_s = std::max(0.0, most->took.median_s - per_byte_s * many), .bandwidth = 1 / per_byte_s};
}

}  // namespace hetsched
