// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/simulate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders.hpp>
#include <hetsched/schedule/warmup.hpp>

#include "random_pipeline.hpp"

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
/// nothing if that never ends. Steps are named by (kind, place, microbatch).
using step_name = std::tuple<action_kind, int, int>;
std::optional<std::map<step_name, std::pair<double, double>>> by_fixed_point(const pipeline& p, const schedule& order) {
  struct step {
    double duration = 0;
    std::vector<step_name> after;
  };
  std::map<step_name, step> steps;
  const int last = p.stages() - 1;
  for (int i = 0; i <= last; ++i) {
    const auto k = static_cast<std::size_t>(i);
    std::optional<step_name> previous, previous_activation, previous_gradient;
    for (const action a : order.stages[k]) {
      const bool forward = a.kind == action_kind::forward;
      const step_name name{a.kind, i, a.microbatch};
      auto& s = steps[name];
      s.duration = forward ? p.forward_s[k] : p.backward_s[k];
      if (previous) s.after.push_back(*previous);
      if (!forward) s.after.push_back({action_kind::forward, i, a.microbatch});
      if (forward && i > 0) s.after.push_back({action_kind::send_activation, i - 1, a.microbatch});
      if (!forward && i < last) s.after.push_back({action_kind::send_gradient, i, a.microbatch});
      previous = name;
      if (forward ? i == last : i == 0) continue;
      const step_name send{forward ? action_kind::send_activation : action_kind::send_gradient, forward ? i : i - 1,
                           a.microbatch};
      auto& previous_send = forward ? previous_activation : previous_gradient;
      auto& t = steps[send];
      t.duration = forward ? p.activation_s(i) : p.gradient_s(i - 1);
      t.after.push_back(name);
      if (previous_send) t.after.push_back(*previous_send);
      previous_send = send;
    }
  }
  std::map<step_name, std::pair<double, double>> times;
  for (const auto& [name, s] : steps) times[name] = {0, s.duration};
  for (std::size_t pass = 0; pass <= steps.size(); ++pass) {
    bool changed = false;
    for (const auto& [name, s] : steps) {
      double start = 0;
      for (const auto& before : s.after) start = std::max(start, times[before].second);
      if (start != times[name].first) {
        times[name] = {start, start + s.duration};
        changed = true;
      }
    }
    if (!changed) return times;
  }
  return std::nullopt;
}

/// Any order in which every stage does every backward somewhere after its forward.
schedule random_order(random_source& random, int stages, int microbatches) {
  schedule order{microbatches, {}};
  for (int i = 0; i < stages; ++i) {
    std::vector<action> todo;
    for (int m = 0; m < microbatches; ++m) todo.push_back({action_kind::forward, m});
    auto& stage = order.stages.emplace_back();
    while (!todo.empty()) {
      // Mostly near the front: orders that are mixed but often can be run.
      const int reach = random.integer(0, 3) == 0 ? static_cast<int>(todo.size()) - 1 : 0;
      const auto pick = todo.begin() + random.integer(0, std::min(reach, static_cast<int>(todo.size()) - 1));
      const action a = *pick;
      todo.erase(pick);
      stage.push_back(a);
      if (a.kind == action_kind::forward)
        todo.insert(todo.begin() + random.integer(0, static_cast<int>(todo.size())), {action_kind::backward, a.microbatch});
    }
  }
  return order;
}

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

TEST_CASE("the fast path equals the event simulator bit for bit") {
  random_source random(21);
  for (int n = 0; n < 3000; ++n) {
    const int stages = random.integer(1, n % 20 == 0 ? 40 : 8);
    const auto p = test::random_pipeline(random, stages);
    const int microbatches = random.integer(1, 40);
    const auto warmups = n % 7 == 0 ? std::vector<int>(p.forward_s.size(), microbatches) : test::random_warmups(random, stages);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    CAPTURE(microbatches);
    REQUIRE(makespan(p, warmups, microbatches) == simulate(p, one_f_one_b(warmups, microbatches)).makespan_s);
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
      REQUIRE(expected->at({a.kind, a.place, a.microbatch}) == std::pair{a.start_s, a.end_s});
      end = std::max(end, a.end_s);
      (a.kind == action_kind::forward || a.kind == action_kind::backward ? busy : transfers) += a.end_s - a.start_s;
    }
    for (int i = 0; i < stages; ++i) {
      const auto& list = order.stages[static_cast<std::size_t>(i)];
      double free = 0;
      int in_flight = 0, peak = 0;
      for (const action a : list) {
        const bool forward = a.kind == action_kind::forward;
        peak = std::max(peak, in_flight += forward ? 1 : -1);
        const auto [start, finish] = expected->at({a.kind, i, a.microbatch});
        if (forward ? i > 0 : i + 1 < stages) {
          // The receiver is idle from `free` to `start`: what of that lies inside the transfer is exposed.
          const auto [sent, arrived] = expected->at(forward ? step_name{action_kind::send_activation, i - 1, a.microbatch}
                                                            : step_name{action_kind::send_gradient, i, a.microbatch});
          exposed += std::max(0.0, std::min(start, arrived) - std::max(free, sent));
        }
        free = finish;
      }
      CHECK(result.peak_in_flight[static_cast<std::size_t>(i)] == peak);
      CHECK(result.stage_end_s[static_cast<std::size_t>(i)] == free);
    }
    CHECK(result.makespan_s == end);
    CHECK(result.bubble_ratio == doctest::Approx(1 - busy / (stages * end)).epsilon(1e-9));
    CHECK(result.overlap_ratio == doctest::Approx(transfers > 0 ? 1 - exposed / transfers : 1).epsilon(1e-9));
  }
  CHECK(ran > 1200);
  CHECK(stuck > 300);
}

