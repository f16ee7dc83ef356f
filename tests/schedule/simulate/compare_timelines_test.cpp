// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>
#include <hetsched/schedule/simulate/explain_difference.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../../sanitizer_share.hpp"
#include "../random_pipeline.hpp"
#include "../random_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

void same_as_simulated(const simulation& played, const timeline_figures& found, bool overlap = true) {
  CHECK(found.makespan_s == doctest::Approx(played.makespan_s));
  CHECK(found.period_s == doctest::Approx(played.period_s));
  CHECK(found.bubble_ratio == doctest::Approx(played.bubble_ratio).epsilon(1e-9));
  if (overlap) CHECK(found.overlap_ratio == doctest::Approx(played.overlap_ratio).epsilon(1e-9));
  REQUIRE(found.ranks.size() == played.rank_busy_s.size());
  for (std::size_t r = 0; r < found.ranks.size(); ++r) {
    CHECK(found.ranks[r].busy_s == doctest::Approx(played.rank_busy_s[r]));
    CHECK(found.ranks[r].span_s == doctest::Approx(played.rank_end_s[r] - played.rank_start_s[r]));
  }
}

timed_action at(action_kind kind, int stage, int microbatch, int rank, double start_s, double end_s, int peer = -1) {
  return {{.kind = kind, .stage = stage, .microbatch = microbatch}, rank, peer, start_s, end_s};
}

}  // namespace

TEST_CASE("figures of a simulated timeline are what the simulation says: every schedule, random pipelines") {
  random_source random(5);
  for (int i = 0; i < 40 / test::sanitizer_share; ++i)
    for (const auto name : schedule_names()) {
      const int stages = 2 * random.integer(1, 3), microbatches = 2 * stages * random.integer(1, 3);
      const auto p = test::random_pipeline(random, stages);
      const auto played = simulate(p, build_schedule(name, p, microbatches));
      INFO(std::string(name), " ", microbatches, " microbatches, ", test::text(p));
      same_as_simulated(played, figures(played.timeline));
    }
}

TEST_CASE("figures of a simulated timeline are what the simulation says: staged transfers, listed transfers, fused work") {
  random_source random(6);
  int staged = 0, fused = 0, compared = 0;
  for (int i = 0; i < 1500 / test::sanitizer_share; ++i) {
    const auto order = test::random_schedule(random, {.transfers = true, .parameters = false, .swaps = false});
    const auto w = test::random_workload(random, order);
    simulation played;
    try {
      played = simulate(w, order);
    } catch (const input_error&) {  // it deadlocks
      continue;
    }
    for (const auto& a : played.timeline.actions) {
      staged += a.what.kind == h2d_activation;
      fused += a.what.joined;
    }
    // A receive that waits behind another one is known to the schedule only.
    bool receives = false;
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions) receives = receives || a.kind == receive_activation || a.kind == receive_gradient;
    compared += !receives;
    INFO(test::text(order), test::text(w));
    same_as_simulated(played, figures(played.timeline), !receives);
  }
  CHECK(staged > 0);
  CHECK(fused > 0);
  CHECK(compared > 0);
}

