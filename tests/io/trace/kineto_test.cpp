// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/trace/kineto.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>

using namespace hetsched;

namespace {

/// A rank's trace as torch.profiler writes it: marks, among what else it sees.
struct trace_text {
  std::string events;

  void mark(const char* category, const std::string& name, double ts, double dur) {
    events += ",\n  {\"ph\": \"X\", \"cat\": \"" + std::string(category) + "\", \"name\": \"" + name +
              "\", \"pid\": 4711, \"tid\": 4711, \"ts\": " + std::to_string(ts) + ", \"dur\": " + std::to_string(dur) +
              ", \"args\": {\"External id\": 7}}";
  }
  [[nodiscard]] std::string text(int rank, std::int64_t base_ns) const {
    return R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": )" + std::to_string(rank) +
           R"(, "world_size": 2}, "displayTimeUnit": "ms", "baseTimeNanoseconds": )" + std::to_string(base_ns) +
           R"(, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": 4711, "ts": 1.5, "dur": 2.25, "args": {"External id": 1}},
  {"ph": "i", "s": "t", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 0})" +
           events + "]}";
  }
};

const timed_action& find(const timeline& t, const std::string& text) {
  for (const auto& a : t.actions)
    if (to_text(a.what) == text) return a;
  REQUIRE_MESSAGE(false, text);
  return t.actions.front();
}

/// Two stages and two microbatches, two iterations; the second begins 1 ms after base time 5'000'000'000.
std::vector<named_text> two_ranks() {
  trace_text first, second;
  for (const double at : {0.0, 1000.0}) {
    const double zeroth = at + 1e6;  // rank 0 counts from a base that is a second earlier
    for (const double slow : {1.0, 10.0}) {
      const char* const where = slow > 1 ? "user_annotation" : "gpu_user_annotation";
      first.mark(where, "PP:0F0", zeroth + 0, 10 * slow);
      first.mark(where, "PP:0SEND_F0", zeroth + 10, 5 * slow);
      first.mark(where, "PP:0F1", zeroth + 10, 10 * slow);
      first.mark(where, "PP:0SEND_F1", zeroth + 20, 5 * slow);
      first.mark(where, "PP:0B0", zeroth + 60, 20 * slow);
      first.mark(where, "PP:0B1", zeroth + 80, 20 * slow);
      second.mark(where, "PP:1RECV_F0", at + 8, 7 * slow);
      second.mark(where, "PP:1F0", at + 15, 12 * slow);
      second.mark(where, "PP:1B0", at + 30, 25 * slow);
      second.mark(where, "PP:1SEND_B0", at + 55, 5 * slow);
      second.mark(where, "PP:1F1", at + 55, 12 * slow);
      second.mark(where, "PP:(1F1;1B1)OVERLAP_F_B", at + 55, 40 * slow);
      second.mark(where, "PP:1B1", at + 70, 0.25);
      second.mark(where, "Optimizer.step#AdamW.step", at + 90, 9 * slow);
    }
  }
  return {{"rank1.json", second.text(1, 5'000'000'000)}, {"rank0.json", first.text(0, 4'000'000'000)}};
}

}  // namespace

TEST_CASE("marks of torch.profiler, a trace a rank, are the last iteration by the GPU's times") {
  const auto t = parse_kineto_traces(two_ranks());
  CHECK(t.ranks == 2);
  CHECK(t.microbatches == 2);
  CHECK(t.actions.size() == 8 + 3);
  CHECK(find(t, "0F0").start_s == 0);
  CHECK(find(t, "0F0").end_s == doctest::Approx(10e-6));
  CHECK(find(t, "0B1").end_s == doctest::Approx(100e-6));
  const auto& b = find(t, "1B1");
  CHECK(b.rank == 1);
  CHECK(b.start_s == doctest::Approx(70e-6));
  CHECK(b.end_s == doctest::Approx(70.25e-6));
  const auto& sent = find(t, "0SEND_F1");
  CHECK(sent.rank == 0);
  CHECK(sent.peer == 1);
  CHECK(sent.end_s == doctest::Approx(25e-6));
  CHECK(find(t, "1SEND_B0").peer == 0);
  CHECK(figures(t).makespan_s == doctest::Approx(100e-6));
  CHECK(figures(t).ranks[0].busy_s == doctest::Approx(60e-6));
}

TEST_CASE("without a GPU, the host's marks tell computations") {
  trace_text only;
  only.mark("user_annotation", "PP:0F0", 3, 4);
  only.mark("user_annotation", "PP:0SEND_F0", 7, 1);
  only.mark("user_annotation", "PP:0B0", 8, 6);
  trace_text next;
  next.mark("user_annotation", "PP:1F0", 5, 4);
  const auto t = parse_kineto_traces({{"a.json", only.text(4, 0)}, {"b.json", next.text(9, 0)}});
  CHECK(t.ranks == 2);
  CHECK(t.actions.size() == 3);  // when a send arrives, a host does not see
  CHECK(figures(t).makespan_s == doctest::Approx(11e-6));
}

TEST_CASE("traces that are of no iteration are refused") {
  const auto complaint = [](const std::vector<named_text>& files) {
    try {
      (void)parse_kineto_traces(files);
    } catch (const input_error& wrong) {
      return std::string(wrong.what());
    }
    return std::string();
  };
  auto files = two_ranks();
  CHECK(complaint({}) == "expected a trace of each rank, found none");
  CHECK(complaint({files[0], files[1], {"again.json", files[0].text}}) == "again.json: is of rank 1, as rank1.json is");
  trace_text none;
  CHECK(complaint({{"none.json", none.text(0, 0)}}).find("none.json: /traceEvents: no event is an action of a pipeline") == 0);
  trace_text half;
  for (const double at : {0.0, 10.0}) half.mark("gpu_user_annotation", "PP:0F0", at, 1);
  half.mark("gpu_user_annotation", "PP:0B0", 2, 1);
  CHECK(complaint({{"half.json", half.text(0, 0)}}) ==
        "half.json: /traceEvents: 0F0 is there 2 times and 0B0 1 times, expected whole iterations");
  trace_text same;
  same.mark("gpu_user_annotation", "PP:0F0", 0, 1);
  CHECK(complaint({{"a.json", same.text(0, 0)}, {"b.json", same.text(1, 0)}}) ==
        "b.json: computes stage 0, as a.json does: expected the ranks of one pipeline");
  trace_text odd;
  for (const char* name : {"PP:F0", "PP:0X0", "PP:0F", "PP:99999999999F0", "PP:0F99999999999", "PP:", "PP:-1F0", "PP:0UNSHARD3"})
    odd.mark("user_annotation", name, 0, 1);
  CHECK(complaint({{"odd.json", odd.text(0, 0)}}).find("no event is an action") != std::string::npos);
}
