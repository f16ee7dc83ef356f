// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/core/random.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;
using enum action_kind;

namespace {

using json = nlohmann::json;

std::vector<json> events_of(const json& trace, const std::string& phase, const std::string& name = {}) {
  std::vector<json> events;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == phase && (name.empty() || e.at("name") == name)) events.push_back(e);
  return events;
}

/// Names of the threads by process and thread.
std::map<std::pair<int, int>, std::string> thread_names(const json& trace) {
  std::map<std::pair<int, int>, std::string> names;
  for (const auto& e : events_of(trace, "M", "thread_name"))
    CHECK(names.emplace(std::pair{e.at("pid").get<int>(), e.at("tid").get<int>()}, e.at("args").at("name")).second);
  return names;
}

/// Viewers draw events of a thread below each other: each two lie apart, or one inside the other.
void nests(const json& trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  for (const auto& e : events_of(trace, "X")) {
    const double start = e.at("ts"), end = start + e.at("dur").get<double>();
    threads[{e.at("pid"), e.at("tid")}].push_back({start, -end});
  }
  for (auto& [thread, spans] : threads) {
    std::sort(spans.begin(), spans.end());
    std::vector<double> open;
    for (const auto& [start, minus_end] : spans) {
      while (!open.empty() && open.back() <= start + 1e-6) open.pop_back();
      if (!open.empty()) CHECK(-minus_end <= open.back() + 1e-6);
      open.push_back(-minus_end);
    }
  }
}

}  // namespace

TEST_CASE("every action of a timeline is one event of the trace, on its rank and thread, named by its text form") {
  timeline t{3, 2, {}};
  t.actions = {{{.kind = forward, .stage = 0, .microbatch = 1}, 0, -1, 0, 0.5},
               {{.kind = optimizer, .stage = 0, .microbatch = no_microbatch}, 0, -1, 3, 4},
               {{.kind = send_activation, .stage = 0, .microbatch = 1}, 0, 1, 0.5, 0.75},
               {{.kind = send_gradient, .stage = 5, .microbatch = 0}, 0, 2, 1, 2},
               {{.kind = reduce_scatter, .stage = 0, .microbatch = no_microbatch}, 0, -1, 2, 3},
               {{.kind = backward_input, .direction = 1, .stage = 2, .microbatch = 0}, 1, -1, 2, 3},
               {{.kind = d2h_activation, .stage = 1, .microbatch = 0}, 1, 2, 3, 4},
               {{.kind = network_activation, .stage = 1, .microbatch = 0}, 1, 2, 4, 5},
               {{.kind = h2d_activation, .stage = 2, .microbatch = 0}, 1, 2, 5, 6}};
  const auto trace = json::parse(chrome_trace(t));
  const auto names = thread_names(trace);
  const auto events = events_of(trace, "X");
  REQUIRE(events.size() == t.actions.size());
  const std::pair<int, const char*> places[] = {{0, "compute"},        {0, "compute"},           {0, "send to rank 1"},
                                                {0, "send to rank 2"}, {0, "collective"},        {1, "compute"},
                                                {1, "d2h to rank 2"},  {1, "network to rank 2"}, {2, "h2d from rank 1"}};
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& a = t.actions[i];
    const auto& e = events[i];
    CAPTURE(e.dump());
    CHECK(e.at("name") == to_text(a.what));
    CHECK(e.at("ts").get<double>() == doctest::Approx(a.start_s * 1e6));
    CHECK(e.at("dur").get<double>() == doctest::Approx((a.end_s - a.start_s) * 1e6));
    CHECK(e.at("pid") == places[i].first);
    CHECK(names.at({e.at("pid"), e.at("tid")}) == places[i].second);
    CHECK(e.at("args").at("stage") == a.what.stage);
    CHECK(e.at("args").at("replica") == a.what.direction);
    CHECK(e.at("args").contains("microbatch") == (a.what.microbatch != no_microbatch));
    if (a.what.microbatch != no_microbatch) CHECK(e.at("args").at("microbatch") == a.what.microbatch);
  }
  CHECK(events_of(trace, "M", "process_name").size() == 3);
}

TEST_CASE("a fused computation lies inside the one before it; transfers that overlap take threads of their own") {
  timeline t{2, 4, {}};
  t.actions = {{{.kind = forward, .stage = 0, .microbatch = 1}, 0, -1, 0, 3},
               {{.kind = backward, .joined = true, .stage = 3, .microbatch = 0}, 0, -1, 0, 3},
               {{.kind = send_activation, .stage = 0, .microbatch = 0}, 0, 1, 0, 2},
               {{.kind = send_activation, .stage = 0, .microbatch = 1}, 0, 1, 1, 3},
               {{.kind = send_activation, .stage = 0, .microbatch = 2}, 0, 1, 2, 4}};
  const auto trace = json::parse(chrome_trace(t));
  nests(trace);
  const auto events = events_of(trace, "X");
  CHECK(events[0].at("tid") == events[1].at("tid"));
  CHECK(events[2].at("tid") != events[3].at("tid"));
  CHECK(events[2].at("tid") == events[4].at("tid"));
  CHECK(thread_names(trace).at({0, events[3].at("tid")}) == "send to rank 1 (2)");
}

TEST_CASE("events that follow each other do so in the trace's own units, too") {
  random_source random(7);
  timeline t{1, 4000, {}};
  double now = 0;
  for (int m = 0; m < 4000; ++m) {
    const double end = now + random.uniform(1e-9, 1e-3) / 3;
    t.actions.push_back({{.kind = forward, .stage = 0, .microbatch = m}, 0, -1, now, end});
    now = end;
  }
  const auto trace = json::parse(chrome_trace(t));
  nests(trace);
  for (const auto& e : events_of(trace, "X")) REQUIRE(e.at("tid") == 0);
}

TEST_CASE("the trace of every named schedule has all its actions, each two of a thread apart or one inside the other") {
  const pipeline p{.forward_s = {0.010, 0.0081, 0.0143, 0.012},
                   .backward_s = {0.020, 0.0162, 0.0286, 0.024},
                   .transfer_s = {0.002, 0.0151, 0.002},
                   .weight_backward_s = {0.009, 0.0071, 0.013, 0.011}};
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto played = simulate(p, build_schedule(name, p, 8));
    const auto trace = json::parse(chrome_trace(played.timeline));
    CHECK(events_of(trace, "X").size() == played.timeline.actions.size());
    nests(trace);
    // Links carry one tensor at a time here, so nothing needs a further thread.
    for (const auto& [thread, title] : thread_names(trace)) CHECK(title.find('(') == std::string::npos);
  }
}
