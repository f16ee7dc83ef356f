// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/check/issue_order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../../sanitizer_share.hpp"
#include "../random_schedule.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A random schedule that lists all transfers, none by way of the host, and runs under rendezvous.
bool random_order(random_source& random, schedule& order) {
  order = random_schedule(random);
  bool transfers = false;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      transfers = transfers || detail::is_send(a.kind);
      if (is_transfer(a.kind) && !detail::is_send(a.kind) && !detail::is_receive(a.kind)) return false;
    }
  if (!check(order).empty()) return false;
  if (transfers) return true;
  for (const auto& l : order.lanes)
    if (l.stream != stream::compute && !l.actions.empty()) return false;
  order = split_streams(add_transfers(order));
  return check(order).empty();
}

/// One device after the other does what it can: a plain model of a step. Of every rank two queues, computations and what it
/// issues. An event begins when it is the first of its queue and has what it sends; a communication takes place when it has begun
/// at all its ranks; an event ends with the last of its communications.
bool runs(const schedule& order, const issue_order& issued) {
  using key = std::pair<action_kind, std::pair<int, std::pair<int, int>>>;
  const auto name = [](const action& a) { return key{a.kind, {a.direction, {a.stage, a.microbatch}}}; };
  std::map<key, bool> done;
  const action_index index(order);
  std::vector<action> all;
  for (const auto& l : order.lanes) all.insert(all.end(), l.actions.begin(), l.actions.end());
  const auto ready = [&](const action& a) {
    bool yes = true;
    detail::for_each_need(order, index, a, [&](int n) { yes = yes && (n < 0 || done[name(all[static_cast<std::size_t>(n)])]); });
    return yes;
  };
  std::vector<std::size_t> lane_front(order.lanes.size(), 0), front(issued.of_rank.size(), 0);
  const auto event_end = [&](std::size_t r) {
    const auto& list = issued.of_rank[r];
    std::size_t last = std::min(front[r] + 1, list.size());
    while (last < list.size() && list[last].joined) ++last;
    return last;
  };
  // Whether an action belongs to the first event of its rank, which has what it needs.
  const auto has_begun = [&](const action& a) {
    const auto r = static_cast<std::size_t>(order.rank(a.direction, a.stage));
    bool found = false, can = true;
    for (auto k = front[r]; k < event_end(r); ++k) {
      const auto& own = issued.of_rank[r][k];
      found = found || name(own) == name(a);
      can = can && (detail::is_receive(own.kind) || done[name(own)] || ready(own));
    }
    return found && can;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t l = 0; l < order.lanes.size(); ++l) {
      const auto& actions = order.lanes[l].actions;
      while (lane_front[l] < actions.size()) {
        // An event of computations begins as one.
        std::size_t last = lane_front[l] + 1;
        while (last < actions.size() && actions[last].joined) ++last;
        bool can = true;
        for (auto k = lane_front[l]; k < last; ++k) can = can && (detail::is_issued(order, actions[k]) || ready(actions[k]));
        if (!can) break;
        for (auto k = lane_front[l]; k < last; ++k)
          if (!detail::is_issued(order, actions[k])) done[name(actions[k])] = true;
        lane_front[l] = last;
        moved = true;
      }
    }
    for (std::size_t r = 0; r < front.size(); ++r) {
      const auto last = event_end(r);
      bool all_done = front[r] < last;
      for (auto k = front[r]; k < last; ++k) {
        const action& a = issued.of_rank[r][k];
        action other = a;
        if (a.kind == action_kind::reduce_gradients)
          other.direction = static_cast<std::int16_t>(1 - a.direction);
        else
          other = detail::other_end(a);
        if (!done[name(a)] && has_begun(a) && has_begun(other)) done[name(a)] = done[name(other)] = moved = true;
        all_done = all_done && done[name(a)];
      }
      if (!all_done) continue;
      front[r] = last;
      moved = true;
    }
  }
  for (std::size_t l = 0; l < order.lanes.size(); ++l)
    if (lane_front[l] < order.lanes[l].actions.size()) return false;
  for (std::size_t r = 0; r < front.size(); ++r)
    if (front[r] < issued.of_rank[r].size()) return false;
  return true;
}