TEST_CASE(
    "overlap by hand: a receiver is idle for a transfer from when both it has nothing to do and the transfer is on its way") {
  timeline t{2, 2, {}};
  t.actions = {at(forward, 0, 0, 0, 0, 1),
               at(forward, 0, 1, 0, 1, 2),
               at(backward, 0, 0, 0, 6, 8),
               at(backward, 0, 1, 0, 9, 11),
               at(send_activation, 0, 0, 0, 1, 2, 1),
               at(send_activation, 0, 1, 0, 2, 3, 1),
               at(forward, 1, 0, 1, 2, 3),
               at(backward, 1, 0, 1, 3, 5),
               at(forward, 1, 1, 1, 5, 6),
               at(backward, 1, 1, 1, 6, 8),
               at(send_gradient, 1, 0, 1, 5, 6, 0),
               at(send_gradient, 1, 1, 1, 8, 9, 0)};
  const auto found = figures(t);
  CHECK(found.makespan_s == 11);
  CHECK(found.bubble_ratio == doctest::Approx(1 - 12.0 / 22));
  // Exposed: to rank 1 the first activation (1 to 2), to rank 0 both gradients; hidden: the second activation.
  CHECK(found.ranks[1].overlap_ratio == 0.5);
  CHECK(found.ranks[0].overlap_ratio == 0);
  CHECK(found.overlap_ratio == 0.25);
  CHECK(found.ranks[0].span_s == 11);
  CHECK(found.ranks[1].span_s == 6);
  CHECK(found.ranks[1].busy_s == 6);

  // The same later, as clocks begin anywhere, and with receives listed by their ranks.
  timeline later = t;
  later.actions.push_back(at(receive_activation, 0, 0, 1, 0, 2, 0));
  for (auto& a : later.actions) {
    a.start_s += 1000;
    a.end_s += 1000;
  }
  const auto both = compare_timelines(t, later);
  CHECK(both.measured.makespan_s == doctest::Approx(11));
  CHECK(both.measured.overlap_ratio == doctest::Approx(0.25));
  CHECK(both.measured.period_s == doctest::Approx(both.predicted.period_s));
  CHECK(deviation(2, 3) == 0.5);
  CHECK(deviation(0, 3) == 0);
}

TEST_CASE("a measured send that waits for the one before it is on its way from then on") {
  timeline t{3, 3, {}};
  t.actions = {at(send_activation, 0, 0, 0, 1, 3, 1), at(send_activation, 0, 1, 0, 2, 5, 1),
               at(send_activation, 0, 2, 0, 6, 7, 1), at(send_activation, 1, 0, 1, 2, 4, 2), at(send_gradient, 1, 0, 1, 2, 6, 0)};
  auto wanted = t.actions;
  wanted[1].start_s = 3;
  CHECK(from_departure(t).actions == wanted);
  t.actions[1].end_s = 2.5;  // it has come out of turn
  wanted = t.actions;
  wanted[1].start_s = 2.5;
  CHECK(from_departure(t).actions == wanted);

  // Predicted ones set out so anyway, but for wires that carry several at a time and transfers that overlap.
  random_source random(8);
  for (const auto name : schedule_names()) {
    auto p = test::random_pipeline(random, 4);
    p.transfer_occupied_s.clear();
    p.gradient_transfer_occupied_s.clear();
    const auto played = simulate(p, build_schedule(name, p, 8)).timeline;
    INFO(std::string(name), " ", test::text(p));
    CHECK(from_departure(played).actions == played.actions);
  }
}

TEST_CASE("timelines of different sizes do not compare, and ranks outside are refused") {
  timeline t{1, 1, {at(forward, 0, 0, 0, 0, 1), at(backward, 0, 0, 0, 1, 2)}};
  timeline more = t;
  more.microbatches = 2;
  CHECK_THROWS_WITH_AS((void)compare_timelines(t, more),
                       "predicted are 1 ranks and 1 microbatches, measured are 1 ranks and 2 microbatches", input_error);
  CHECK(figures(t).period_s == 2);
  CHECK(figures(timeline{2, 1, {}}).makespan_s == 0);
  t.actions[1].rank = 1;
  CHECK_THROWS_AS((void)figures(t), input_error);
  CHECK_THROWS_AS((void)figures(timeline{}), input_error);
}

