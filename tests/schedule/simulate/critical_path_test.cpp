// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/simulate/critical_path.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/text.hpp>

#include "../random_pipeline.hpp"
#include "../random_schedule.hpp"

using namespace hetsched;

TEST_CASE("the critical path of a two-stage iteration by hand") {
  // F0 | act | F0 B0 | grad | B0, and once more for the second microbatch: every step waits for the one before.
  const pipeline p{{1, 1}, {2, 2}, {1}, {}};
  const auto order = one_f_one_b({1, 1}, 2);
  std::vector<std::string> steps;
  for (const auto& a : critical_path(make_workload(p, order), order)) steps.push_back(to_text(a.what));
  CHECK(steps == std::vector<std::string>{"0F0", "0SEND_F0", "1F0", "1B0", "1SEND_B0", "0B0", "0F1", "0SEND_F1", "1F1", "1B1",
                                          "1SEND_B1", "0B1"});
  // Here the slow second stage is what takes long: the path stays on it.
  const pipeline slow{{1, 5}, {1, 5}, {0}, {}};
  steps.clear();
  const auto two = one_f_one_b({2, 1}, 2);
  for (const auto& a : critical_path(make_workload(slow, two), two)) steps.push_back(to_text(a.what));
  CHECK(steps == std::vector<std::string>{"0F0", "0SEND_F0", "1F0", "1B0", "1F1", "1B1", "1SEND_B1", "0B1"});
  CHECK(critical_path(make_workload(pipeline{{0}, {0}, {}, {}}, gpipe(1, 1)), gpipe(1, 1)).empty());
}

TEST_CASE("a critical path leads from the start to the makespan without a gap, in any schedule") {
  random_source random(71);
  int ran = 0, over_wires = 0;
  for (int n = 0; n < 6000; ++n) {
    const auto order = test::random_schedule(random);
    const auto w = test::random_workload(random, order);
    const simulate_options options{.semantics =
                                       random.integer(0, 1) == 0 ? send_semantics::buffered : send_semantics::rendezvous};
    CAPTURE(test::text(order));
    CAPTURE(test::text(w));
    simulation whole;
    try {
      whole = simulate(w, order, options);
    } catch (const input_error&) {
      REQUIRE_THROWS_AS((void)critical_path(w, order, options), input_error);
      continue;
    }
    ++ran;
    const auto path = critical_path(w, order, options);
    if (path.empty()) {
      REQUIRE(whole.makespan_s == 0);
      continue;
    }
    REQUIRE(path.front().start_s == 0);
    REQUIRE(path.back().end_s == whole.makespan_s);
    for (std::size_t k = 0; k < path.size(); ++k) {
      const auto& all = whole.timeline.actions;
      const auto same = [&](const timed_action& a) {
        auto plain = a;
        plain.what.joined = path[k].what.joined;
        return plain == path[k];
      };
      REQUIRE(std::any_of(all.begin(), all.end(), same));
      if (k == 0) continue;
      if (path[k - 1].end_s == path[k].start_s) continue;
      // It waited for the wires of a transfer, not for its arrival.
      REQUIRE(is_transfer(path[k - 1].what.kind));
      REQUIRE(path[k - 1].end_s > path[k].start_s);
      REQUIRE(path[k - 1].start_s <= path[k].start_s);
      ++over_wires;
    }
  }
  CHECK(ran > 2000);
  CHECK(over_wires > 50);
}

TEST_CASE("what lies on the critical path delays the iteration by what it is delayed") {
  random_source random(72);
  for (int n = 0; n < 500; ++n) {
    const int stages = random.integer(1, 6), m = random.integer(1, 12);
    const auto p = test::random_pipeline(random, stages);
    const auto warmups = test::random_warmups(random, stages);
    const auto order = one_f_one_b(warmups, m);
    CAPTURE(test::text(p));
    CAPTURE(test::text(warmups));
    const auto path = critical_path(make_workload(p, order), order);
    double sum = 0;
    for (std::size_t k = 0; k < path.size(); ++k)  // until the next one, which may have waited for the wires alone
      sum += std::min(path[k].end_s, k + 1 < path.size() ? path[k + 1].start_s : path[k].end_s) - path[k].start_s;
    REQUIRE(sum == doctest::Approx(makespan(p, warmups, m)).epsilon(1e-9));
    for (int i = 0; i < stages; ++i)
      for (const auto kind : {action_kind::forward, action_kind::backward, action_kind::send_activation}) {
        if (kind == action_kind::send_activation &&
            (i + 1 == stages || !p.gradient_transfer_s.empty() || !p.transfer_occupied_s.empty()))
          continue;
        auto slower = p;
        const auto k = static_cast<std::size_t>(i);
        if (kind == action_kind::forward) slower.forward_s[k] += 0.125;
        if (kind == action_kind::backward) slower.backward_s[k] += 0.125;
        if (kind == action_kind::send_activation) {
          slower.gradient_transfer_s = slower.transfer_s;
          slower.transfer_s[k] += 0.125;
        }
        int on_path = 0;
        for (const auto& a : path) on_path += a.what.kind == kind && a.what.stage == i;
        REQUIRE(makespan(slower, warmups, m) >= (makespan(p, warmups, m) + 0.125 * on_path) * (1 - 1e-12));
      }
  }
}
