// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

/// What a pipeline takes for m microbatches: latency + (m - 1) * period seconds.
struct line_pace {
  double latency_s = 0;
  double period_s = 0;
  [[nodiscard]] double end_s(int microbatches) const { return latency_s + (microbatches - 1.0) * period_s; }
};

/// Hands out microbatches to pipelines so that the last one ends as soon as can be; every pipeline gets one at the least.
/// Throws: input_error for fewer microbatches than pipelines, no pipelines, and times that are none.
/// Returns: how many each gets; of equal choices the first pipeline gets more.
/// Complexity: O(microbatches log pipelines).
[[nodiscard]] inline std::vector<int> hand_out(int microbatches, const std::vector<line_pace>& lines) {
  detail::expect_count(static_cast<std::int64_t>(lines.size()), "pipelines");
  detail::expect_count(microbatches, "microbatches", static_cast<std::int64_t>(lines.size()));
  for (const auto& pace : lines) {
    detail::expect_natural(pace.latency_s, "latency_s of a pipeline");
    detail::expect_natural(pace.period_s, "period_s of a pipeline");
  }
  std::vector<int> counts(lines.size(), 1);
  std::vector<std::size_t> heap(lines.size());
  for (std::size_t i = 0; i < heap.size(); ++i) heap[i] = i;
  // Each microbatch goes where it ends first.
  const auto later = [&](std::size_t a, std::size_t b) {
    const double x = lines[a].end_s(counts[a] + 1), y = lines[b].end_s(counts[b] + 1);
    return x > y || (x == y && a > b);
  };
  std::make_heap(heap.begin(), heap.end(), later);
  for (int left = microbatches - static_cast<int>(lines.size()); left > 0; --left) {
    std::pop_heap(heap.begin(), heap.end(), later);
    ++counts[heap.back()];
    std::push_heap(heap.begin(), heap.end(), later);
  }
  return counts;
}

}  // namespace hetsched
