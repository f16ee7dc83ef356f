// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/detail/standstill.hpp>

#include <chrono>

#include <doctest/doctest.h>

using namespace hetsched;
using namespace std::chrono_literals;

TEST_CASE("a deadline does not count the time in which the process stood still") {
  const deadline_time start{1000s};
  detail::standstill still(start);
  auto w = still.begin(start + 3s, start);
  auto late = w;
  CHECK(w.next() == start + 250ms);
  CHECK(!still.is_over(w, start + 1s));  // a busy host
  CHECK(!still.news());
  CHECK(!still.is_over(w, start + 9s));
  CHECK(still.news() == 8.0);
  CHECK(!still.news());
  CHECK(!still.is_over(w, start + 10s));
  CHECK(w.next() == start + 10s + 250ms);

  // Another wait that was under way sees it later, and has no news.
  CHECK(!still.is_over(late, start + 10s));
  CHECK(late.until == start + 11s);
  CHECK(!still.news());

  CHECK(!still.is_over(w, start + 10s + 900ms));
  CHECK(still.is_over(w, start + 11s));

  // Another wait for the same deadline goes on as long; one of before, and one of afterwards, are as they were.
  CHECK(still.begin(start + 3s, start + 11s).until == start + 11s);
  CHECK(still.begin(start + 1s, start + 11s).until == start + 1s);
  CHECK(still.begin(deadline_time{}, start + 11s).until == deadline_time{});
  CHECK(still.begin(start + 12s, start + 11s).until == start + 12s);

  auto again = still.begin(start + 20s, start + 12s);
  CHECK(!still.is_over(again, start + 72s));
  CHECK(still.news() == 60.0);
  CHECK(again.until == start + 80s);
}

TEST_CASE("a process that stands still between a deadline's making and the wait for it has it moved, too") {
  const deadline_time start{1000s};
  detail::standstill still(start);
  still.look(start + 900ms);
  // Made at 1 s for 2 s; then the process was stopped until 9 s.
  auto w = still.begin(start + 2s, start + 9s);
  CHECK(w.until == start + 2s + 8s + 100ms);
  CHECK(!still.is_over(w, start + 9s + 10ms));
  CHECK(still.news().has_value());

  // Seen by a thread while nobody waited.
  still.look(start + 30s);
  CHECK(still.begin(start + 10s, start + 30s).until > start + 30s);
}
