// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../../sanitizer_share.hpp"
#include "../../schedule/random_pipeline.hpp"
#include "../../schedule/random_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

/// In whole nanoseconds.
timeline rounded(timeline t) {
  for (auto& a : t.actions) {
    a.start_s = std::floor(a.start_s * 1e9 + 0.5) / 1e9;
    a.end_s = std::floor(a.end_s * 1e9 + 0.5) / 1e9;
  }
  return t;
}

void comes_back(const timeline& t) {
  const auto text = chrome_trace(t);
  const auto read = parse_trace(text, "trace.json");
  const auto wanted = rounded(t);
  CHECK(read.ranks == t.ranks);
  CHECK(read.microbatches == t.microbatches);
  REQUIRE(read.actions.size() == wanted.actions.size());
  for (std::size_t i = 0; i < read.actions.size(); ++i) {
    auto expected = wanted.actions[i];
    const bool computes = is_compute(expected.what.kind) || expected.what.kind == optimizer;
    if (!computes || expected.start_s == expected.end_s) expected.what.joined = false;
    if (read.actions[i] == expected) continue;
    INFO(i, ": ", to_text(read.actions[i].what), " for ", to_text(expected.what));
    CHECK(read.actions[i] == expected);
    return;
  }
  CHECK(chrome_trace(read) == text);
}

std::string one_event(const std::string& fields) { return R"({"traceEvents": [{"ph": "X", )" + fields + "}]}"; }

}  // namespace

TEST_CASE("traces of every schedule come back as the timeline that was written") {
  random_source random(11);
  for (int i = 0; i < 10 / test::sanitizer_share; ++i)
    for (const auto name : schedule_names()) {
      const int stages = 2 * random.integer(1, 3), microbatches = 2 * stages * random.integer(1, 2);
      const auto p = test::random_pipeline(random, stages);
      INFO(std::string(name), " ", microbatches, " microbatches, ", test::text(p));
      comes_back(simulate(p, build_schedule(name, p, microbatches)).timeline);
    }
}

TEST_CASE("so do staged transfers, several directions, fused work, and work on parameters") {
  random_source random(12);
  int count = 0;
  for (int i = 0; i < 300 / test::sanitizer_share; ++i) {
    const auto order = test::random_schedule(random, {.transfers = true, .parameters = true, .swaps = false});
    const auto w = test::random_workload(random, order);
    INFO(test::text(order), test::text(w));
    simulation played;
    try {
      played = simulate(w, order);
    } catch (const input_error&) {  // it deadlocks
      continue;
    }
    ++count;
    comes_back(played.timeline);
  }
  CHECK(count > 0);
}

TEST_CASE("clocks that began long ago, and long iterations") {
  timeline t{2, 1, {}};
  for (const double begin_s : {0.0, 1e-9, 12345.678901234, 8.0e6}) {
    CAPTURE(begin_s);
    t.actions = {{{.kind = forward, .stage = 0, .microbatch = 0}, 0, -1, begin_s, begin_s + 1e-9},
                 {{.kind = optimizer, .stage = 0, .microbatch = no_microbatch}, 0, -1, begin_s + 2.5e-9, begin_s + 86400},
                 {{.kind = send_activation, .stage = 0, .microbatch = 0}, 0, 1, begin_s + 1e-9, begin_s + 1},
                 {{.kind = h2d_gradient, .stage = 0, .microbatch = 0}, 1, 0, begin_s, begin_s}};
    comes_back(t);
  }
}

