// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/detail/standstill.hpp>

#include <chrono>

#include <doctest/doctest.h>

using namespace hetsched;
using namespace std::chrono_literals;

TEST_CASE("a deadline does not count the time in which the process stood still") {
  detail::standstill still;
  const deadline_time start{1000s};
  auto w = still.begin(start + 3s, start);
  CHECK(w.next() == start + 250ms);
  CHECK(!still.is_over(w, start + 1s));  // a busy host
  CHECK(!still.news());
  CHECK(!still.is_over(w, start + 9s));
  CHECK(still.news() == 8.0);
  CHECK(!still.news());
  CHECK(!still.is_over(w, start + 10s));
  CHECK(w.next() == start + 10s + 250ms);
  CHECK(!still.is_over(w, start + 10s + 900ms));
  CHECK(still.is_over(w, start + 11s));

  // Another wait for the same deadline goes on as long; one of before, and one of afterwards, are as they were.
  CHECK(still.begin(start + 3s, start + 9s).until == start + 11s);
  CHECK(still.begin(start + 1s, start + 9s).until == start + 1s);
  CHECK(still.begin(deadline_time{}, start + 9s).until == deadline_time{});
  CHECK(still.begin(start + 12s, start + 9s).until == start + 12s);

  // Another wait that saw the same has no news.
  auto late = detail::standstill::wait{start + 3s, start + 1s};
  CHECK(!still.is_over(late, start + 9s));
  CHECK(!still.news());

  auto again = still.begin(start + 20s, start + 12s);
  CHECK(!still.is_over(again, start + 72s));
  CHECK(still.news() == 60.0);
  CHECK(again.until == start + 80s);
}
