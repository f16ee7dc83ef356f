// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/gradient_groups.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/random.hpp>

#include "stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

plan cut_as(const std::vector<std::vector<int>>& sizes) {
  plan p;
  for (const auto& s : sizes) p.pipelines.push_back(line_of(s, 0, 0, 1, "1f1b"));
  return p;
}

}  // namespace

TEST_CASE("one pipeline shares nothing") { CHECK(gradient_groups(cut_as({{2, 3}})).empty()); }

TEST_CASE("layers are cut where any pipeline cuts them") {
  const auto groups = gradient_groups(cut_as({{2, 3, 1}, {4, 2}, {6}}));
  REQUIRE(groups.size() == 4);
  const std::vector<layer_range> layers{{0, 2}, {2, 4}, {4, 5}, {5, 6}};
  const std::vector<std::vector<int>> stages{{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {2, 1, 0}};
  for (std::size_t g = 0; g < 4; ++g) {
    CHECK(groups[g].layers == layers[g]);
    CHECK(groups[g].stages == stages[g]);
  }
}

TEST_CASE("random plans: groups cover the layers in order, each in one stage of every pipeline, and none could be larger") {
  random_source random(81);
  for (int n = 0; n < 500; ++n) {
    CAPTURE(n);
    const int layers = random.integer(1, 12), pipelines = random.integer(2, 4);
    std::vector<std::vector<int>> sizes(static_cast<std::size_t>(pipelines));
    for (auto& of : sizes)
      for (int left = layers; left > 0; left -= of.back()) of.push_back(random.integer(1, left));
    const auto p = cut_as(sizes);
    const auto groups = gradient_groups(p);
    int next = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      REQUIRE(groups[g].layers.first == next);
      REQUIRE(groups[g].layers.size() >= 1);
      REQUIRE(groups[g].stages.size() == p.pipelines.size());
      next = groups[g].layers.last;
      for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
        const auto& stage = p.pipelines[l].stages[static_cast<std::size_t>(groups[g].stages[l])].layers;
        REQUIRE(stage.first <= groups[g].layers.first);
        REQUIRE(stage.last >= groups[g].layers.last);
      }
      if (g > 0) REQUIRE(groups[g].stages != groups[g - 1].stages);
    }
    REQUIRE(next == layers);
  }
}
