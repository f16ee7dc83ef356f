// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp.hpp>

#include <array>
#include <cstddef>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/executor/thread_executor.hpp>

#include "random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("[threads] the same plan, evidence and refusal for every number of threads") {
  random_source random(2001), more(2002);
  int feasible = 0;
  for (int n = 0; n < 6; ++n) {
    CAPTURE(n);
    const bool by_degrees = n % 2 == 0;
    auto given = random_instance(random, {.layers = 16, .subclusters = 4, .devices = 4, .prices_by_degrees = by_degrees});
    if (n % 4 >= 2) enrich(given, more);
    given.options.near_tie = n % 3 == 0 ? 0.01 : 0;
    given.options.warmup = n % 4 == 0 ? warmup_rule::exact : n % 10 == 1 ? warmup_rule::eager : warmup_rule::h1f1b;
    INFO(text(given));
    const auto check = [&](const auto& costs) {
      const auto alone = interop_dp(given.hardware, costs, given.problem, given.options);
      feasible += alone.has_value();
      const int threads = std::array{1, 3, 8}[static_cast<std::size_t>(n / 2 % 3)];
      CAPTURE(threads);
      auto problem = given.problem;
      problem.parallel = thread_executor(threads);
      const auto together = interop_dp(given.hardware, costs, problem, given.options);
      REQUIRE(together.has_value() == alone.has_value());
      if (alone)
        REQUIRE(*together == *alone);
      else
        REQUIRE(together.why_not().reason == alone.why_not().reason);
    };
    check(additive_costs{given.costs});
    if (n % 3 == 0) check(opaque_costs{given.costs});
  }
  CHECK(feasible >= 4);
}