TEST_CASE("a two-stage iteration by hand") {
  // f = 1, b = 2, c = 1, one microbatch in flight at a time: F0 | act | F0 B0 | grad | B0, twice over on stage 0.
  const pipeline p{{1, 1}, {2, 2}, {1}, {}};
  const auto result = simulate(p, one_f_one_b({1, 1}, 2));
  CHECK(result.makespan_s == 16);
  CHECK(result.stage_end_s == std::vector<double>{16, 13});
  CHECK(result.peak_in_flight == std::vector{1, 1});
  CHECK(result.bubble_ratio == doctest::Approx(1 - 12.0 / 32));
  CHECK(result.overlap_ratio == 0);  // somebody waits for every transfer
  CHECK(result.timeline.stages == 2);
  CHECK(result.timeline.microbatches == 2);
  using enum action_kind;
  const std::vector<timed_action> expected{
      {forward, 0, 0, 0, 1},         {forward, 0, 1, 8, 9},          {backward, 0, 0, 6, 8},      {backward, 0, 1, 14, 16},
      {send_activation, 0, 0, 1, 2}, {send_activation, 0, 1, 9, 10}, {send_gradient, 0, 0, 5, 6}, {send_gradient, 0, 1, 13, 14},
      {forward, 1, 0, 2, 3},         {forward, 1, 1, 10, 11},        {backward, 1, 0, 3, 5},      {backward, 1, 1, 11, 13}};
  CHECK(result.timeline.actions == expected);
}

TEST_CASE("timelines are ordered by place and kind, then time, and nothing overlaps that must not") {
  random_source random(23);
  for (int n = 0; n < 200; ++n) {
    const int stages = random.integer(1, 6), microbatches = random.integer(1, 12);
    const auto p = test::random_pipeline(random, stages);
    const auto result = simulate(p, one_f_one_b(test::random_warmups(random, stages), microbatches));
    CAPTURE(test::text(p));
    const auto& actions = result.timeline.actions;
    REQUIRE(std::is_sorted(actions.begin(), actions.end(), [](const timed_action& a, const timed_action& b) {
      return std::tuple{a.place, a.kind, a.start_s} < std::tuple{b.place, b.kind, b.start_s};
    }));
    // A resource is a stage, or one direction of a link.
    std::map<std::tuple<int, int>, std::vector<std::pair<double, double>>> resources;
    for (const auto& a : actions) resources[{a.place, std::max(1, static_cast<int>(a.kind))}].emplace_back(a.start_s, a.end_s);
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
  const auto alone = simulate({{1}, {2}, {}, {}}, one_f_one_b({1}, 5));
  CHECK(alone.makespan_s == 15);
  CHECK(alone.bubble_ratio == 0);
  CHECK(alone.overlap_ratio == 1);
  const pipeline nothing{{0, 0}, {0, 0}, {0}, {}};
  const auto instant = simulate(nothing, one_f_one_b({2, 1}, 3));
  CHECK(instant.makespan_s == 0);
  CHECK(instant.bubble_ratio == 0);
  CHECK(makespan(nothing, {2, 1}, 3) == 0);
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
  const schedule stuck{
      2,
      {{{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}}, {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}}};
  CHECK_THROWS_WITH_AS((void)simulate(p, stuck), "deadlock: stage 0 waits at backward 0, stage 1 waits at forward 1",
                       input_error);
  const schedule reversed{1, {{{forward, 0}, {backward, 0}}, {{backward, 0}, {forward, 0}}}};
  CHECK_THROWS_WITH_AS((void)simulate(p, reversed), "deadlock: stage 0 waits at backward 0, stage 1 waits at backward 0",
                       input_error);
  const schedule partial{1, {{{forward, 0}, {backward, 0}}, {{forward, 0}}}};
  CHECK_THROWS_WITH_AS((void)simulate(p, partial), "stage 1: backward 0 is missing", input_error);
  CHECK_THROWS_AS((void)simulate(p, gpipe(3, 2)), input_error);
  CHECK_THROWS_AS((void)simulate({{1}, {1}, {1}, {}}, gpipe(1, 2)), input_error);
}
