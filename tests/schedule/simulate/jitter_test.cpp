// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/simulate/jitter.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

using namespace hetsched;

namespace {

const pipeline four{.forward_s = {1, 2, 1, 1.5}, .backward_s = {2, 3, 2, 3}, .transfer_s = {0.5, 1, 0.2}};

}  // namespace

TEST_CASE("makespans under jitter: none at no spread, the same for the same seed") {
  const auto order = build_schedule("1f1b", four, 8);
  const auto work = make_workload(four, order);
  const double plain_s = simulate(work, order).makespan_s;
  for (const double s : makespans_under_jitter(work, order, {.spread = 0, .samples = 5})) CHECK(s == plain_s);
  const auto some = makespans_under_jitter(work, order, {.spread = 0.2, .samples = 50, .seed = 4});
  CHECK(some == makespans_under_jitter(work, order, {.spread = 0.2, .samples = 50, .seed = 4}));
  CHECK(some != makespans_under_jitter(work, order, {.spread = 0.2, .samples = 50, .seed = 5}));
  CHECK(makespans_under_jitter(work, order, {.samples = 0}).empty());
}

TEST_CASE("one stage: a log-normal factor of mean 1 on its work") {
  const pipeline one{.forward_s = {1}, .backward_s = {2}, .transfer_s = {}};
  const auto order = build_schedule("gpipe", one, 3);
  const auto work = make_workload(one, order);
  for (const double spread : {0.05, 0.5}) {
    CAPTURE(spread);
    constexpr int count = 20'000;
    auto seconds = makespans_under_jitter(work, order, {.spread = spread, .samples = count});
    double mean = 0, mean_log = 0, square_log = 0;
    for (const double s : seconds) {
      const double log = std::log(s / 9);
      mean += s / 9 / count;
      mean_log += log / count;
      square_log += log * log / count;
    }
    // Within five standard errors.
    const double deviation = std::sqrt(std::exp(spread * spread) - 1);
    CHECK(std::abs(mean - 1) < 5 * deviation / std::sqrt(count));
    CHECK(std::abs(mean_log + spread * spread / 2) < 5 * spread / std::sqrt(count));
    CHECK(std::sqrt(square_log - mean_log * mean_log) == doctest::Approx(spread).epsilon(0.03));
    // The quantiles of the normal distribution.
    std::sort(seconds.begin(), seconds.end());
    for (const auto& [share, z] : {std::pair(0.5, 0.0), std::pair(0.9, 1.2816), std::pair(0.1, -1.2816)})
      CHECK(std::log(quantile(seconds, share) / 9) ==
            doctest::Approx(spread * z - spread * spread / 2).scale(1).epsilon(0.05 * spread));
  }
}

TEST_CASE("factors reach every rank's work and every wire's legs, and no others") {
  const auto order = build_schedule("1f1b", four, 8);
  const auto work = make_workload(four, order);
  std::vector<double> ranks{1, 1, 1, 1}, wires(work.wires.size(), 1);
  CHECK(with_factors(work, order, ranks, wires) == work);
  ranks[1] = 3;
  auto slow = with_factors(work, order, ranks, wires);
  CHECK(slow.at(0, 1).forward_s == 6);
  CHECK(slow.at(0, 1).backward_s == 9);
  CHECK(slow.at(0, 0) == work.at(0, 0));
  CHECK(slow.activations == work.activations);
  // Pipelines in which everything is twice as slow take twice as long.
  CHECK(simulate(with_factors(work, order, {2, 2, 2, 2}, std::vector<double>(work.wires.size(), 2)), order).makespan_s ==
        doctest::Approx(2 * simulate(work, order).makespan_s));
  ranks[1] = 1;
  for (std::size_t k = 0; k < wires.size(); ++k) {
    CAPTURE(k);
    wires.assign(wires.size(), 1);
    wires[k] = 4;
    slow = with_factors(work, order, ranks, wires);
    CHECK(slow.work == work.work);
    for (const auto& [before, after] :
         {std::pair(&work.activations, &slow.activations), std::pair(&work.gradients, &slow.gradients)})
      for (std::size_t b = 0; b < before->size(); ++b) {
        const auto &was = (*before)[b].network, &is = (*after)[b].network;
        const bool taken = std::find(was.wires.begin(), was.wires.end(), static_cast<int>(k)) != was.wires.end();
        CHECK(is.occupied_s == was.occupied_s * (taken ? 4 : 1));
        CHECK(is.latency_s == was.latency_s * (taken ? 4 : 1));
      }
  }
}

TEST_CASE("quantiles") {
  const std::vector<double> ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(quantile(ten, 0) == 1);
  CHECK(quantile(ten, 0.1) == 1);
  CHECK(quantile(ten, 0.11) == 2);
  CHECK(quantile(ten, 0.5) == 5);
  CHECK(quantile(ten, 0.9) == 9);
  CHECK(quantile(ten, 0.99) == 10);
  CHECK(quantile(ten, 1) == 10);
  CHECK(quantile({7}, 0.5) == 7);
}
