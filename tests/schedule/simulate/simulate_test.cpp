// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/simulate/simulate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>

#include "../random_pipeline.hpp"
#include "../random_schedule.hpp"
#include "tick_times.hpp"

using namespace hetsched;

namespace {

/// HARP Eq. 12: sum of (t_i + 2c_i) + (M - 1) t_max.
double closed_form(const pipeline& p, int microbatches) {
  double sum = 0, slowest = 0;
  for (int i = 0; i < p.stages(); ++i) {
    sum += p.compute_s(i) + (i + 1 < p.stages() ? p.round_trip_s(i) : 0.0);
    slowest = std::max(slowest, p.compute_s(i));
  }
  return sum + (microbatches - 1) * slowest;
}

/// By how much a balanced pipeline takes longer than Eq. 12. A link upstream of stage q that is slower than a forward delays
/// the filling, one slower than a backward the draining, each by its excess for every microbatch that q has in flight; the
/// round trip below q is the slack against it.
double excess(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  const double f = p.forward_s[0], b = p.backward_s[0];
  double worst = 0, slowest_upstream = 0;
  for (int q = 1; q < p.stages(); ++q) {
    slowest_upstream = std::max(slowest_upstream, p.activation_s(q - 1));
    double slack = 0;
    for (int k = q; k + 1 < p.stages(); ++k) slack += f + b + p.round_trip_s(k);
    const int in_flight = std::min(warmups[static_cast<std::size_t>(q)], microbatches);
    const double delay = std::max(f, slowest_upstream) + std::max(b, slowest_upstream) - f - b;
    worst = std::max(worst, (in_flight - 1) * delay - slack);
  }
  return worst;
}

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

/// Start times by repeating start = max over predecessors of their ends until nothing changes, over one list of all steps;
/// nothing if that never ends. For schedules of one whole stage per rank. Steps are named by (kind, stage, microbatch).
using step_name = std::tuple<action_kind, int, int>;
std::optional<std::map<step_name, std::pair<double, double>>> by_fixed_point(const pipeline& p, const schedule& order) {
  struct step {
    double occupied = 0, latency = 0;  // of its stage or link; until others can follow from it
    std::vector<step_name> after;
    std::optional<step_name> behind;  // on the same link
  };
  std::map<step_name, step> steps;
  const int last = p.stages() - 1;
  for (int i = 0; i <= last; ++i) {
    const auto k = static_cast<std::size_t>(i);
    std::optional<step_name> previous, previous_activation, previous_gradient;
    for (const action& a : order.lanes[k].actions) {
      const bool forward = a.kind == action_kind::forward;
      const step_name name{a.kind, i, a.microbatch};
      auto& s = steps[name];
      s.occupied = forward ? p.forward_s[k] : p.backward_s[k];
      if (previous) s.after.push_back(*previous);
      if (!forward) s.after.push_back({action_kind::forward, i, a.microbatch});
      if (forward && i > 0) s.after.push_back({action_kind::send_activation, i - 1, a.microbatch});
      if (!forward && i < last) s.after.push_back({action_kind::send_gradient, i + 1, a.microbatch});
      previous = name;
      if (forward ? i == last : i == 0) continue;
      const step_name send{forward ? action_kind::send_activation : action_kind::send_gradient, i, a.microbatch};
      auto& previous_send = forward ? previous_activation : previous_gradient;
      auto& t = steps[send];
      t.occupied = forward ? p.activation_occupied_s(i) : p.gradient_occupied_s(i - 1);
      t.latency = (forward ? p.activation_s(i) : p.gradient_s(i - 1)) - t.occupied;
      t.after.push_back(name);
      t.behind = previous_send;
      previous_send = send;
    }
  }
  std::map<step_name, std::pair<double, double>> times;
  for (const auto& [name, s] : steps) times[name] = {0, s.occupied + s.latency};
  for (std::size_t pass = 0; pass <= steps.size(); ++pass) {
    bool changed = false;
    for (const auto& [name, s] : steps) {
      double start = 0;
      for (const auto& before : s.after) start = std::max(start, times[before].second);
      if (s.behind) start = std::max(start, times[*s.behind].first + steps.at(*s.behind).occupied);
      if (start != times[name].first) {
        times[name] = {start, start + s.occupied + s.latency};
        changed = true;
      }
    }
    if (!changed) return times;
  }
  return std::nullopt;
}

/// Any order in which every stage does every backward somewhere after its forward.
schedule random_order(random_source& random, int stages, int microbatches) {
  std::vector<std::vector<test::plain_action>> ranks;
  for (int i = 0; i < stages; ++i) {
    std::vector<test::plain_action> todo;
    for (int m = 0; m < microbatches; ++m) todo.push_back({action_kind::forward, m});
    auto& rank = ranks.emplace_back();
    while (!todo.empty()) {
      // Mostly near the front: orders that are mixed but often can be run.
      const int reach = random.integer(0, 3) == 0 ? static_cast<int>(todo.size()) - 1 : 0;
      const auto pick = todo.begin() + random.integer(0, std::min(reach, static_cast<int>(todo.size()) - 1));
      const auto a = *pick;
      todo.erase(pick);
      rank.push_back(a);
      if (a.kind == action_kind::forward)
        todo.insert(todo.begin() + random.integer(0, static_cast<int>(todo.size())), {action_kind::backward, a.microbatch});
    }
  }
  return test::plain_schedule(microbatches, ranks);
}

bool is_work(const timed_action& a) { return !is_transfer(a.what.kind); }

}  // namespace

