// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <compare>
#include <cstddef>
#include <map>
#include <string_view>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched::detail {

inline constexpr const char* trace_categories[action_kinds] = {"forward",
                                                               "backward",
                                                               "backward_input",
                                                               "backward_weight",
                                                               "recompute",
                                                               "activation",
                                                               "activation",
                                                               "gradient",
                                                               "gradient",
                                                               "activation d2h",
                                                               "activation",
                                                               "activation h2d",
                                                               "gradient d2h",
                                                               "gradient",
                                                               "gradient h2d",
                                                               "all_gather",
                                                               "release",
                                                               "reduce_scatter",
                                                               "reduce_gradients",
                                                               "optimizer",
                                                               "post",
                                                               "post",
                                                               "post",
                                                               "post",
                                                               "post",
                                                               "wait",
                                                               "wait",
                                                               "wait",
                                                               "wait",
                                                               "wait"};

/// A thread of a trace. Events of one thread may not overlap, so those that do (a link with several transfers under way) take
/// further threads.
struct trace_track {
  int rank = 0;
  hetsched::stream stream = hetsched::stream::compute;
  int peer = -1;
  int further = 0;
  friend auto operator<=>(const trace_track&, const trace_track&) = default;
};

/// The thread of an action: on the receiving rank for copies from host to device, else on the rank that lists it.
[[nodiscard]] constexpr trace_track track_of(const timed_action& a) {
  const auto kind = a.what.kind;
  if (is_h2d(kind)) return {a.peer, stream::h2d, a.rank, 0};
  if (is_transfer(kind)) return {a.rank, is_receive(kind) ? stream::send : stream_of(traits_of(kind).leg), a.peer, 0};
  return {a.rank, is_parameter(kind) && kind != action_kind::optimizer ? stream::collective : stream::compute, -1, 0};
}

[[nodiscard]] inline std::string track_name(const trace_track& t) {
  std::string name(at(stream_names, t.stream));
  if (t.peer >= 0) name += (t.stream == stream::h2d ? " from rank " : " to rank ") + std::to_string(t.peer);
  if (t.further > 0) name += " (" + std::to_string(t.further + 1) + ")";
  return name;
}

/// Microseconds, rounded to whole nanoseconds: what ends where the next begins must still do so in the text.
[[nodiscard]] inline double trace_time(double seconds) { return std::floor(seconds * 1e9 + 0.5) / 1e3; }

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string chrome_trace(const timeline& t) {
  // The thread of every action; the ends of the last events of a thread and its further ones tell where the next one fits.
  std::vector<detail::trace_track> tracks;
  tracks.reserve(t.actions.size());
  std::map<detail::trace_track, std::vector<double>> ends;
  for (int rank = 0; rank < t.ranks; ++rank) ends[{rank, stream::compute, -1, 0}] = {0.0};
  for (const auto& a : t.actions) {
    auto track = detail::track_of(a);
    auto& last = ends[track];
    const double start = detail::trace_time(a.start_s), end = detail::trace_time(a.end_s);
    // A fused computation lies inside the one before it, which viewers draw below each other.
    const auto fits = [&](double before) {
      return before <= start || (a.what.joined && track.stream == stream::compute && end <= before);
    };
    std::size_t k = 0;
    while (k < last.size() && !fits(last[k])) ++k;
    if (k == last.size()) last.push_back(end);
    if (last[k] < end) last[k] = end;
    track.further = static_cast<int>(k);
    tracks.push_back(track);
  }

  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  std::string_view separator = "\n";
  const auto add = [&](const std::string& event) {
    out += separator;
    out += event;
    separator = ",\n";
  };
  std::map<detail::trace_track, int> threads;
  int thread = 0;
  for (const auto& [first, last] : ends) {
    const int rank = first.rank;
    if (first.stream == stream::compute) {
      thread = 0;
      add(detail::print(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"rank %d"}})", rank, rank));
      add(detail::print(R"({"ph":"M","name":"process_sort_index","pid":%d,"args":{"sort_index":%d}})", rank, rank));
    }
    for (auto track = first; track.further < static_cast<int>(last.size()); ++track.further) {
      threads[track] = thread;
      add(detail::print(R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"%s"}})", rank, thread,
                        detail::track_name(track).c_str()));
      add(detail::print(R"({"ph":"M","name":"thread_sort_index","pid":%d,"tid":%d,"args":{"sort_index":%d}})", rank, thread,
                        thread));
      ++thread;
    }
  }
  for (std::size_t i = 0; i < t.actions.size(); ++i) {
    const auto& a = t.actions[i];
    const double start = detail::trace_time(a.start_s);
    std::string event = detail::print(
        R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"stage":%d,"replica":%d)",
        to_text(a.what).c_str(), at(detail::trace_categories, a.what.kind), tracks[i].rank, threads[tracks[i]], start,
        detail::trace_time(a.end_s) - start, a.what.stage, static_cast<int>(a.what.direction));
    if (a.what.microbatch != no_microbatch) event += ",\"microbatch\":" + std::to_string(a.what.microbatch);
    if (a.peer >= 0) event += ",\"peer\":" + std::to_string(a.peer);
    add(event + "}}");
  }
  out += "\n]}\n";
  return out;
}

}  // namespace hetsched