TEST_CASE("what a difference is due to: the parts are those of simulations in which only one thing has changed") {
  random_source random(8);
  for (int i = 0; i < 30 / test::sanitizer_share; ++i) {
    const int stages = random.integer(2, 5), microbatches = stages * random.integer(1, 3);
    auto p = test::random_pipeline(random, stages);
    p.transfer_occupied_s.clear();  // a timeline does not tell when the next one may set out
    p.gradient_transfer_occupied_s.clear();
    const std::string name = i % 3 == 0 ? "1f1b" : i % 3 == 1 ? "gpipe" : "zb_h1";
    const auto order = build_schedule(name, p, microbatches);
    auto slower = p, both = p;
    const double more = random.uniform(1.1, 2), longer = random.uniform(1.5, 4);
    for (auto* times : {&slower, &both}) {
      for (auto& t : times->forward_s) t *= more;
      for (auto& t : times->backward_s) t *= more;
      for (auto& t : times->weight_backward_s) t *= more;
    }
    for (auto& t : both.transfer_s) t *= longer;
    for (auto& t : both.gradient_transfer_s) t *= longer;
    const auto predicted = simulate(p, order), computed = simulate(slower, order), measured = simulate(both, order);
    INFO(name, " ", microbatches, " microbatches, ", test::text(p), ", work ", more, " and transfers ", longer, " times as long");
    const auto near = [&](double s) { return doctest::Approx(s).epsilon(1e-9).scale(measured.makespan_s); };
    const auto due = explain_difference(predicted.timeline, measured.timeline);
    CHECK(due.wait_s == near(0));
    CHECK(due.compute_s == near(computed.makespan_s - predicted.makespan_s));
    CHECK(due.transport_s == near(measured.makespan_s - computed.makespan_s));
    CHECK(due.host_s == near(0));
  }
}

TEST_CASE("what a difference is due to: nothing, where a timeline is compared with itself, under every schedule") {
  random_source random(9);
  for (int i = 0; i < 10 / test::sanitizer_share; ++i)
    for (const auto name : schedule_names()) {
      const int stages = 2 * random.integer(1, 3), microbatches = 2 * stages * random.integer(1, 2);
      const auto p = test::random_pipeline(random, stages);
      const auto played = simulate(p, build_schedule(name, p, microbatches));
      INFO(std::string(name), " ", microbatches, " microbatches, ", test::text(p));
      const auto due = explain_difference(played.timeline, played.timeline);
      const auto nothing = doctest::Approx(0).scale(played.makespan_s).epsilon(1e-9);
      CHECK(due.total_s() == nothing);
      CHECK(due.compute_s == nothing);
      CHECK(due.transport_s == nothing);
    }
}

TEST_CASE("what a difference is due to: a host that begins late, and another order of work") {
  // Two stages, two microbatches: forwards of 1, backwards of 2, transfers of 0.5. GPipe: F0 F1 | F0 F1 B0 B1 | B0 B1.
  const pipeline p{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0.5}};
  const auto predicted = simulate(p, build_schedule("gpipe", p, 2));
  CHECK(predicted.makespan_s == doctest::Approx(10));  // 1 + 0.5 + 2 + 2 + 2 + 0.5 + 2
  auto late = predicted.timeline;
  // Everything from the first backward on is late by a quarter second: its rank had all that it needed.
  double first_s = 1e9;
  for (const auto& a : late.actions)
    if (a.what.kind == backward) first_s = std::min(first_s, a.start_s);
  for (auto& a : late.actions)
    if (a.start_s >= first_s) a.start_s += 0.25, a.end_s += 0.25;
  const auto due = explain_difference(predicted.timeline, late);
  CHECK(due.host_s == doctest::Approx(0.25));
  CHECK(due.compute_s == doctest::Approx(0));
  CHECK(due.transport_s == doctest::Approx(0));
  CHECK(due.wait_s == doctest::Approx(0));
  // 1F1B with one microbatch in flight on the first stage: all one after the other, 2 * (1 + 0.5 + 1 + 2 + 0.5 + 2) = 14.
  const auto one = simulate(p, build_schedule("1f1b", p, 2, {.warmups = {1, 1}}));
  CHECK(one.makespan_s == doctest::Approx(14));
  const auto of_order = explain_difference(predicted.timeline, one.timeline);
  CHECK(of_order.wait_s == doctest::Approx(4));
  CHECK(of_order.total_s() == doctest::Approx(4));
}
