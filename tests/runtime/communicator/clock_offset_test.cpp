// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/clock_offset.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "../dense.hpp"

using namespace hetsched;

namespace {

/// The gather of one rank, replayed: `began` and `ended` are true times per round and rank.
struct replayed_rank {
  int rank = 0;
  const std::vector<std::vector<double>>* began = nullptr;
  const std::vector<std::vector<double>>* ended = nullptr;
  const std::vector<double>* clock_s = nullptr;
  std::size_t round = 0;
  bool in_gather = false;

  double now_s() {
    const auto r = static_cast<std::size_t>(rank);
    const auto& times = in_gather ? *ended : *began;
    const double at = times[round][r] + (*clock_s)[r];
    if (in_gather) ++round;
    in_gather = !in_gather;
    return at;
  }
  wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time) {
    all.assign(clock_s->size(), {});
    if (mine.size() == 1) return wait_result::progress;
    for (std::size_t r = 0; r < all.size(); ++r)
      for (std::size_t k = 0; k < began->size(); ++k)
        all[r].insert(all[r].end(), {(*began)[k][r] + (*clock_s)[r], (*ended)[k][r] + (*clock_s)[r]});
    return wait_result::progress;
  }
};

}  // namespace

TEST_CASE("offsets of made-up clocks: within the error that is told, whatever the delays; exact if both ways take as long") {
  random_source random(3);
  for (int i = 0; i < 300; ++i) {
    const bool fair = i % 3 == 0;
    const std::size_t ranks = static_cast<std::size_t>(random.integer(1, 4)),
                      rounds = static_cast<std::size_t>(random.integer(1, 6));
    std::vector<double> clock_s{random.uniform(-1e3, 1e3)};
    while (clock_s.size() < ranks) clock_s.push_back(random.uniform(-1e3, 1e3));
    std::vector<std::vector<double>> began(rounds, std::vector<double>(ranks)), ended = began;
    double time_s = 0;
    for (std::size_t k = 0; k < rounds; ++k) {
      double last = time_s;
      for (auto& b : began[k]) last = std::max(last, b = fair ? time_s : time_s + random.uniform(0, 1e-3));
      for (auto& e : ended[k]) e = last + (fair ? 1e-3 : random.uniform(1e-5, 2e-3));
      time_s = last + 3e-3;
    }
    std::vector<clock_offset> found;
    for (std::size_t r = 0; r < ranks; ++r) {
      replayed_rank me{static_cast<int>(r), &began, &ended, &clock_s, 0, false};
      const auto offsets = clock_offsets(me, {}, static_cast<int>(rounds), [&] { return me.now_s(); });
      REQUIRE(offsets.size() == ranks);
      if (r > 0)
        for (std::size_t q = 0; q < ranks; ++q) CHECK(offsets[q].seconds == found[q].seconds);
      found = offsets;
    }
    CHECK(found[0].seconds == 0);
    for (std::size_t r = 1; r < ranks; ++r) {
      const double off = std::abs(found[r].seconds - (clock_s[0] - clock_s[r]));
      CAPTURE(i);
      CHECK(off <= found[r].error_s + 1e-9);
      CHECK(found[r].error_s <= 3e-3);
      if (fair) CHECK(off < 1e-9);
    }
  }
}

TEST_CASE("[threads] offsets between threads whose clocks are set apart line their timelines up") {
  const std::vector<double> ahead_s{0, 5, -7.5};
  auto ends = thread_communicator<test::matrix<double>>::connect(3);
  std::vector<std::vector<clock_offset>> found(3);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      found[r] = clock_offsets(ends[r], std::chrono::steady_clock::now() + std::chrono::seconds(60), 8,
                               [&] { return steady_now_s() + ahead_s[r]; });
    });
  for (auto& t : threads) t.join();
  for (std::size_t r = 0; r < 3; ++r) {
    REQUIRE(found[r].size() == 3);
    CHECK(found[0][r].seconds == found[r][r].seconds);
    CHECK(std::abs(found[0][r].seconds + ahead_s[r]) <= found[0][r].error_s + 1e-9);
    timeline t{3, 1, {{{}, static_cast<int>(r), -1, ahead_s[r] + 1, ahead_s[r] + 2}}};
    shift(t, found[r][r].seconds);
    CHECK(std::abs(t.actions[0].start_s - 1) <= found[r][r].error_s + 1e-9);
  }
}

TEST_CASE("no offsets from ranks that do not come") {
  auto ends = thread_communicator<test::matrix<double>>::connect(2);
  CHECK(clock_offsets(ends[0], std::chrono::steady_clock::now() + std::chrono::milliseconds(20)).empty());
}
