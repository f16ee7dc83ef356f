// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/chrome_trace.hpp>
#include <hetsched/schedule.hpp>

using namespace hetsched;

TEST_CASE("every action of a timeline is one event of the trace, on its stage and thread") {
  const pipeline p{.forward_s = {1, 1.5, 1}, .backward_s = {2, 2, 2}, .transfer_s = {0.5, 0.25}, .gradient_transfer_s = {}};
  const auto played = simulate(p, one_f_one_b({4, 2, 1}, 8));
  const auto trace = nlohmann::json::parse(chrome_trace(played.timeline));
  std::size_t events = 0;
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") == "M") continue;
    REQUIRE(e.at("ph") == "X");
    const auto& a = played.timeline.actions[events++];
    CHECK(e.at("ts").get<double>() == doctest::Approx(a.start_s * 1e6));
    CHECK(e.at("dur").get<double>() == doctest::Approx((a.end_s - a.start_s) * 1e6));
    CHECK(e.at("args").at("microbatch") == a.microbatch);
    const bool gradient = a.kind == action_kind::send_gradient;
    CHECK(e.at("pid") == a.place + (gradient ? 1 : 0));
    CHECK(e.at("tid") == (gradient ? 2 : a.kind == action_kind::send_activation ? 1 : 0));
    if (a.kind == action_kind::forward) CHECK(e.at("name") == "F" + std::to_string(a.microbatch));
    if (a.kind == action_kind::backward) CHECK(e.at("name") == "B" + std::to_string(a.microbatch));
  }
  CHECK(events == played.timeline.actions.size());
}
