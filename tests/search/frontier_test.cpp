// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/frontier.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("no plan of a frontier is worse in both than any plan, and every plan is worse in both than one of it, or on it") {
  random_source random(17);
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    std::vector<plan> plans;
    for (int i = random.integer(0, 12); i > 0; --i) {
      plan p;
      p.predicted.iteration_s = random.integer(1, 6);
      p.predicted.cost_per_sample = random.integer(0, 6);
      plans.push_back(p);
    }
    const auto found = cheaper_when_slower(plans);
    const auto of = [](const plan& p) { return std::pair{p.predicted.iteration_s, *p.predicted.cost_per_sample}; };
    for (std::size_t i = 1; i < found.size(); ++i) {
      CHECK(of(found[i]).first > of(found[i - 1]).first);
      CHECK(of(found[i]).second < of(found[i - 1]).second);
    }
    for (const auto& p : plans)
      CHECK(std::any_of(found.begin(), found.end(),
                        [&](const plan& f) { return of(f).first <= of(p).first && of(f).second <= of(p).second; }));
    for (const auto& f : found) CHECK(std::any_of(plans.begin(), plans.end(), [&](const plan& p) { return of(p) == of(f); }));
  }
}
