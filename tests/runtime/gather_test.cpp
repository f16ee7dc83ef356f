// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "../sanitizer_share.hpp"
#include "dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {
using channel = thread_communicator<matrix<float>>;
deadline_time in(double seconds) { return deadline_in(seconds); }
}  // namespace

TEST_CASE("[threads] gather: everybody has everybody's numbers, round after round") {
  constexpr int ranks = 5, rounds = 200 / sanitizer_share;
  auto ends = channel::connect(ranks);
  std::vector<int> wrong(ranks, 0);
  rethrow_first(on_ranks(ranks, [&](int r) {
    std::vector<std::vector<double>> all;
    for (int i = 0; i < rounds; ++i) {
      const auto numbers = [&](int rank) {
        return std::vector<double>(static_cast<std::size_t>((rank + i) % 3), rank + 100.0 * i);
      };
      const bool done = ends[static_cast<std::size_t>(r)].gather(numbers(r), all, in(60)) == wait_result::progress;
      bool right = done && all.size() == ranks;
      for (int k = 0; right && k < ranks; ++k) right = all[static_cast<std::size_t>(k)] == numbers(k);
      wrong[static_cast<std::size_t>(r)] += !right;
    }
  }));
  CHECK(wrong == std::vector<int>(ranks, 0));
}

TEST_CASE("[threads] gather: a round that one rank has finished all finish, also if it aborts at once") {
  for (int instance = 0; instance < 300 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    auto ends = channel::connect(3);
    std::vector<wait_result> first(3), second(3);
    rethrow_first(on_ranks(3, [&](int r) {
      const auto k = static_cast<std::size_t>(r);
      std::vector<std::vector<double>> all;
      first[k] = ends[k].gather({}, all, in(60));
      if (r == instance % 3) ends[k].abort("at once");
      second[k] = ends[k].gather({}, all, in(60));
    }));
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(first[k] == wait_result::progress);
      CHECK(second[k] == wait_result::aborted);
    }
  }
}

TEST_CASE("[threads] gather: nor does a slow link lose a round that is complete") {
  using shaped = shaped_communicator<channel>;
  auto inner = channel::connect(2);
  const auto link_of = [](int from, int) { return hetsched::link{.latency_s = from == 0 ? 0.2 : 0, .bandwidth = 1e9}; };
  std::vector<shaped> ends;
  for (auto& end : inner) ends.emplace_back(end, link_of);
  std::vector<wait_result> first(2);
  rethrow_first(on_ranks(2, [&](int r) {
    const auto k = static_cast<std::size_t>(r);
    std::vector<std::vector<double>> all;
    first[k] = ends[k].gather({}, all, in(60));
    if (r == 0) ends[k].abort("at once");
  }));
  CHECK(first == std::vector<wait_result>(2, wait_result::progress));
}

TEST_CASE("[threads] gather: ends at the deadline where a rank does not come") {
  auto ends = channel::connect(2);
  std::vector<std::vector<double>> all;
  CHECK(ends[0].gather({}, all, in(0.05)) == wait_result::deadline);
  // Nor has the late one a round that the other has given up.
  CHECK(ends[1].gather({}, all, in(0.05)) == wait_result::deadline);
}
