// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/thread_executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace hetsched;

TEST_CASE("[threads] every index is run once") {
  for (const int threads : {1, 2, 3, 8})
    for (const int count : {0, 1, 2, 7, 1000}) {
      CAPTURE(threads);
      CAPTURE(count);
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      thread_executor{threads}(count, [&](int i) { ++runs[static_cast<std::size_t>(i)]; });
      CHECK(std::all_of(runs.begin(), runs.end(), [](const std::atomic<int>& times) { return times == 1; }));
    }
}

TEST_CASE("[threads] results are visible to the caller without more ado") {
  std::vector<int> squares(500);
  thread_executor{4}(500, [&](int i) { squares[static_cast<std::size_t>(i)] = i * i; });
  for (int i = 0; i < 500; ++i) REQUIRE(squares[static_cast<std::size_t>(i)] == i * i);
}

TEST_CASE("[threads] no more threads than asked for, the caller's among them") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    std::mutex guard;
    std::set<std::thread::id> seen;
    std::atomic<int> inside{0}, most{0};
    thread_executor{threads}(64, [&](int) {
      const int now = ++inside;
      for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
      }
      {
        const std::lock_guard lock(guard);
        seen.insert(std::this_thread::get_id());
      }
      std::this_thread::yield();
      --inside;
    });
    CHECK(most <= threads);
    CHECK(seen.size() <= static_cast<std::size_t>(threads));
    if (threads == 1) CHECK(seen == std::set{std::this_thread::get_id()});
  }
  // Threads really run side by side: each of the two parts waits for the other.
  std::atomic<int> arrived{0};
  thread_executor{2}(2, [&](int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("[threads] an exception reaches the caller when all parts have ended") {
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    std::atomic<int> running{0};
    std::string what;
    try {
      thread_executor{threads}(100, [&](int i) {
        ++running;
        if (i == 13) {
          --running;
          throw std::runtime_error("part 13");
        }
        --running;
      });
    } catch (const std::runtime_error& e) {
      what = e.what();
    }
    CHECK(what == "part 13");
    CHECK(running == 0);
    CHECK_THROWS_AS(thread_executor{threads}(4, [](int) { throw std::logic_error("all of them"); }), std::logic_error);
  }
}