/// Whether two communications are between the same two ranks.
bool same_ranks(const schedule& order, const action& a, const action& b) {
  const auto other = [&](const action& x) {
    if (x.kind == action_kind::reduce_gradients) return order.rank(1 - x.direction, x.stage);
    return detail::peer_rank(order, x);
  };
  return other(a) == other(b);
}

}  // namespace

TEST_CASE("every schedule of the library has an order of issue that is proved") {
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    for (const int ranks : {2, 4}) {
      const auto n = static_cast<std::size_t>(ranks);
      const pipeline p{.forward_s = std::vector<double>(n, 1),
                       .backward_s = std::vector<double>(n, 2),
                       .transfer_s = std::vector<double>(n - 1, 0.5)};
      const auto order = build_schedule(name, p, 8);
      const auto all = split_streams(add_transfers(order));
      const auto found = find_issue_order(all);
      CHECK(found.cycles.empty());
      CHECK(check_issue_order(all, found.order).empty());
      CHECK(runs(all, found.order));
      const auto grouped = group_exchanges(all, found.order);
      CHECK(check_issue_order(all, grouped).empty());
      CHECK(runs(all, grouped));
    }
  }
}

TEST_CASE("random orders are proved if and only if they run, and 500 planted cycles are refused") {
  int planted = 0, stuck = 0, shuffled_that_run = 0, groups = 0, relays = 0;
  for (int instance = 0; planted < 500 / sanitizer_share; ++instance) {
    REQUIRE(instance < 20000);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    schedule order;
    if (!random_order(random, order)) continue;
    CAPTURE(instance);
    const auto text = to_csv(order);
    CAPTURE(text);
    const auto found = find_issue_order(order);
    REQUIRE(found.cycles.empty());
    REQUIRE(check_issue_order(order, found.order).empty());
    REQUIRE(runs(order, found.order));

    // In groups of two, the same at both ends.
    const auto grouped = group_exchanges(order, found.order);
    CHECK(runs(order, grouped));
    for (const auto& list : grouped.of_rank)
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (!list[k].joined) continue;
        ++groups;
        const auto& there = grouped.of_rank[static_cast<std::size_t>(detail::peer_rank(order, list[k]))];
        action second = detail::other_end(list[k]), first = detail::other_end(list[k - 1]);
        CHECK(!list[k - 1].joined);
        CHECK(detail::is_send(list[k].kind) != detail::is_send(list[k - 1].kind));
        const auto at = std::find(there.begin(), there.end(), second);
        REQUIRE(at != there.end());
        REQUIRE(at != there.begin());
        first.joined = false;
        CHECK(*(at - 1) == first);
      }

    // Relays beside them: whatever a device does first of what is in a group.
    const auto relayed = group_relays(order, grouped);
    CHECK(check_issue_order(order, relayed).empty());
    CHECK(runs(order, relayed));
    auto apart = relayed;
    for (std::size_t r = 0; r < apart.of_rank.size(); ++r) {
      auto& list = apart.of_rank[r];
      const auto pair_of = [&](const action& a) {
        const int own = static_cast<int>(r), peer = detail::peer_rank(order, a);
        return std::pair(std::min(own, peer), std::max(own, peer));
      };
      for (std::size_t k = 1; k < list.size(); ++k) {
        if (!list[k].joined || grouped.of_rank[r][k].joined) continue;
        ++relays;
        CHECK(detail::is_send(list[k].kind) != detail::is_send(list[k - 1].kind));
        CHECK(!list[k - 1].joined);
        if (random.integer(0, 1) == 0) continue;
        list[k].joined = false;
        if (pair_of(list[k]) < pair_of(list[k - 1])) std::swap(list[k], list[k - 1]);
      }
    }
    CHECK(check_issue_order(order, apart).empty());
    CHECK(runs(order, apart));

    // Two that neighbours issue in two orders.
    const auto r = static_cast<std::size_t>(random.integer(0, order.ranks - 1));
    auto& own = found.order.of_rank[r];
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t i = 0; i < own.size(); ++i)
      for (std::size_t j = i + 1; j < own.size(); ++j)
        if (same_ranks(order, own[i], own[j])) pairs.emplace_back(i, j);
    if (!pairs.empty()) {
      const auto [i, j] = pairs[static_cast<std::size_t>(random.integer(0, static_cast<int>(pairs.size()) - 1))];
      auto wrong = found.order;
      std::swap(wrong.of_rank[r][i], wrong.of_rank[r][j]);
      CHECK(!check_issue_order(order, wrong).empty());
      CHECK(!runs(order, wrong));
      ++planted;
    }
    // Neighbours exchanged anywhere: some run, some do not.
    auto other = found.order;
    for (int k = random.integer(1, 3); k > 0; --k) {
      auto& list = other.of_rank[static_cast<std::size_t>(random.integer(0, order.ranks - 1))];
      if (list.size() < 2) continue;
      const auto at = static_cast<std::size_t>(random.integer(0, static_cast<int>(list.size()) - 2));
      std::swap(list[at], list[at + 1]);
    }
    const bool proved = check_issue_order(order, other).empty();
    CHECK(proved == runs(order, other));
    stuck += !proved;
    shuffled_that_run += proved;
  }
  CHECK(groups > 100 / sanitizer_share);
  CHECK(relays > 50 / sanitizer_share);
  CHECK(stuck > 50 / sanitizer_share);
  CHECK(shuffled_that_run > 50 / sanitizer_share);
}

