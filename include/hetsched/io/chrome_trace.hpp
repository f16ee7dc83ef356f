// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include <hetsched/schedule/action.hpp>

namespace hetsched {

namespace detail {

struct trace_lane {
  int process = 0;
  int thread = 0;
  char letter = 'F';
  const char* category = "";
};

/// Where an action goes in a trace: its stage, one of the three threads, and what it is called.
[[nodiscard]] constexpr trace_lane lane_of(const timed_action& a) {
  switch (a.kind) {
    case action_kind::forward: return {a.place, 0, 'F', "forward"};
    case action_kind::backward: return {a.place, 0, 'B', "backward"};
    case action_kind::send_activation: return {a.place, 1, 'A', "send activation"};
    case action_kind::send_gradient: return {a.place + 1, 2, 'G', "send gradient"};
  }
  return {};
}

}  // namespace detail

/// A timeline as a Chrome trace (JSON object format, complete events in microseconds), for Perfetto or chrome://tracing.
/// One process per stage; threads: compute, send activation, send gradient. F3 is the forward of microbatch 3 (0-based),
/// B3 its backward, A3 and G3 its activation and gradient on their way. O(actions).
[[nodiscard]] inline std::string chrome_trace(const timeline& t) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  char line[256];
  bool first = true;
  const auto add = [&](int length) {
    out += first ? "\n" : ",\n";
    out.append(line, static_cast<std::size_t>(length));
    first = false;
  };
  constexpr const char* threads[] = {"compute", "send activation", "send gradient"};
  for (int place = 0; place < t.stages; ++place) {
    add(std::snprintf(line, sizeof line, R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"stage %d"}})", place, place));
    add(std::snprintf(line, sizeof line, R"({"ph":"M","name":"process_sort_index","pid":%d,"args":{"sort_index":%d}})", place, place));
    for (int thread = 0; thread < 3; ++thread) {
      if ((thread == 1 && place + 1 == t.stages) || (thread == 2 && place == 0)) continue;
      add(std::snprintf(line, sizeof line, R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"%s"}})", place, thread,
                        threads[thread]));
      add(std::snprintf(line, sizeof line, R"({"ph":"M","name":"thread_sort_index","pid":%d,"tid":%d,"args":{"sort_index":%d}})", place,
                        thread, thread));
    }
  }
  for (const auto& a : t.actions) {
    const auto lane = detail::lane_of(a);
    add(std::snprintf(line, sizeof line,
                      R"({"ph":"X","name":"%c%d","cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"microbatch":%d}})", lane.letter,
                      a.microbatch, lane.category, lane.process, lane.thread, a.start_s * 1e6, (a.end_s - a.start_s) * 1e6, a.microbatch));
  }
  out += "\n]}\n";
  return out;
}

}  // namespace hetsched
