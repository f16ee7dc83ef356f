// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/spmd/synthesize_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched::spmd::detail {

// Shares by speed: the inverse of what all operators take, or those of a segment.
[[nodiscard]] inline std::vector<double> weights_by_speed(const spmd::problem& p, int segment = -1) {
  std::vector<double> speed(p.kinds.size());
  double all = 0;
  for (std::size_t k = 0; k < speed.size(); ++k) {
    double seconds = 0;
    for (int i = 0; i < p.graph.size(); ++i)
      if (segment < 0 || p.graph.at(i).segment == segment) seconds += p.compute_of(i, k).whole();
    speed[k] = 1 / std::max(seconds, 1e-30);
    all += speed[k] * p.kinds[k].count;
  }
  for (auto& s : speed) s /= all;
  return speed;
}

// The same for each segment.
[[nodiscard]] inline std::vector<double> shares_by_speed(const spmd::problem& p) {
  if (p.segments() == 1) return weights_by_speed(p);
  std::vector<double> shares;
  for (int s = 0; s < p.segments(); ++s) {
    const auto own = weights_by_speed(p, s);
    shares.insert(shares.end(), own.begin(), own.end());
  }
  return shares;
}

[[nodiscard]] inline std::vector<double> even_shares(const spmd::problem& p) {
  return std::vector<double>(p.kinds.size() * as_size(p.segments()), 1.0 / p.device_count());
}

// All the weight on devices of one kind.
[[nodiscard]] inline std::vector<double> weight_on(const spmd::problem& p, std::size_t kind) {
  std::vector<double> weights(p.kinds.size());
  weights[kind] = 1.0 / p.kinds[kind].count;
  return weights;
}

}  // namespace hetsched::spmd::detail
