// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/taper.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/evaluate/evaluate.hpp>

#include "../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct instance {
  cluster hardware;
  stub_costs costs;
  pipeline_plan line;
};

/// Random layers on subclusters of one device each.
instance random_instance(random_source& random, int layers, int stages, int microbatches, bytes_t activation_bytes = mib) {
  instance one{plain_cluster(stages, 1), {}, {.microbatches = microbatches, .schedule = {.name = "exact_1f1b"}}};
  for (int i = 0; i < layers; ++i) {
    one.costs.layers.push_back({.forward_s = random.uniform(0.5, 1.5),
                                .backward_s = random.uniform(1, 3),
                                .weight_bytes = mib,
                                .activation_bytes = activation_bytes});
    one.costs.updates.push_back(0);
    if (i + 1 < layers) one.costs.boundaries.emplace_back(random.uniform(0, 1));
  }
  for (int i = 0; i < stages; ++i)
    one.line.stages.push_back(on_device({i * layers / stages, (i + 1) * layers / stages}, i, 0, 0));
  return one;
}

/// The bound of a pipeline's cuts, from the costs themselves; infinity where memory is short for 1F1B.
double bound_of(const instance& one, const pipeline_plan& line) {
  double before = 0, bound = 0;
  const int stages = static_cast<int>(line.stages.size());
  for (int i = 0; i < stages; ++i) {
    const auto& s = line.stages[static_cast<std::size_t>(i)];
    const auto cost = cost_of::stage(one.costs, s.layers, s.where());
    const double t = cost.forward_s + cost.backward_s;
    const auto& device = one.hardware.subclusters[static_cast<std::size_t>(i)].device;
    if (memory_of(cost, {}, std::min(line.microbatches, stages - i)).total() > device.memory_bytes) return 1e300;
    bound = std::max(bound, before + line.microbatches * t);
    before += t;
    if (i + 1 == stages) break;
    const auto c = transfer_cost(
        cost_of::transfer(one.costs, s.layers.last - 1, s.where(), line.stages[static_cast<std::size_t>(i) + 1].where()));
    before += c.round_trip_s();
  }
  return bound;
}

/// The least bound of all cuts.
double least_bound(const instance& one) {
  auto line = one.line;
  const int layers = cost_of::layer_count(one.costs);
  double least = 1e300;
  const std::function<void(std::size_t, int)> cut = [&](std::size_t stage, int first) {
    if (stage + 1 == line.stages.size()) {
      line.stages[stage].layers = {first, layers};
      least = std::min(least, bound_of(one, line));
      return;
    }
    for (int last = first + 1; last < layers; ++last) {
      line.stages[stage].layers = {first, last};
      cut(stage + 1, last);
    }
  };
  cut(0, 0);
  return least;
}

double iteration_of(const instance& one, pipeline_plan line, const char* schedule) {
  line.schedule = {.name = schedule};
  for (auto& s : line.stages) s.warmup = 0;
  const auto judged = evaluate(one.hardware, one.costs, plan{.pipelines = {std::move(line)}});
  REQUIRE(judged);
  return judged->plan.predicted.iteration_s;
}

}  // namespace

TEST_CASE("tapered stages have the least bound of all cuts, and no schedule of whole backwards is below it") {
  random_source random(6001);
  constexpr std::array once{1.0};
  int short_of_memory = 0;
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    const int stages = random.integer(1, 4), layers = random.integer(stages, 9);
    const auto one = random_instance(random, layers, stages, random.integer(1, 12), n % 3 == 0 ? 500 * mib : mib);
    const double least = least_bound(one);
    price_book book(one.hardware, one.costs);
    const auto found = tapered(book, one.line, once).front();
    if (!(bound_of(one, one.line) < 1e300) && found == one.line) {
      ++short_of_memory;
      continue;  // nothing is promised: the pipeline itself does not fit
    }
    CHECK(bound_of(one, found) == doctest::Approx(least).epsilon(1e-6));
    for (const char* name : {"gpipe", "1f1b", "exact_1f1b", "eager_1f1b", "auto"}) {
      CAPTURE(name);
      CHECK(iteration_of(one, found, name) >= bound_of(one, found) * (1 - 1e-9));
      if (bound_of(one, one.line) < 1e300) CHECK(iteration_of(one, one.line, name) >= bound_of(one, one.line) * (1 - 1e-9));
    }
  }
  CAPTURE(short_of_memory);
  CHECK(short_of_memory > 10);
  CHECK(short_of_memory < 67);
}

TEST_CASE("stages that taper are faster under a schedule that keeps more in flight") {
  instance one{plain_cluster(4, 1), {}, {.microbatches = 8, .schedule = {.name = "auto"}}};
  for (int l = 0; l < 64; ++l) {
    one.costs.layers.push_back({.forward_s = 1, .backward_s = 2, .weight_bytes = mib, .activation_bytes = mib});
    one.costs.updates.push_back(0);
    if (l < 63) one.costs.boundaries.emplace_back(0.1);
  }
  for (int i = 0; i < 4; ++i) one.line.stages.push_back(on_device({16 * i, 16 * (i + 1)}, i, 0, 0));
  constexpr std::array hastes{1.0, 1e6};
  price_book book(one.hardware, one.costs);
  const auto found = tapered(book, one.line, hastes);
  CHECK(iteration_of(one, found[0], "auto") < 0.96 * iteration_of(one, one.line, "auto"));
  for (std::size_t i = 1; i < 4; ++i) CHECK(found[0].stages[i].layers.size() <= found[0].stages[i - 1].layers.size());
  for (const auto& s : found[1].stages) CHECK(s.layers.size() == 16);  // as even as can be
}

TEST_CASE("a stage on several parts of the cluster keeps its layers") {
  random_source random(6002);
  auto one = random_instance(random, 6, 2, 4);
  one.line.stages[0].devices.push_back(one.line.stages[1].devices.front());
  constexpr std::array hastes{1.0, 2.0};
  price_book book(one.hardware, one.costs);
  for (const auto& same : tapered(book, one.line, hastes)) CHECK(same == one.line);
}
