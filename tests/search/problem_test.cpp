// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/problem.hpp>

#include <doctest/doctest.h>

#include <hetsched/planners/interop_dp.hpp>

#include "../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct by_hand {
  outcome<plan> operator()(const cluster&, const stub_costs&, const planning_problem&, int) const { return plan{}; }
};
struct no_planner {
  plan operator()(const cluster&, const stub_costs&, const planning_problem&, int) const { return {}; }
};
static_assert(planner<by_hand, stub_costs, int>);
constexpr auto exact = [](const cluster& c, const any_cost_model& m, const planning_problem& p, const interop_options& o) {
  return interop_dp(c, m, p, o);
};
static_assert(planner<decltype(exact), any_cost_model, interop_options>);
static_assert(!planner<no_planner, stub_costs, int>);
static_assert(!planner<by_hand, int, int>);

}  // namespace

TEST_CASE("counts below 1 and clusters without devices are refused") {
  CHECK_NOTHROW(validate(two_kinds(), planning_problem{}));
  CHECK_THROWS_AS(validate(two_kinds(), planning_problem{.microbatches = 0}), input_error);
  CHECK_THROWS_AS(validate(two_kinds(), planning_problem{.microbatch_size = -1}), input_error);
  CHECK_THROWS_AS(validate(cluster{}, planning_problem{}), input_error);
}