TEST_CASE("balanced pipelines under H-1F1B take HARP's closed form") {
  // One slow link anywhere; all links alike; links that never get faster downstream.
  for (int stages = 2; stages <= 32; ++stages)
    for (const double share : {0.0, 0.25, 1.0 / 3, 0.5, 1.0})
      for (int twentieths = 0; twentieths <= 20; ++twentieths) {
        const double t = 3.0, c = t * twentieths / 20;
        std::vector<pipeline> cases(4, test::balanced(stages, t, share));
        for (int i = 0; i + 1 < stages; ++i) {
          const auto k = static_cast<std::size_t>(i);
          cases[0].transfer_s[k] = i == 0 ? c : 0.0;
          cases[1].transfer_s[k] = i == (stages - 2) / 2 ? c : 0.0;
          cases[2].transfer_s[k] = c;
          cases[3].transfer_s[k] = c * (i + 1) / (stages - 1);
        }
        for (const auto& p : cases)
          for (const int microbatches : {1, 2, 7, 64, 200}) {
            const double measured = makespan(p, h1f1b_warmups(p, t, 0.0), microbatches);
            if (close(measured, closed_form(p, microbatches))) continue;
            CAPTURE(test::text(p));
            CAPTURE(microbatches);
            CHECK(measured == doctest::Approx(closed_form(p, microbatches)).epsilon(1e-9));
          }
      }
}

TEST_CASE("where the closed form ends: a slow link before a faster one, and by how much it is exceeded") {
  random_source random(12);
  int exceeded = 0;
  for (int n = 0; n < 20000; ++n) {
    const int stages = random.integer(2, n % 10 == 0 ? 32 : 7);
    auto p = test::balanced(stages, 2.0, random.integer(0, 9) == 0 ? random.integer(0, 1) : random.uniform());
    const int kind = random.integer(0, 2);
    for (double& c : p.transfer_s)
      c = kind == 0 ? random.uniform(0, 2) : kind == 1 ? random.integer(0, 4) / 2.0 : 2 - random.uniform() * random.uniform(0, 2);
    const auto warmups = h1f1b_warmups(p, 2.0, 0.0);
    const int microbatches = random.integer(1, 60);
    const double over = excess(p, warmups, microbatches);
    exceeded += over > 1e-9;
    const double measured = makespan(p, warmups, microbatches);
    if (close(measured, closed_form(p, microbatches) + over)) continue;
    CAPTURE(test::text(p));
    CAPTURE(microbatches);
    CHECK(measured == doctest::Approx(closed_form(p, microbatches) + over).epsilon(1e-9));
  }
  CHECK(exceeded > 1000);
}

TEST_CASE("up to three quarters of a stage's time no link breaks the closed form") {
  random_source random(13);
  for (int n = 0; n < 5000; ++n) {
    auto p = test::balanced(random.integer(2, 32), 1.0, random.uniform(0.25, 0.75));
    for (double& c : p.transfer_s) c = random.uniform(0, 0.75);
    const int microbatches = random.integer(1, 200);
    CAPTURE(test::text(p));
    CAPTURE(microbatches);
    REQUIRE(close(makespan(p, h1f1b_warmups(p, 1.0, 0.0), microbatches), closed_form(p, microbatches)));
  }
}

TEST_CASE("1F1B needs about twice as long where a transfer takes as long as a stage, GPipe longer than H-1F1B") {
  auto p = test::balanced(2, 1.0);
  p.transfer_s = {1.0};
  const int m = 1000;
  CHECK(makespan(p, one_f_one_b_warmups(2), m) / closed_form(p, m) == doctest::Approx(2).epsilon(0.01));
  CHECK(makespan(p, {m, m}, m) > 1.3 * closed_form(p, m));
}

