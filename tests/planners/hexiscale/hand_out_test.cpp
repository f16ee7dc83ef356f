// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/hand_out.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

double end_of(const std::vector<line_pace>& lines, const std::vector<int>& counts) {
  double end = 0;
  for (std::size_t l = 0; l < lines.size(); ++l) end = std::max(end, lines[l].end_s(counts[l]));
  return end;
}

/// The least end over all ways to hand out.
double least_end(const std::vector<line_pace>& lines, std::vector<int>& counts, std::size_t at, int left) {
  if (at + 1 == lines.size()) {
    counts[at] = left;
    return end_of(lines, counts);
  }
  double best = 1e300;
  for (int m = 1; m <= left - static_cast<int>(lines.size() - at - 1); ++m) {
    counts[at] = m;
    best = std::min(best, least_end(lines, counts, at + 1, left - m));
  }
  return best;
}

}  // namespace

TEST_CASE("microbatches are handed out so that the last pipeline ends as soon as can be") {
  random_source random(3);
  for (int i = 0; i < 500; ++i) {
    std::vector<line_pace> lines(static_cast<std::size_t>(random.integer(1, 4)));
    for (auto& l : lines) {
      l.period_s = random.integer(1, 6) * 0.25;
      l.latency_s = l.period_s * random.integer(1, 5);
    }
    const int microbatches = random.integer(static_cast<int>(lines.size()), 14);
    const auto counts = hand_out(microbatches, lines);
    REQUIRE(std::accumulate(counts.begin(), counts.end(), 0) == microbatches);
    REQUIRE(*std::min_element(counts.begin(), counts.end()) >= 1);
    std::vector<int> other(lines.size());
    REQUIRE(end_of(lines, counts) == least_end(lines, other, 0, microbatches));
  }
  CHECK(hand_out(5, {{1, 1}, {1, 1}}) == std::vector{3, 2});
  CHECK(hand_out(10, {{1, 1}, {1, 4}}) == std::vector{8, 2});
}