TEST_CASE("a schedule that gets stuck has no order of issue") {
  // Both ranks send before they receive.
  auto order = make_schedule(2, 1, {0, 1});
  using enum action_kind;
  const auto act = [](action_kind k, int stage) { return action{.kind = k, .stage = stage, .microbatch = 0}; };
  order.lanes[0].actions = {act(forward, 0), act(receive_gradient, 0), act(send_activation, 0), act(backward, 0)};
  order.lanes[1].actions = {act(receive_activation, 1), act(forward, 1), act(backward, 1), act(send_gradient, 1)};
  const auto found = find_issue_order(order);
  REQUIRE(found.cycles.size() == 1);
  CHECK(found.cycles[0].find("waits for") != std::string::npos);
}

TEST_CASE("an order of issue that is not complete is refused") {
  const auto order = split_streams(add_transfers(one_f_one_b({2, 1}, 2)));
  const auto found = find_issue_order(order);
  REQUIRE(check_issue_order(order, found.order).empty());
  const auto says = [&](issue_order issued, const std::string& part) {
    const auto wrong = check_issue_order(order, issued);
    REQUIRE(!wrong.empty());
    CAPTURE(wrong[0]);
    CHECK(wrong[0].find(part) != std::string::npos);
  };
  auto issued = found.order;
  issued.of_rank[0].pop_back();
  says(issued, "rank 0 does not issue");
  issued = found.order;
  issued.of_rank[1].push_back(issued.of_rank[1].front());
  says(issued, "twice");
  issued = found.order;
  issued.of_rank[0].push_back(issued.of_rank[1].front());
  says(issued, "does not list there");
  issued.of_rank.pop_back();
  says(issued, "of 1 ranks");
}

TEST_CASE("what comes by way of the host has its place among what is issued") {
  // One microbatch through three ranks; the last boundary goes by way of the hosts.
  const auto order =
      split_streams(stage_transfers(add_transfers(one_f_one_b({1, 1, 1}, 1)), [](int a, int b) { return a + b == 3; }));
  const auto found = find_issue_order(order);
  REQUIRE(found.cycles.empty());
  CHECK(found.order.of_rank[1].size() == 2);  // takes the activation, and sends the gradient back
  CHECK(found.order.of_rank[2].empty());
  CHECK(found.arrivals[0].empty());
  REQUIRE(found.arrivals[1].size() == 1);
  CHECK(found.arrivals[1][0].what.kind == action_kind::h2d_gradient);
  CHECK(found.arrivals[1][0].behind == 1);
  REQUIRE(found.arrivals[2].size() == 1);
  CHECK(found.arrivals[2][0].what.kind == action_kind::h2d_activation);
  CHECK(found.arrivals[2][0].behind == 0);
}