TEST_CASE("the fast path equals the event simulator bit for bit, on every stage") {
  random_source random(21);
  for (int n = 0; n < 3000; ++n) {
    const int stages = random.integer(1, n % 20 == 0 ? 40 : 8);
    const auto p = test::random_pipeline(random, stages);
    const int microbatches = random.integer(1, 40);
    const auto warmups = n % 7 == 0 ? std::vector<int>(p.forward_s.size(), microbatches) : test::random_warmups(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    CAPTURE(microbatches);
    const auto result = simulate(make_workload(p, one_f_one_b(warmups, microbatches)), one_f_one_b(warmups, microbatches),
                                 {.semantics = send_semantics::buffered, .timeline = false});
    REQUIRE(makespan(p, warmups, microbatches) == result.makespan_s);
    REQUIRE(stage_ends(p, warmups, microbatches) == result.rank_end_s);
    REQUIRE(result.timeline.actions.empty());
  }
}

TEST_CASE("rounds that are not played change nothing but the last digits, also where stages and links drift apart slowly") {
  random_source random(22);
  for (int n = 0; n < 2000; ++n) {
    const int stages = random.integer(1, n % 20 == 0 ? 40 : 8);
    auto p = test::random_pipeline(random, stages);
    if (n % 4 == 0)  // all stages alike, but for as little as a part in a million
      for (int i = 0; i < stages; ++i) {
        at(p.forward_s, i) = 1 + (n % 8 == 0 ? 1e-6 * random.uniform(0, 1) : 0);
        at(p.backward_s, i) = 2;
      }
    const int microbatches = random.integer(1, 2000);
    const auto warmups =
        n % 7 == 0 ? std::vector<int>(p.forward_s.size(), std::min(microbatches, 50)) : test::random_warmups(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    CAPTURE(microbatches);
    const double exact = makespan(p, warmups, microbatches);
    REQUIRE(std::abs(detail::unchecked::quick_makespan(p, warmups, microbatches) - exact) <= 1e-10 * exact);
  }
}

TEST_CASE("the event simulator equals a fixed point over all steps, for any order of the stages") {
  random_source random(22);
  int ran = 0, stuck = 0;
  for (int n = 0; n < 3000; ++n) {
    const int stages = random.integer(1, 4), microbatches = random.integer(1, 5);
    const auto p = test::random_pipeline(random, stages);
    const auto order =
        n % 3 == 0 ? one_f_one_b(test::random_warmups(random, stages), microbatches) : random_order(random, stages, microbatches);
    CAPTURE(test::text(p));
    CAPTURE(test::text(order));
    const auto expected = by_fixed_point(p, order);
    if (!expected) {
      ++stuck;
      REQUIRE_THROWS_AS((void)simulate(p, order), input_error);
      continue;
    }
    ++ran;
    const auto result = simulate(p, order);
    REQUIRE(result.timeline.actions.size() == expected->size());
    double busy = 0, transfers = 0, exposed = 0, end = 0;
    for (const auto& a : result.timeline.actions) {
      REQUIRE(expected->at({a.what.kind, a.rank, a.what.microbatch}) == std::pair{a.start_s, a.end_s});
      end = std::max(end, a.end_s);
      (is_work(a) ? busy : transfers) += a.end_s - a.start_s;
    }
    for (int i = 0; i < stages; ++i) {
      const auto& list = order.lanes[static_cast<std::size_t>(i)].actions;
      double free = 0;
      int in_flight = 0, peak = 0;
      for (const action& a : list) {
        const bool forward = a.kind == action_kind::forward;
        peak = std::max(peak, in_flight += forward ? 1 : -1);
        const auto [start, finish] = expected->at({a.kind, i, a.microbatch});
        if (forward ? i > 0 : i + 1 < stages) {
          // The receiver is idle from `free` to `start`: what of that lies inside the transfer is exposed.
          const auto [sent, arrived] = expected->at(forward ? step_name{action_kind::send_activation, i - 1, a.microbatch}
                                                            : step_name{action_kind::send_gradient, i + 1, a.microbatch});
          exposed += std::max(0.0, std::min(start, arrived) - std::max(free, sent));
        }
        free = finish;
      }
      CHECK(result.peak_in_flight[static_cast<std::size_t>(i)] == peak);
      CHECK(result.peak_memory_bytes[static_cast<std::size_t>(i)] == peak);
      CHECK(result.rank_end_s[static_cast<std::size_t>(i)] == free);
      CHECK(result.rank_start_s[static_cast<std::size_t>(i)] ==
            expected->at({list.front().kind, i, list.front().microbatch}).first);
    }
    CHECK(result.makespan_s == end);
    CHECK(result.bubble_ratio == doctest::Approx(1 - busy / (stages * end)).epsilon(1e-9));
    CHECK(result.overlap_ratio == doctest::Approx(transfers > 0 ? 1 - exposed / transfers : 1).epsilon(1e-9));
  }
  CHECK(ran > 1200);
  CHECK(stuck > 300);
}

TEST_CASE("the event simulator equals a play by ticks: any stage map, wires shared, three legs, groups, both semantics") {
  random_source random(31);
  int ran[2] = {0, 0}, stuck[2] = {0, 0}, shared = 0, only_rendezvous = 0;
  for (int n = 0; n < 12000; ++n) {
    const auto order = test::random_schedule(random);
    const auto w = test::random_workload(random, order);
    const auto semantics = random.integer(0, 1) == 0 ? send_semantics::buffered : send_semantics::rendezvous;
    const auto kind = static_cast<std::size_t>(semantics);
    CAPTURE(n);
    CAPTURE(test::text(order));
    CAPTURE(test::text(w));
    CAPTURE(kind);
    const test::tick_times expected(w, order, semantics);
    if (expected.deadlock) {
      ++stuck[kind];
      only_rendezvous += kind == 1 && !test::tick_times(w, order, send_semantics::buffered).deadlock;
      REQUIRE_THROWS_WITH_AS((void)simulate(w, order, {.semantics = semantics}), doctest::Contains("deadlock: rank "),
                             input_error);
      continue;
    }
    ++ran[kind];
    const auto result = simulate(w, order, {.semantics = semantics});
    REQUIRE(result.timeline.actions.size() == expected.actions.size());
    std::vector<double> start(static_cast<std::size_t>(order.ranks), 0.0), end(start);
    for (const auto& a : result.timeline.actions) {
      CAPTURE(to_text(a.what));
      const auto& e = expected.actions.at({a.what.kind, a.what.direction, a.what.stage, a.what.microbatch});
      REQUIRE(a.start_s == e.start);
      REQUIRE(a.end_s == e.end);
      REQUIRE(a.rank == e.rank);
      REQUIRE(a.peer == e.peer);
    }
    double busy = 0, last = 0;
    for (std::size_t r = 0; r < start.size(); ++r) {
      REQUIRE(result.rank_start_s[r] == std::max(0, expected.rank_start[r]));
      REQUIRE(result.rank_end_s[r] == expected.rank_end[r]);
      REQUIRE(result.rank_busy_s[r] == expected.rank_busy[r]);
      busy += expected.rank_busy[r];
      last = std::max<double>(last, expected.rank_end[r]);
    }
    REQUIRE(result.makespan_s == last);
    REQUIRE(result.wire_busy_s == expected.wire_busy);
    if (last > 0) REQUIRE(result.bubble_ratio == doctest::Approx(std::max(0.0, 1 - busy / (order.ranks * last))));
    REQUIRE(result.overlap_ratio ==
            doctest::Approx(expected.transfers > 0 ? std::max(0.0, 1 - expected.exposed / expected.transfers) : 1));
    for (const double t : expected.wire_busy) shared += t > 0;
  }
  CHECK(ran[0] > 2000);
  CHECK(ran[1] > 1000);
  CHECK(stuck[0] > 300);
  CHECK(stuck[1] > 300);
  CHECK(only_rendezvous > 100);
  CHECK(shared > 5000);
}

TEST_CASE("inference is a flow shop: every stage and link takes one microbatch after the other") {
  random_source random(418);
  for (int n = 0; n < 300; ++n) {
    const auto p = test::random_pipeline(random, random.integer(1, 6));
    const int microbatches = random.integer(1, 9);
    INFO(test::text(p), " ", microbatches);
    const auto stages = static_cast<std::size_t>(p.stages());
    std::vector<double> stage_free_s(stages), link_free_s(stages);
    double end_s = 0;
    for (int m = 0; m < microbatches; ++m) {
      end_s = 0;
      for (std::size_t i = 0; i < stages; ++i) {
        end_s = stage_free_s[i] = std::max(stage_free_s[i], end_s) + p.forward_s[i];
        if (i + 1 == stages) break;
        const double start_s = std::max(link_free_s[i], end_s);
        link_free_s[i] = start_s + p.activation_occupied_s(static_cast<int>(i));
        end_s = start_s + p.transfer_s[i];
      }
    }
    const auto order = forward_schedule(p.stages(), microbatches);
    CHECK(check(order).empty());
    const auto work = make_workload(p, order);
    const auto played = simulate(work, order);
    CHECK(played.makespan_s == doctest::Approx(end_s));
    CHECK(simulate(p, split_streams(add_transfers(order))).makespan_s == doctest::Approx(end_s));
    // With equal microbatches the bound is met.
    CHECK(makespan_lower_bound(p, work, order) == doctest::Approx(end_s));
    CHECK(makespan_lower_bound(work, order) <= end_s * (1 + 1e-9));
    CHECK(played.peak_in_flight == std::vector<int>(stages, microbatches));
  }
}

TEST_CASE("a two-stage iteration by hand") {
  // f = 1, b = 2, c = 1, one microbatch in flight at a time: F0 | act | F0 B0 | grad | B0, twice over on stage 0.
  const pipeline p{{1, 1}, {2, 2}, {1}, {}};
  const auto result = simulate(p, one_f_one_b({1, 1}, 2));
  CHECK(result.makespan_s == 16);
  CHECK(result.rank_start_s == std::vector<double>{0, 2});
  CHECK(result.rank_end_s == std::vector<double>{16, 13});
  CHECK(result.rank_busy_s == std::vector<double>{6, 6});
  CHECK(result.wire_busy_s == std::vector<double>{2, 2});
  CHECK(result.peak_in_flight == std::vector{1, 1});
  CHECK(result.peak_memory_bytes == std::vector<double>{1, 1});
  CHECK(result.period_s == 8);
  CHECK(result.bubble_ratio == doctest::Approx(1 - 12.0 / 32));
  CHECK(result.overlap_ratio == 0);  // somebody waits for every transfer
  CHECK(result.timeline.ranks == 2);
  CHECK(result.timeline.microbatches == 2);
  using enum action_kind;
  const auto timed = [](action_kind kind, int rank, int microbatch, int peer, double start, double end) {
    return timed_action{{.kind = kind, .stage = rank, .microbatch = microbatch}, rank, peer, start, end};
  };
  const std::vector<timed_action> expected{
      timed(forward, 0, 0, -1, 0, 1),    timed(backward, 0, 0, -1, 6, 8),       timed(forward, 0, 1, -1, 8, 9),
      timed(backward, 0, 1, -1, 14, 16), timed(send_activation, 0, 0, 1, 1, 2), timed(send_activation, 0, 1, 1, 9, 10),
      timed(forward, 1, 0, -1, 2, 3),    timed(backward, 1, 0, -1, 3, 5),       timed(forward, 1, 1, -1, 10, 11),
      timed(backward, 1, 1, -1, 11, 13), timed(send_gradient, 1, 0, 0, 5, 6),   timed(send_gradient, 1, 1, 0, 13, 14)};
  CHECK(result.timeline.actions == expected);
}

TEST_CASE("timelines are ordered by rank, work before transfers, then time, and nothing overlaps that must not") {
  random_source random(23);
  for (int n = 0; n < 200; ++n) {
    const int stages = random.integer(1, 6), microbatches = random.integer(1, 12);
    const auto p = test::random_pipeline(random, stages);
    const auto result = simulate(p, one_f_one_b(test::random_warmups(random, stages), microbatches));
    CAPTURE(test::text(p));
    const auto& actions = result.timeline.actions;
    REQUIRE(std::is_sorted(actions.begin(), actions.end(), [](const timed_action& a, const timed_action& b) {
      return std::tuple{a.rank, !is_work(a), a.start_s} < std::tuple{b.rank, !is_work(b), b.start_s};
    }));
    // A resource is a rank, or one direction of a link.
    std::map<std::tuple<int, int>, std::vector<std::pair<double, double>>> resources;
    for (const auto& a : actions) {
      const double free_s = a.peer < 0        ? a.end_s
                            : a.peer > a.rank ? a.start_s + p.activation_occupied_s(a.rank)
                                              : a.start_s + p.gradient_occupied_s(a.peer);
      resources[{a.rank, a.peer}].emplace_back(a.start_s, free_s);
    }
    for (auto& [name, times] : resources) {
      std::sort(times.begin(), times.end());
      for (std::size_t k = 1; k < times.size(); ++k) REQUIRE(times[k - 1].second <= times[k].first);
    }
  }
}

TEST_CASE("64 stages and 512 microbatches: one entry per action, GPipe holds everything") {
  auto p = test::balanced(64, 1.0);
  const auto result = simulate(p, gpipe(64, 512));
  CHECK(result.timeline.actions.size() == 64u * 512 * 2 + 63u * 512 * 2);
  CHECK(result.peak_in_flight == std::vector<int>(64, 512));
  CHECK(result.overlap_ratio == 1);  // no transfer takes time
  CHECK(result.makespan_s == doctest::Approx(closed_form(p, 512)));
}

TEST_CASE("one stage, and stages that take no time") {
  const auto alone = simulate(pipeline{{1}, {2}, {}, {}}, one_f_one_b({1}, 5));
  CHECK(alone.makespan_s == 15);
  CHECK(alone.period_s == doctest::Approx(3));
  CHECK(alone.bubble_ratio == 0);
  CHECK(alone.overlap_ratio == 1);
  const pipeline nothing{{0, 0}, {0, 0}, {0}, {}};
  const auto instant = simulate(nothing, one_f_one_b({2, 1}, 3));
  CHECK(instant.makespan_s == 0);
  CHECK(instant.period_s == 0);
  CHECK(instant.bubble_ratio == 0);
  CHECK(makespan(nothing, {2, 1}, 3) == 0);
}

TEST_CASE("the measured period is that of the cycle ratio where the run is long") {
  random_source random(24);
  for (int n = 0; n < 300; ++n) {
    const int stages = random.integer(1, 5);
    const auto p = test::random_pipeline(random, stages);
    const auto warmups = test::random_warmups(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    // A window of 4,000 microbatches is off by at most the longest cycle, of which warmups[0] are in flight.
    const int microbatches = 8000 + random.integer(0, 3);
    const auto result = simulate(p, one_f_one_b(warmups, microbatches));
    const double expected = period(p, warmups);
    REQUIRE(std::abs(result.period_s - expected) <= expected * warmups[0] / 2000.0);
    // One at a time, every microbatch takes the same.
    const std::vector<int> ones(warmups.size(), 1);
    REQUIRE(simulate(p, ones, 2 + n % 40).period_s == doctest::Approx(period(p, ones)).epsilon(1e-9));
  }
  const auto p = test::balanced(4, 3.0);
  CHECK(simulate(p, {4, 3, 2, 1}, 16).period_s == doctest::Approx(3));
  CHECK(simulate(p, {4, 3, 2, 1}, 64).period_s == doctest::Approx(3));
  CHECK(simulate(p, {1, 1, 1, 1}, 64).period_s == doctest::Approx(12));
  CHECK(simulate(p, gpipe(4, 64)).period_s == doctest::Approx(3).epsilon(0.2));  // its gap lies in the middle
  CHECK(simulate(p, {1, 1, 1, 1}, 1).period_s == doctest::Approx(12));
}

TEST_CASE("what cannot run is refused with a reason") {
  const auto p = test::balanced(2, 1.0);
  CHECK_THROWS_WITH_AS((void)makespan(p, {1, 2}, 4),
                       "deadlock: stage 1 starts 2 forwards before its first backward, but stage 0 only 1", input_error);
  CHECK_NOTHROW((void)makespan(p, {1, 2}, 1));  // both counts mean 1
  CHECK_THROWS_AS((void)makespan(p, {1}, 4), input_error);
  CHECK_THROWS_AS((void)makespan(p, {1, 0}, 4), input_error);
  CHECK_THROWS_AS((void)makespan(p, {1, 1}, 0), input_error);
  CHECK_THROWS_AS((void)makespan({{-1}, {1}, {}, {}}, {1}, 1), input_error);

  using enum action_kind;
  using test::plain_schedule;
  const auto stuck = plain_schedule(2, {{{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}},
                                        {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, stuck), "deadlock: rank 0 waits at 0B0, rank 1 waits at 1F1", input_error);
  const auto reversed = plain_schedule(1, {{{forward, 0}, {backward, 0}}, {{backward, 0}, {forward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, reversed), "deadlock: rank 0 waits at 0B0, rank 1 waits at 1B0", input_error);
  const auto partial = plain_schedule(1, {{{forward, 0}, {backward, 0}}, {{forward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, partial), "1B0 is missing", input_error);
  const auto both = plain_schedule(1, {{{forward, 0}, {backward, 0}, {backward_input, 0}}, {{forward, 0}, {backward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, both), "0B0 is listed whole and in parts", input_error);
  const auto half = plain_schedule(1, {{{forward, 0}, {backward_input, 0}}, {{forward, 0}, {backward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, half), "0W0 is missing", input_error);
  const auto headless = plain_schedule(1, {{{forward, 0}, {backward, 0}}, {{backward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, headless), "1F0 is missing", input_error);
  const auto short_of_one = plain_schedule(2, {{{forward, 0}, {backward, 0}}, {{forward, 0}, {backward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, short_of_one), "0F1 is missing", input_error);
  const auto twice = plain_schedule(1, {{{forward, 0}, {forward, 0}, {backward, 0}}, {{forward, 0}, {backward, 0}}});
  CHECK_THROWS_WITH_AS((void)simulate(p, twice), "0F0 is listed twice", input_error);
  CHECK_THROWS_AS((void)simulate(p, gpipe(3, 2)), input_error);
  CHECK_THROWS_AS((void)simulate(pipeline{{1}, {1}, {1}, {}}, gpipe(1, 2)), input_error);

  const auto order = gpipe(2, 1);
  const auto changed = [&](auto change) {
    auto other = order;
    change(other);
    return other;
  };
  const auto w = make_workload(p, order);
  const auto refused = [&](const schedule& other, const char* why) {
    CHECK_THROWS_WITH_AS((void)simulate(w, other), doctest::Contains(why), input_error);
  };
  refused(changed([](schedule& s) { s.rank_of = {1, 0}; }), "rank 0 0F0 belongs to rank 1");
  refused(changed([](schedule& s) { s.rank_of.pop_back(); }), "the stage map has 1 entries for 2 stages");
  refused(changed([](schedule& s) { s.rank_of[1] = 2; }), "the stage map names rank 2");
  refused(changed([](schedule& s) { s.lanes.pop_back(); }), "the schedule has fewer lanes than ranks");
  refused(changed([](schedule& s) { std::swap(s.lanes[0], s.lanes[1]); }), "lane 0 is not the compute stream of rank 0");
  refused(changed([](schedule& s) { s.lanes[0].actions[0].microbatch = 7; }), "rank 0 0F7 is not of one of 1 microbatches");
  refused(changed([](schedule& s) { s.lanes[0].actions[0].joined = true; }), "rank 0 0F0 is joined to nothing");
  refused(changed([](schedule& s) {
            s.lanes.push_back({.rank = 0, .stream = stream::send, .peer = 1, .actions = {s.lanes[0].actions.back()}});
            s.lanes[0].actions.pop_back();
          }),
          "rank 0 0B0 does not belong to a send stream");
  refused(changed([](schedule& s) { s.lanes[0].actions.push_back({.kind = send_activation}); }), "1RECV_F0 is missing");
  refused(changed([](schedule& s) { s.lanes[1].actions.push_back({.kind = receive_activation, .stage = 1}); }),
          "0SEND_F0 is missing");
  refused(changed([](schedule& s) { s.lanes[0].actions.push_back({.kind = d2h_activation}); }), "0NET_F0 is missing");
  refused(changed([](schedule& s) { s.lanes[0].actions.push_back({.kind = network_activation}); }), "0D2H_F0 is missing");
  refused(changed([](schedule& s) { s.lanes[1].actions.push_back({.kind = h2d_activation, .stage = 1}); }), "0D2H_F0 is missing");
  for (const auto kind : {send_gradient, d2h_gradient, network_gradient, receive_activation, h2d_activation})
    refused(changed([&](schedule& s) { s.lanes[0].actions.push_back({.kind = kind}); }), "crosses no boundary between stages");
  for (const auto kind : {send_activation, d2h_activation, network_activation, receive_gradient, h2d_gradient})
    refused(changed([&](schedule& s) { s.lanes[1].actions.push_back({.kind = kind, .stage = 1}); }),
            "crosses no boundary between stages");
  refused(changed([](schedule& s) {
            s.lanes[0].actions.push_back({.kind = send_activation});
            s.lanes[0].actions.push_back({.kind = forward, .joined = true});
          }),
          "rank 0 0F0 cannot be one event with 0SEND_F0");
  auto other_size = w;
  other_size.ranks = 3;
  CHECK_THROWS_WITH_AS((void)simulate(other_size, order), doctest::Contains("does not fit a workload"), input_error);
}

TEST_CASE("what is not sound is refused with the first sentence of check") {
  random_source random(35);
  int refused = 0;
  for (int n = 0; n < 4000; ++n) {
    auto order = test::random_schedule(random, {.swaps = false});
    const auto w = test::random_workload(random, order);
    auto& actions = order.lanes[static_cast<std::size_t>(random.integer(0, static_cast<int>(order.lanes.size()) - 1))].actions;
    if (actions.empty()) continue;
    const auto at = random.integer(0, static_cast<int>(actions.size()) - 1);
    auto& changed = actions[static_cast<std::size_t>(at)];
    switch (random.integer(0, 6)) {
      case 0:
        actions.erase(actions.begin() + at);
        break;
      case 1:
        actions.push_back(changed);
        break;
      case 2:
        changed.kind = static_cast<action_kind>(random.integer(0, action_kinds));
        break;
      case 3:
        changed.stage += random.integer(-1, 1);
        break;
      case 4:
        changed.microbatch = random.integer(-1, order.microbatches);
        break;
      case 5:
        changed.direction = static_cast<std::int16_t>(changed.direction + random.integer(-1, 1));
        break;
      default:
        changed.joined = true;
    }
    // Ranks that wait for each other are another matter.
    const auto found = check(order, {.semantics = {}});
    std::string thrown;
    try {
      (void)simulate(w, order);
    } catch (const input_error& e) {
      thrown = e.what();
    }
    refused += !found.empty();
    if (found.empty())
      REQUIRE((thrown.empty() || thrown.starts_with("deadlock: ")));
    else
      REQUIRE(thrown == found.front());
  }
  CHECK(refused > 2000);
}

TEST_CASE("three legs in a row: the next tensor is copied while this one is on the network") {
  // Copies of 1, network of 2: activations leave the first stage at 1, 2, 3 and arrive at 5, 7, 9.
  const auto order = gpipe(2, 3);
  workload w = make_workload({{1, 1}, {1, 1}, {0}, {}}, order);
  w.wires = {{"copy out", 1}, {"network", 1}, {"copy in", 1}, {"back", 1}};
  w.activations = {{.staged = true, .d2h = {{0, -1, -1}, 1, 0}, .network = {{1, -1, -1}, 2, 0}, .h2d = {{2, -1, -1}, 1, 0}}};
  w.gradients = {{.staged = false, .d2h = {}, .network = {{3, -1, -1}, 0, 0.5}, .h2d = {}}};
  const auto result = simulate(w, order);
  CHECK(result.rank_start_s == std::vector<double>{0, 5});
  CHECK(result.rank_end_s == std::vector<double>{14.5, 13});  // F at 5, 7, 9; B at 10, 11, 12; latency 0.5
  CHECK(result.wire_busy_s == std::vector<double>{3, 6, 3, 0});
  using enum action_kind;
  std::vector<double> ends;
  for (const auto& a : result.timeline.actions)
    if (a.what.kind == h2d_activation) {
      CHECK(a.rank == 0);
      CHECK(a.peer == 1);
      CHECK(a.what.stage == 1);
      ends.push_back(a.end_s);
    }
  CHECK(ends == std::vector<double>{5, 7, 9});
}

TEST_CASE("two boundaries share a NIC: first come, first served; with room for two nobody waits") {
  const auto order = gpipe(3, 2);
  workload w = make_workload({{1, 1, 1}, {1, 1, 1}, {0, 0}, {}}, order);
  w.wires = {{"nic", 1}};
  for (auto& r : w.activations) r.network = {{0, -1, -1}, 3, 0};
  for (auto& r : w.gradients) r.network = {};
  // Both boundaries lead over one wire: 1-4 and 4-7 from rank 0; rank 1 asks at 5 and 8, and gets 7-10 and 10-13.
  const auto one = simulate(w, order);
  CHECK(one.rank_start_s == std::vector<double>{0, 4, 10});
  CHECK(one.rank_end_s[2] == 16);
  w.wires[0].capacity = 2;
  // 1-4 and 2-5, then 5-8 and 6-9.
  const auto two = simulate(w, order);
  CHECK(two.rank_start_s == std::vector<double>{0, 4, 8});
  CHECK(two.rank_end_s[2] == 12);
}

TEST_CASE("rendezvous holds both lanes; buffered sends take no time of theirs") {
  using enum action_kind;
  auto order = test::plain_schedule(2, {{{forward, 0},
                                         {send_activation, 0},
                                         {forward, 1},
                                         {send_activation, 1},
                                         {receive_gradient, 0},
                                         {backward, 0},
                                         {receive_gradient, 1},
                                         {backward, 1}},
                                        {{receive_activation, 0},
                                         {forward, 0},
                                         {receive_activation, 1},
                                         {forward, 1},
                                         {backward, 0},
                                         {send_gradient, 0},
                                         {backward, 1},
                                         {send_gradient, 1}}});
  const pipeline p{{1, 1}, {1, 1}, {2}, {}};
  // Buffered: 1-3 and 3-5 on the wire; forwards 3 and 5, backwards 6 and 7; gradients 7-9, 9-11.
  CHECK(simulate(p, order).rank_end_s == std::vector<double>{12, 8});
  // Rendezvous: rank 0 computes at 0, sends 1-3, computes 3-4, sends 4-6; rank 1 forwards 3 and 6, backward 7, sends 8-10 ...
  const auto met = simulate(p, order, {.semantics = send_semantics::rendezvous});
  CHECK(met.rank_end_s == std::vector<double>{14, 11});

  // The known trap: both ranks send first. Buffered it runs; with rendezvous nobody receives.
  std::swap(order.lanes[0].actions[4], order.lanes[0].actions[3]);  // receives a gradient before it sends what that needs
  CHECK_THROWS_WITH_AS((void)simulate(p, order), "deadlock: rank 0 waits at 0RECV_B0, rank 1 waits at 1RECV_F1", input_error);
}

TEST_CASE("a schedule that deadlocks under rendezvous but not when buffered") {
  using enum action_kind;
  // After a forward each, rank 0 sends its second activation while rank 1 sends its first gradient.
  auto order = test::plain_schedule(2, {{{forward, 0},
                                         {send_activation, 0},
                                         {forward, 1},
                                         {send_activation, 1},
                                         {receive_gradient, 0},
                                         {backward, 0},
                                         {receive_gradient, 1},
                                         {backward, 1}},
                                        {{receive_activation, 0},
                                         {forward, 0},
                                         {backward, 0},
                                         {send_gradient, 0},
                                         {receive_activation, 1},
                                         {forward, 1},
                                         {backward, 1},
                                         {send_gradient, 1}}});
  const pipeline p{{1, 1}, {1, 1}, {2}, {}};
  CHECK_NOTHROW((void)simulate(p, order));
  CHECK_THROWS_WITH_AS((void)simulate(p, order, {.semantics = send_semantics::rendezvous}),
                       "deadlock: rank 0 waits at 0SEND_F1, rank 1 waits at 1SEND_B0", input_error);
  // One group on each side resolves it.
  order.lanes[0].actions[4].joined = order.lanes[1].actions[4].joined = true;
  CHECK_NOTHROW((void)simulate(p, order, {.semantics = send_semantics::rendezvous}));
}

TEST_CASE("fused forward and backward, split backward, recompute and work on parameters by hand") {
  using enum action_kind;
  auto order = test::plain_schedule(2, {{{forward, 0},
                                         {forward, 1},
                                         {recompute, 0},
                                         {backward_input, 0},
                                         {backward_weight, 0},
                                         {backward, 1},
                                         {optimizer, no_microbatch}}});
  order.lanes[0].actions[5].joined = true;  // a weight gradient and another microbatch's backward as one
  order.lanes.push_back(
      {.rank = 0,
       .stream = stream::collective,
       .peer = -1,
       .actions = {{.kind = all_gather, .microbatch = no_microbatch}, {.kind = reduce_scatter, .microbatch = no_microbatch}}});
  workload w = make_workload({{1}, {5}, {}, {}, {2}, {10}}, order);
  w.work[0].recompute_s = 1;
  w.work[0].checkpoint_bytes = 1;
  w.work[0].weight_backward_bytes = 4;
  w.work[0].all_gather_s = 2;
  w.work[0].reduce_scatter_s = 3;
  w.work[0].optimizer_s = 0.5;
  w.fused_factor = 0.75;
  const auto result = simulate(w, order);
  // Gathered at 2; forwards 3 and 4; recomputed 5; input gradient 8; 0.75 * (2 + 5) more 13.25; scattered 16.25; optimizer 16.75.
  CHECK(result.makespan_s == 16.75);
  CHECK(result.rank_start_s[0] == 0);
  CHECK(result.rank_busy_s[0] == 11.75);
  CHECK(result.peak_in_flight[0] == 2);
  CHECK(result.peak_memory_bytes[0] == 20);  // checkpoint 1, then 1 + 10, the recompute makes that 20
  const auto held = memory_over_time(w, result.timeline);
  CHECK(held == std::vector<std::vector<memory_step>>{{{2, 1}, {3, 11}, {4, 20}, {8, 14}, {13.25, 0}}});

  // What is one event starts together, so neither can wait for the other.
  order.lanes[0].actions[3].joined = true;
  CHECK_THROWS_WITH_AS((void)simulate(w, order), doctest::Contains("deadlock: rank 0 waits at 0R0"), input_error);
}

TEST_CASE("the reduction of a stage's gradients is one event of all its ranks") {
  using enum action_kind;
  auto order = make_schedule(2, 2, {0, 1}, 2);  // one stage, two directions
  for (std::int16_t r = 0; r < 2; ++r)
    order.lanes[static_cast<std::size_t>(r)].actions = {{forward, false, r, 0, r},
                                                        {backward, false, r, 0, r},
                                                        {reduce_gradients, false, r, 0, no_microbatch},
                                                        {optimizer, false, r, 0, no_microbatch}};
  workload w{.ranks = 2,
             .stages = 1,
             .directions = 2,
             .work = {{.forward_s = 1, .backward_s = 2, .reduce_gradients_s = 4, .optimizer_s = 1},
                      {.forward_s = 2, .backward_s = 4, .reduce_gradients_s = 3, .optimizer_s = 2}},
             .activations = {},
             .gradients = {},
             .wires = {},
             .memory_capacity = {},
             .fused_factor = 1};
  const auto result = simulate(w, order);
  CHECK(result.rank_end_s == std::vector<double>{11, 12});  // both wait for 6, reduce until 10
  auto alone = make_schedule(1, 2, {0, 0}, 2);              // both directions on one rank: the last one listed reduces for it
  for (std::int16_t r = 0; r < 2; ++r)
    for (const auto& a : order.lanes[static_cast<std::size_t>(r)].actions) alone.lanes[0].actions.push_back(a);
  auto smaller = w;
  smaller.ranks = 1;
  CHECK(simulate(smaller, alone).makespan_s == 3 + 1 + 6 + 4 + 2);
  order.lanes[1].actions.erase(order.lanes[1].actions.begin() + 2);
  CHECK_THROWS_WITH_AS((void)simulate(w, order), "0REDUCE_GRAD is listed for 1 of 2 directions", input_error);
}

TEST_CASE("memory over time ends empty and peaks where the simulation says, in any schedule") {
  random_source random(32);
  int ran = 0;
  for (int n = 0; n < 3000; ++n) {
    const auto order = test::random_schedule(random);
    const auto w = test::random_workload(random, order);
    CAPTURE(test::text(order));
    CAPTURE(test::text(w));
    simulation result;
    try {
      result = simulate(w, order);
    } catch (const input_error&) {
      continue;
    }
    ++ran;
    const auto held = memory_over_time(w, result.timeline);
    REQUIRE(held.size() == static_cast<std::size_t>(order.ranks));
    for (std::size_t r = 0; r < held.size(); ++r) {
      double most = 0, time = -1;
      for (const auto& step : held[r]) {
        REQUIRE(step.time_s >= time);
        time = step.time_s;
        most = std::max(most, step.bytes);
      }
      REQUIRE(most == result.peak_memory_bytes[r]);
      if (!held[r].empty()) REQUIRE(held[r].back().bytes == 0);
    }
    auto alike = w;
    for (auto& work : alike.work) work.activation_bytes = work.weight_backward_bytes = work.checkpoint_bytes = 1;
    const auto counted = simulate(alike, order, {.timeline = false});
    for (std::size_t r = 0; r < held.size(); ++r) REQUIRE(counted.peak_memory_bytes[r] == counted.peak_in_flight[r]);
  }
  CHECK(ran > 1000);
}

TEST_CASE("transfers listed by the passes change nothing when buffered") {
  random_source random(33);
  for (int n = 0; n < 1500; ++n) {
    const int ranks = random.integer(1, 6), microbatches = random.integer(1, 12);
    const auto p = test::random_pipeline(random, ranks);
    const int chunks = random.integer(1, 3);
    const auto order = n % 3 != 0 || microbatches % ranks != 0 ? one_f_one_b(test::random_warmups(random, ranks), microbatches)
                                                               : interleaved_1f1b(ranks, chunks, microbatches);
    CAPTURE(test::text(p));
    CAPTURE(test::text(order));
    const auto w = make_workload(p, order);
    const auto plain = simulate(w, order), listed = simulate(w, split_streams(add_transfers(order)));
    REQUIRE(plain.makespan_s == listed.makespan_s);
    REQUIRE(plain.rank_end_s == listed.rank_end_s);
    REQUIRE(plain.wire_busy_s == listed.wire_busy_s);
    REQUIRE(plain.overlap_ratio == listed.overlap_ratio);
    REQUIRE(plain.period_s == listed.period_s);
    REQUIRE(plain.timeline.actions == listed.timeline.actions);
  }
}
