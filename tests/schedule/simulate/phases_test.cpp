// SPDX-License-Identifier: Apache-2.0
// Two numbers per transfer, its seconds and those that it occupies its boundary, against transfers whose phases are played one
// by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../random_pipeline.hpp"

using namespace hetsched;

namespace {

double sum(const std::vector<double>& times) { return std::accumulate(times.begin(), times.end(), 0.0); }
double longest(const std::vector<double>& times) { return *std::max_element(times.begin(), times.end()); }

std::vector<double> some_phases(random_source& random, int count, double top) {
  std::vector<double> times;
  for (int k = 0; k < count; ++k) times.push_back(random.integer(0, 4) == 0 ? 0.0 : random.uniform(0, top));
  return times;
}

}  // namespace

TEST_CASE("tensors through stations in a row arrive when two numbers say") {
  random_source random(301);
  int waited = 0;
  for (int n = 0; n < 2000; ++n) {
    const auto phases = some_phases(random, random.integer(1, 6), 1);
    CAPTURE(test::text(phases));
    std::vector<double> station_free(phases.size(), 0.0);
    double made = 0, free = 0;
    for (int m = 0; m < 30; ++m) {
      made += random.uniform(0, 1.5);
      CAPTURE(m);
      CAPTURE(made);
      double arrival = made;
      for (std::size_t k = 0; k < phases.size(); ++k) arrival = station_free[k] = std::max(arrival, station_free[k]) + phases[k];
      const double start = std::max(made, free);
      waited += start > made;
      free = start + longest(phases);
      REQUIRE(start + sum(phases) == doctest::Approx(arrival).epsilon(1e-12));
    }
  }
  CHECK(waited > 10000);
}

TEST_CASE("a pipeline whose transfers pass three stations, each its own wire: the same ends and period by two numbers") {
  random_source random(302);
  int faster = 0;
  for (int n = 0; n < 1000; ++n) {
    const int stages = random.integer(2, 6), m = random.integer(1, 40);
    auto p = test::random_pipeline(random, stages);
    p.transfer_s.clear(), p.gradient_transfer_s.clear(), p.transfer_occupied_s.clear(), p.gradient_transfer_occupied_s.clear();
    const double top = random.uniform(0, 2);
    std::vector<std::vector<double>> there, back;
    for (int i = 0; i + 1 < stages; ++i) {
      there.push_back(some_phases(random, 3, top));
      back.push_back(some_phases(random, 3, top));
      p.transfer_s.push_back(sum(there.back()));
      p.transfer_occupied_s.push_back(longest(there.back()));
      p.gradient_transfer_s.push_back(sum(back.back()));
      p.gradient_transfer_occupied_s.push_back(longest(back.back()));
    }
    const auto warmups = n % 4 == 0 ? exact_warmups(p, best_period(p)) : test::random_warmups(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    CAPTURE(m);
    const auto order = one_f_one_b(warmups, m);
    auto phased = make_workload(p, order);
    const auto stations = [&](const std::vector<double>& times) {
      tensor_path path{.staged = true, .d2h = {}, .network = {}, .h2d = {}};
      std::size_t k = 0;
      for (auto* leg : {&path.d2h, &path.network, &path.h2d}) {
        leg->wires[0] = static_cast<int>(phased.wires.size());
        leg->occupied_s = times[k++];
        phased.wires.push_back({.name = "station"});
      }
      return path;
    };
    for (std::size_t i = 0; i < there.size(); ++i) {
      phased.activations[i] = stations(there[i]);
      phased.gradients[i] = stations(back[i]);
    }
    const auto expected = simulate(phased, order, {.timeline = false});
    const auto ends = stage_ends(p, warmups, m);
    // Where tensors wait differs, between stations here and before they set out there; when they arrive does not.
    for (std::size_t i = 0; i < ends.size(); ++i) REQUIRE(ends[i] == doctest::Approx(expected.rank_end_s[i]).epsilon(1e-12));
    REQUIRE(makespan_lower_bound(p, m) <= expected.makespan_s * (1 + 1e-12));
    // As if each transfer held up the next one until it arrived.
    auto one_by_one = p;
    one_by_one.transfer_occupied_s.clear(), one_by_one.gradient_transfer_occupied_s.clear();
    faster += expected.makespan_s < makespan(one_by_one, warmups, m) * 0.99;
    REQUIRE(period(p, warmups) <= period(one_by_one, warmups));
  }
  CHECK(faster > 200);
}
