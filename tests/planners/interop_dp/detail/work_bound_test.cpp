// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/interop_dp/detail/work_bound.hpp>

#include <doctest/doctest.h>

#include "../../parallel_pipelines/all_sets.hpp"
#include "../../parallel_pipelines/brute_sets.hpp"

using namespace hetsched;
using namespace hetsched::detail;
using namespace hetsched::test;

namespace {

template <class Costs>
double bound_of(const cluster& hardware, const Costs& costs, int microbatches) {
  price_book book(hardware, costs);
  const auto problem = make_interop_problem(book);
  return work_bound(problem, stage_prices(book, problem), microbatches);
}

/// A layer takes the same on every device of a subcluster, however many share it.
struct even_costs {
  using additive = void;
  std::vector<double> layer_s;  // by subcluster
  int layers = 1;
  [[nodiscard]] int layer_count() const { return layers; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return {{mesh, {mesh.device_count(), 1, 1}}}; }
  [[nodiscard]] stage_cost layer(int, const placement& where) const {
    const double t = layer_s[static_cast<std::size_t>(where.mesh.subcluster)] / where.mesh.device_count();
    return {.forward_s = t / 3, .backward_s = 2 * t / 3};
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    stage_cost sum;
    for (int l = range.first; l < range.last; ++l) sum += layer(l, where);
    return sum;
  }
  [[nodiscard]] transfer_cost transfer(int, const placement&, const placement&) const { return {}; }
};

}  // namespace

TEST_CASE("work shared out among devices by their speed is the bound where all layers are alike") {
  cluster hardware;
  for (const int devices : {2, 3}) {
    subcluster s;
    s.name = "of " + std::to_string(devices);
    s.device = {.name = s.name, .memory_bytes = 1 << 30, .memory_bandwidth = 1e12};
    s.devices_per_node = devices;
    s.intra_node = s.inter_node = {.latency_s = 0, .bandwidth = 1e9};
    hardware.subclusters.push_back(std::move(s));
  }
  hardware.links.push_back({.a = 0, .b = 1, .link = {.latency_s = 0, .bandwidth = 1e9}});
  // 5 layers of 0.5 and of 0.25 s: 2 / 0.5 + 3 / 0.25 = 16 layers per second.
  CHECK(bound_of(hardware, even_costs{{0.5, 0.25}, 5}, 8) == doctest::Approx(8 * 5 / 16.0));
}

TEST_CASE("no set of pipelines takes less than its work") {
  random_source random(771);
  int close = 0, all = 0, longer = 0;
  for (int n = 0; n < (sweeps ? 100 : 40); ++n) {
    const auto given = random_instance(random, {.layers = 5, .subclusters = 2, .devices = 4, .prices_by_degrees = n % 3 == 0});
    INFO(text(given));
    const additive_costs costs{given.costs};
    const double least = brute_sets(given.hardware, costs, as_brute(given), measure::played).least(devices_of(given.hardware));
    const double bound = bound_of(given.hardware, costs, given.problem.microbatches);
    CHECK(bound <= least);
    price_book book(given.hardware, costs);
    const double told = work_bound(book, given.problem.microbatches);
    CHECK(told >= bound * (1 - 1e-12));
    CHECK(told <= least);
    longer += told > bound * 1.01;  // one microbatch takes longer on its way than all of its share
    if (!(least < never)) continue;
    ++all;
    close += bound > 0.3 * least;
  }
  CAPTURE(close);
  CHECK(4 * close > all);
  CHECK(longer > 0);
}
