// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/spmd/detail/program_space_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd::detail {

/// Additive prices: what a node and its collectives add to a sum whatever else the program does.
struct node_price {
  double whole = 0, shared = 0;
  std::array<double, 5> collective{};
};

[[nodiscard]] inline double price_of(const node_price& price, const spmd::instruction& step) {
  return step.collective ? at(price.collective, step.how) : step.rule.shared ? price.shared : price.whole;
}

/// Shares per segment of a device of each kind between two limits; times counts they add up to 1.
struct share_box {
  std::vector<double> low{}, high{};
  double bound = 0;               ///< on what programs take with them
  std::vector<double> weights{};  ///< that prove it
};

/// Prices in which the slowest device is replaced by a mean of all, with weights per device of each kind that times counts add up
/// to 1: no program with shares in the box costs less than its sum of prices.
/// Requires: shares that add up to 1 are in the box.
/// Complexity: O(nodes * kinds log kinds).
[[nodiscard]] inline std::vector<node_price> prices_in(const share_box& box, const spmd::problem& p,
                                                       const std::vector<double>& weights) {
  std::vector<node_price> prices(p.graph.nodes.size());
  const auto segments = as_size(p.segments());
  std::vector<double> largest_of(segments, 1.0 / p.device_count()), rest_of(segments, 1.0);
  for (std::size_t i = 0; i < box.low.size(); ++i) {
    const auto s = i / p.kinds.size();
    largest_of[s] = std::max(largest_of[s], box.low[i]);
    rest_of[s] -= box.low[i] * p.kinds[i % p.kinds.size()].count;
  }
  std::vector<std::pair<double, std::size_t>> cheapest(p.kinds.size());
  for (std::size_t i = 0; i < prices.size(); ++i) {
    auto& price = prices[i];
    const auto& n = p.graph.nodes[i];
    const auto first = p.first_share(static_cast<int>(i));
    const double largest = at(largest_of, n.segment), rest = at(rest_of, n.segment);
    for (std::size_t c = 0; c < price.collective.size(); ++c)
      price.collective[c] = price_of(p.collect[i], static_cast<spmd::collective>(c)).at(largest);
    if (is_border(n)) {
      const double other = at(largest_of, p.graph.at(n.inputs[0]).segment);
      if (!p.data_parallel_only) price.shared = p.collect[i].all_to_all.at(std::max(largest, other));
      continue;
    }
    for (std::size_t k = 0; k < p.kinds.size(); ++k) {
      const auto& one = p.compute_of(static_cast<int>(i), k);
      const double all = weights[k] * p.kinds[k].count;
      price.whole += all * one.whole();
      price.shared += all * one.at(box.low[first + k]);
      cheapest[k] = {weights[k] * one.slope_s, k};
    }
    // What is left goes where it costs least.
    std::sort(cheapest.begin(), cheapest.end());
    double left = rest;
    for (const auto& [per_share, k] : cheapest) {
      const double taken = std::min(left, (box.high[first + k] - box.low[first + k]) * p.kinds[k].count);
      if (taken <= 0) continue;
      price.shared += per_share * taken;
      left -= taken;
    }
  }
  return prices;
}

}  // namespace hetsched::spmd::detail