TEST_CASE("what others write into a trace is passed over, in any order and under any name") {
  const auto read = parse_trace(R"({"otherData": {"a": [1, 2]}, "traceEvents": [
    {"ph": "X", "name": "1F0", "pid": 1, "tid": 0, "ts": 5, "dur": 2.5, "args": {"stage": 1, "replica": 0, "microbatch": 0, "mine": 1}},
    {"ph": "X", "name": "cudaLaunchKernel", "pid": 48213, "tid": 48299, "ts": 1.5, "dur": 2, "args": {"stage": 3}},
    {"ph": "B", "name": "0F0", "pid": 0, "tid": 0, "ts": 1}, {"ph": "E", "pid": 0, "tid": 0, "ts": 2}, {},
    {"ph": "X", "name": "0F0", "pid": 0, "tid": 0, "ts": 0, "dur": 2, "args": {"stage": 0, "replica": 0, "microbatch": 0}},
    {"ph": "M", "name": "process_name", "pid": 48213, "args": {"name": "python3"}},
    {"ph": "M", "name": "process_name", "pid": 48214, "args": {"name": "rank 9"}},
    {"ph": "M", "name": "process_name", "pid": "GPU 0", "args": {"name": "GPU 0"}},
    {"ph": "M", "name": "process_labels", "pid": 1},
    {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "rank 3"}}]})",
                                "other.json");
  CHECK(read.ranks == 4);
  CHECK(read.microbatches == 1);
  REQUIRE(read.actions.size() == 2);
  CHECK(read.actions[0] == timed_action{{.kind = forward, .stage = 0, .microbatch = 0}, 0, -1, 0, 2e-6});
  CHECK(read.actions[1] == timed_action{{.kind = forward, .stage = 1, .microbatch = 0}, 1, -1, 5e-6, 7.5e-6});
}

TEST_CASE("traces that break the form: an error with file and place") {
  const std::pair<std::string, const char*> cases[] = {
      {"", "t.json: "},
      {"[]", "t.json: found an array of 0, expected an object"},
      {"{}", "t.json: /traceEvents: missing"},
      {R"({"traceEvents": {}})", "t.json: /traceEvents: found an object, expected an array"},
      {R"({"traceEvents": []})", "t.json: /traceEvents: no event is an action of a pipeline"},
      {R"({"traceEvents": [{"ph": "X", "name": "work", "pid": 1, "ts": 1, "dur": 1}]})", "no event is an action"},
      {R"({"traceEvents": [7]})", "t.json: /traceEvents/0: found 7, expected an object"},
      {one_event(R"("name": "0G0", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/name: found \"0G0\", expected the text form of an action of stage 0 and microbatch 0"},
      {one_event(R"("name": "1F0", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/name: "},
      {one_event(R"("name": "0F", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0})"),
       "/traceEvents/0/args: no microbatch"},
      {one_event(
           R"("name": "0OPTIMIZER1", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 1})"),
       "/traceEvents/0/args: a microbatch, where none"},
      {one_event(
           R"("name": "0SEND_F1", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 1})"),
       "/traceEvents/0/args: a transfer without a peer"},
      {one_event(
           R"("name": "0F1", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 1, "peer": 1})"),
       "/traceEvents/0/args: a peer of what is no transfer"},
      {one_event(
           R"("name": "1H2D_F1", "pid": 1, "tid": 4, "ts": 0, "dur": 1, "args": {"stage": 1, "replica": 0, "microbatch": 1, "peer": 1})"),
       "/traceEvents/0: a copy to the device of rank 1"},
      {one_event(R"("name": "0F0", "pid": -1, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/pid: found -1, expected a whole number in"},
      {one_event(R"("name": "0F0", "pid": 0, "tid": 0, "ts": 0, "dur": -1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/dur: found -1"},
      {one_event(
           R"("name": "0F0", "pid": 0, "tid": 0, "ts": "now", "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/ts: found \"now\""},
      {one_event(R"("name": "0F0", "pid": 0, "tid": 0, "dur": 1, "args": {"stage": 0, "replica": 0, "microbatch": 0})"),
       "/traceEvents/0/ts: missing"},
      {one_event(
           R"("name": "0F0r70000", "pid": 0, "tid": 0, "ts": 0, "dur": 1, "args": {"stage": 0, "replica": 70000, "microbatch": 0})"),
       "/traceEvents/0/args/replica: found 70000"},
      {R"({"traceEvents": [{"ph": 1}]})", "/traceEvents/0/ph: found 1, expected a string"},
  };
  for (const auto& [text, part] : cases) {
    CAPTURE(text);
    std::string what;
    try {
      (void)parse_trace(text, "t.json");
    } catch (const file_error& e) {
      what = e.what();
    }
    CAPTURE(what);
    CHECK(what.find(part) != std::string::npos);
  }
  CHECK_THROWS_WITH_AS((void)read_trace("/nowhere/t.json"), "/nowhere/t.json: cannot be opened", file_error);
}
