// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hetauto.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../interop_dp/random_instance.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// The shortest iteration over every chain of stages, each on any placement, that keeps the principles: tried one by one.
double shortest(const instance& given, const opaque_costs& costs, const std::string& schedule) {
  std::vector<placement> all;
  for (const auto& r : given.costs.rows) all.push_back(r.where);
  double best = infinity;
  plan made;
  made.pipelines.push_back({.microbatches = given.problem.microbatches, .schedule = {.name = schedule}});
  auto& line = made.pipelines.front();
  std::vector<submesh> shapes;
  std::vector<placement> chain;
  const auto judge = [&] {
    std::vector<int> used(given.hardware.subclusters.size());
    for (const auto& m : shapes) used[static_cast<std::size_t>(m.subcluster)] += m.device_count();
    for (std::size_t k = 0; k < used.size(); ++k) {
      const int there = given.hardware.subclusters[k].device_count();
      if (used[k] > there || (given.problem.use_all_devices && used[k] < there)) return;
    }
    const auto groups = pack_devices(given.hardware, shapes);
    for (std::size_t i = 0; i < groups.size(); ++i) line.stages[i].devices = {groups[i]};
    const auto worth = evaluate(given.hardware, costs, made);
    if (worth && worth->shortage.empty()) best = std::min(best, worth->plan.predicted.iteration_s);
  };
  const auto keeps_principles = [&](const placement& next) {
    if (chain.empty() || chain.back() == next) return true;
    return std::none_of(chain.begin(), chain.end(),
                        [&](const placement& p) { return p.mesh.subcluster == next.mesh.subcluster; });
  };
  const std::function<void(int)> extend = [&](int first) {
    if (first == given.costs.layers) return judge();
    for (const auto& where : all) {
      if (!keeps_principles(where)) continue;
      for (int last = first + 1; last <= given.costs.layers; ++last) {
        line.stages.push_back(
            {.layers = {first, last}, .degrees = where.degrees, .recompute = where.recompute, .zero = where.zero});
        shapes.push_back(where.mesh);
        chain.push_back(where);
        extend(last);
        line.stages.pop_back();
        shapes.pop_back();
        chain.pop_back();
      }
    }
  };
  extend(0);
  return best;
}

}  // namespace

TEST_CASE("hetauto that saw everything has the best plan under its principles") {
  random_source random(16);
  int plans = 0, refusals = 0, across = 0;
  const int count = 200 / search_share;
  for (int i = 0; i < count; ++i) {
    instance_limits limits;
    limits.layers = 4;
    limits.subclusters = 2;
    limits.devices = 4;
    const auto given = random_instance(random, limits);
    const opaque_costs costs{given.costs};
    INFO(text(given));
    const double best = shortest(given, costs, "virtual_1f1b");
    hetauto_options options;
    options.search.rollouts = 1'000'000;
    const auto found = hetauto(given.hardware, costs, given.problem, options);
    CHECK(found.has_value() == (best < infinity));
    if (!found) {
      CHECK(found.why_not().why == refusal::kind::infeasible);
      ++refusals;
      continue;
    }
    ++plans;
    std::set<int> used;
    for (const auto& s : found->pipelines.front().stages) used.insert(s.devices.front().mesh.subcluster);
    across += used.size() > 1 ? 1 : 0;
    CHECK(found->predicted.iteration_s == doctest::Approx(best).epsilon(1e-12));
    CHECK(found->evidence->objective_bound == found->evidence->objective_value);
    CHECK(found->evidence->objective_value == found->predicted.iteration_s);

    options.search.rollouts = 5;  // what is not seen to the end is not better, and not called proved
    if (const auto some = hetauto(given.hardware, costs, given.problem, options))
      CHECK(some->predicted.iteration_s >= best * (1 - 1e-12));
  }
  if (sanitizer_share == 1) {
    CHECK(plans > 50);
    CHECK(refusals > 5);
    CHECK(across > 20);
  }
}
