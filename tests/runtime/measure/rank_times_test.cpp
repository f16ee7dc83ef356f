// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/measure/rank_times.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;

TEST_CASE("times of a rank are those that its schedule was played with") {
  constexpr int ranks = 3, microbatches = 6;
  const pipeline p{
      .forward_s = {1, 2, 3}, .backward_s = {2.5, 3, 5}, .transfer_s = {0.5, 0.25}, .weight_backward_s = {1, 1.5, 2}};
  for (const auto name : {"gpipe", "1f1b", "zb_h1"}) {
    CAPTURE(name);
    const auto played = simulate(p, build_schedule(name, p, microbatches));
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      const auto k = static_cast<std::size_t>(r);
      const auto times = times_of_rank(played.timeline, r);
      REQUIRE(times.stages.size() == 1);
      CHECK(times.stages[0].stage == r);
      CHECK(times.stages[0].forward_s == doctest::Approx(microbatches * p.forward_s[k]));
      CHECK(times.stages[0].backward_s == doctest::Approx(microbatches * p.backward_s[k]));
      CHECK(times.computing_s == doctest::Approx(times.stages[0].forward_s + times.stages[0].backward_s));
      CHECK(times.span_s >= times.computing_s * (1 - 1e-12));
      CHECK(times.span_s <= played.makespan_s * (1 + 1e-12));
    }
    // The first rank begins and ends an iteration.
    if (std::string_view(name) != "zb_h1") CHECK(times_of_rank(played.timeline, 0).span_s == doctest::Approx(played.makespan_s));
  }
}

TEST_CASE("stages of a rank are told apart by direction, too; a rank without computations took nothing") {
  const auto event = [](int direction, int stage, action_kind kind, int rank, double start_s, double end_s) {
    return timed_action{
        .what = {.kind = kind, .direction = static_cast<std::int16_t>(direction), .stage = stage, .microbatch = 0},
        .rank = rank,
        .start_s = start_s,
        .end_s = end_s};
  };
  using enum action_kind;
  const timeline t{
      .ranks = 3,
      .microbatches = 1,
      .actions = {event(1, 0, forward, 0, 1, 2), event(0, 3, backward_weight, 0, 2, 5), event(0, 1, recompute, 0, 6, 7),
                  event(0, 1, backward_input, 0, 7, 9), event(0, 1, send_activation, 0, 0, 20), event(0, 2, forward, 1, 0, 30)}};
  const auto times = times_of_rank(t, 0);
  CHECK(times.span_s == 8);
  CHECK(times.computing_s == 7);
  CHECK(times.stages == std::vector<stage_time>{{0, 1, 1, 2}, {0, 3, 0, 3}, {1, 0, 1, 0}});
  const auto none = times_of_rank(t, 2);
  CHECK(none.stages.empty());
  CHECK(none.span_s == 0);
}
