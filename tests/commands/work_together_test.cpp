// SPDX-License-Identifier: Apache-2.0
// Ranks that wait for work of others, as hetsched-train's do before the first step.
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "../../examples/commands/train/place.hpp"
#include "../runtime/small_layer.hpp"

namespace {

// What each of three ranks says when rank 0 works for two deadlines, and calls alive() meanwhile or not; empty: nothing.
std::vector<std::string> complaints(bool says_so) {
  using namespace std::chrono;
  constexpr int ranks = 3;
  constexpr double deadline_s = 1;
  auto ends = hetsched::thread_communicator<hetsched::test::small_tensor>::connect(ranks);
  std::vector<std::string> said(ranks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        train::work_together(ends[r], deadline_s, "working", [&](const auto& alive) {
          const auto end = steady_clock::now() + duration<double>(r == 0 ? 2 * deadline_s : 0);
          while (steady_clock::now() < end) {
            std::this_thread::sleep_for(milliseconds(10));
            if (says_so) alive();
          }
        });
      } catch (const hetsched::error& e) {
        said[r] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return said;
}

}  // namespace

TEST_CASE("a rank that works longer than the deadline is waited for if it says that it is alive, and else is not") {
  CHECK(complaints(true) == std::vector<std::string>(3));
  const auto said = complaints(false);
  for (const std::size_t r : {1, 2}) {
    CAPTURE(said[r]);
    CHECK(said[r].find("rank " + std::to_string(r) + ", working: ") == 0);
  }
}
