// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

#include "../dense.hpp"

using namespace hetsched;

TEST_CASE("a link's latency and bandwidth come back from the times that they make") {
  random_source random(1);
  for (int round = 0; round < 50; ++round) {
    const hetsched::link made{.latency_s = round % 5 == 0 ? 0 : random.uniform(1e-6, 1e-2),
                              .bandwidth = random.uniform(1e6, 1e11)};
    CAPTURE(made.latency_s);
    CAPTURE(made.bandwidth);
    std::vector<link_sample> samples;
    for (int k = 0, n = random.integer(2, 5); k < n; ++k) {
      const bytes_t bytes = (bytes_t{1} << (6 + 4 * k)) + random.integer(0, 9);
      samples.push_back({bytes, {made.transfer_s(static_cast<double>(bytes)), 0}});
    }
    const auto fitted = fit_link(samples);
    CHECK(fitted.latency_s == doctest::Approx(made.latency_s).epsilon(1e-6).scale(1e-6));
    if (made.latency_s < 1e3 * static_cast<double>(samples.back().bytes) / made.bandwidth)
      CHECK(fitted.bandwidth == doctest::Approx(made.bandwidth).epsilon(1e-3));
  }
  // Noise that would make one of them negative does not.
  const std::vector<link_sample> falling{{64, {2e-6, 0}}, {1024, {1e-6, 0}}};
  CHECK(fit_link(falling).bandwidth == 1e12);
  CHECK(fit_link(falling).latency_s > 0);
  const std::vector<link_sample> steep{{64, {1e-9, 0}}, {1024, {1e-6, 0}}, {2048, {4e-6, 0}}};
  CHECK(fit_link(steep).latency_s == 0);
  CHECK_THROWS_AS((void)fit_link(std::vector<link_sample>{{64, {1e-9, 0}}, {64, {1e-9, 0}}}), input_error);
  CHECK_THROWS_AS((void)fit_link(std::vector<link_sample>{{64, {0, 0}}, {65, {1e-9, 0}}}), input_error);
}

TEST_CASE("a link that lets a burst pass has the rate that large messages have") {
  // 36 KB pass at 10 Gbit/s, the rest at 20 Mbit/s.
  std::vector<link_sample> samples;
  for (const bytes_t bytes : {256, 16384, 262144, 524288}) {
    const double all = static_cast<double>(bytes), burst = std::min(all, 36e3);
    samples.push_back({bytes, {1e-4 + burst / 1.25e9 + (all - burst) / 2.5e6, 0}});
  }
  const auto fitted = fit_link(samples);
  CHECK(fitted.transfer_s(524288) == doctest::Approx(samples.back().took.median_s).epsilon(1e-6));
  CHECK(fitted.bandwidth == doctest::Approx(2.5e6).epsilon(0.1));
  CHECK(fitted.transfer_s(256) == doctest::Approx(samples.front().took.median_s).epsilon(1e-6));
  CHECK(largest_residual(fitted, samples) > poor_link_fit);  // 16 KiB pass at once, and no such line has that
  // A single slow small message changes nothing of the rest.
  const std::vector<link_sample> disturbed{{256, {5e-3, 0}}, {16384, {1.1e-4, 0}}, {262144, {3e-4, 0}}, {1048576, {9e-4, 0}}};
  CHECK(fit_link(disturbed).transfer_s(1e7) == doctest::Approx(8.5e-3).epsilon(0.1));
}

TEST_CASE("links between ranks are timed, pair after pair, and all ranks learn the result [threads]") {
  using tensor = test::matrix<double>;
  std::vector<std::vector<std::vector<link_sample>>> told(3);
  const link_options options{.elements = {1, 1000}, .warmup = 1, .repeats = 5};
  run_on_threads(thread_communicator<tensor>::connect(3), [&](thread_communicator<tensor>& comm) {
    auto& mine = told[static_cast<std::size_t>(comm.rank())];
    int call = 0;
    for (const auto& [a, b] : {std::pair{0, 1}, {2, 0}, {1, 2}})
      mine.push_back(profile_link<tensor>(comm, a, b, call++, options));
  });
  for (const auto& mine : told) {
    REQUIRE(mine.size() == 3);
    for (std::size_t pair = 0; pair < 3; ++pair) {
      REQUIRE(mine[pair].size() == 2);
      CHECK(mine[pair][0].bytes == 8);
      CHECK(mine[pair][1].bytes == 8000);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(mine[pair][i].took.median_s > 0);
        CHECK(mine[pair][i].took == told[0][pair][i].took);
      }
      CHECK(fit_link(mine[pair]).bandwidth > 0);
    }
  }
}

TEST_CASE("a link to a rank that does not answer is an error for all [threads]") {
  using tensor = test::matrix<double>;
  CHECK_THROWS_AS(run_on_threads(thread_communicator<tensor>::connect(2),
                                 [&](thread_communicator<tensor>& comm) {
                                   if (comm.rank() == 0)
                                     (void)profile_link<tensor>(comm, 0, 1, 0, {.elements = {1, 2}, .deadline_s = 0.05});
                                 }),
                  communication_error);
}
