// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "../small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using channel = thread_communicator<small_tensor>;

/// What run_on_threads throws when these ranks throw; others wait until the communicator is aborted.
template <class Body>
std::string thrown(int ranks, Body body) {
  auto ends = channel::connect(ranks);
  try {
    run_on_threads(ends, [&](channel& own) {
      body(own.rank());
      CHECK(own.wait(std::chrono::steady_clock::now() + std::chrono::seconds(60), true) == wait_result::aborted);
      throw communication_error("rank " + std::to_string(own.rank()) + " heard: " + own.failure(), {}, 0, {});
    });
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("[threads] run_on_threads: every rank has its own end") {
  std::vector<int> seen(4, -1);
  run_on_threads(channel::connect(4), [&](channel& own) {
    REQUIRE(own.ranks() == 4);
    seen[static_cast<std::size_t>(own.rank())] = own.rank();
  });
  CHECK(seen == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("[threads] run_on_threads: the root cause is thrown, and nobody waits for who has failed") {
  CHECK(thrown(4, [](int r) {
          if (r == 2) throw std::runtime_error("no more");
        }) == "no more");
  CHECK(thrown(3, [](int r) {
          if (r == 1) throw communication_error("stuck", {}, 0, {});
        }) == "rank 0 heard: rank 1 failed: stuck");
  CHECK(thrown(3, [](int) { throw std::runtime_error("all"); }) == "all");
  CHECK_THROWS_AS(run_on_threads(channel::connect(2),
                                 [](channel& own) {
                                   if (own.rank() == 1) throw 7;
                                 }),
                  int);
}
