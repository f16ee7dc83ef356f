// SPDX-License-Identifier: Apache-2.0
#include <hetsched/views/schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "mode.hpp"

namespace {

using namespace hetsched;

const pipeline uneven{.forward_s = {1, 2, 1.5}, .backward_s = {2, 3, 2.5}, .transfer_s = {0.25, 0.5}};

}  // namespace

TEST_CASE(VIEWS "actions of a rank are those of the timeline that name it") {
  for (const auto* name : {"1f1b", "gpipe", "zb_h1", "interleaved_1f1b"}) {
    CAPTURE(name);
    const auto t = simulate(uneven, build_schedule(name, uneven, 6)).timeline;
    std::size_t all = 0;
    for (int rank = 0; rank < t.ranks; ++rank) {
      std::vector<timed_action> own;
      std::copy_if(t.actions.begin(), t.actions.end(), std::back_inserter(own),
                   [&](const timed_action& a) { return a.rank == rank; });
      const auto seen = views::actions_of(t, rank);
      CHECK(std::equal(seen.begin(), seen.end(), own.begin(), own.end()));
      CHECK(!seen.empty());
      all += seen.size();
    }
    CHECK(all == t.actions.size());
    CHECK(views::actions_of(t, t.ranks).empty());
  }
}

TEST_CASE(VIEWS "actions in the order of time are all of them, sorted") {
  const auto t = simulate(uneven, build_schedule("1f1b", uneven, 6)).timeline;
  const auto check = [](std::span<const timed_action> of, const auto& seen) {
    REQUIRE(seen.size() == of.size());
    for (std::size_t i = 1; i < seen.size(); ++i) {
      const timed_action &a = seen[i - 1], &b = seen[i];
      CHECK((a.start_s < b.start_s || (a.start_s == b.start_s && a.end_s <= b.end_s)));
      if (a.start_s == b.start_s && a.end_s == b.end_s) CHECK(&a < &b);
    }
    for (const timed_action& a : of)
      CHECK(std::count_if(seen.begin(), seen.end(), [&](const timed_action& s) { return &s == &a; }) == 1);
  };
  check(t.actions, views::in_time_order(t));
  for (int rank = 0; rank < t.ranks; ++rank) check(views::actions_of(t, rank), views::in_time_order(views::actions_of(t, rank)));
  CHECK(!std::is_sorted(t.actions.begin(), t.actions.end(), [](const auto& a, const auto& b) { return a.start_s < b.start_s; }));
}

TEST_CASE(VIEWS "microbatches of a rank are those of its forwards") {
  for (const auto* name : {"1f1b", "interleaved_1f1b", "chimera"}) {
    CAPTURE(name);
    const pipeline even{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0.25}};
    const auto order = build_schedule(name, even, 4);
    for (int rank = 0; rank < order.ranks; ++rank) {
      std::vector<int> expected, seen;
      for (const auto& a : order.lanes[static_cast<std::size_t>(rank)].actions)
        if (a.kind == action_kind::forward) expected.push_back(a.microbatch);
      for (const int m : views::microbatches_of(order, rank)) seen.push_back(m);
      CHECK(seen == expected);
      CHECK(seen.size() >= 4);
    }
  }
}
