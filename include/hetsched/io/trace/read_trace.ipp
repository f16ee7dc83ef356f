// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/json/pipeline_json.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched::detail {

/// Threads of a trace, by process and thread number.
using trace_thread = std::pair<std::int64_t, std::int64_t>;

/// Takes the timeline's events out of a trace. Processes are ranks. An event is an action if its args name a stage and a
/// replica, as traces call a direction.
class trace_reader {
 public:
  explicit trace_reader(const json_value& top) {
    const auto events = top.object().at("traceEvents");
    const auto count = events.size();
    for (std::size_t i = 0; i < count; ++i) {
      const auto event = events[i].object();
      const auto phase = event.find("ph");
      if (!phase) continue;
      if (const auto text = phase->text(); text == "M")
        read_name(event);
      else if (text == "X" && is_action(event))
        actions_.push_back(event);
    }
    if (actions_.empty())
      events.fail("no event is an action of a pipeline: complete events (ph X) with a stage and a replica in their args");
  }

  [[nodiscard]] timeline read() {
    timeline t{.ranks = ranks_, .microbatches = 1, .actions = {}};
    t.actions.reserve(actions_.size());
    for (const auto& event : actions_) {
      t.actions.push_back(read_action(event));
      const auto& a = t.actions.back();
      t.ranks = std::max({t.ranks, a.rank + 1, a.peer + 1});
      t.microbatches = std::max(t.microbatches, a.what.microbatch + 1);
    }
    std::stable_sort(t.actions.begin(), t.actions.end(), [](const timed_action& a, const timed_action& b) {
      if (a.rank != b.rank) return a.rank < b.rank;
      if (is_transfer(a.what.kind) != is_transfer(b.what.kind)) return is_transfer(b.what.kind);
      return a.start_s < b.start_s;
    });
    return t;
  }

 private:
  static constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();

  static bool is_action(const json_value& event) {
    const auto args = event.find("args");
    return args && args->has("stage") && args->has("replica");
  }

  static int rank(const json_value& number) { return number.count(0, max_stages - 1); }

  /// The number behind a prefix, if it has at most nine digits.
  static std::optional<int> number_behind(std::string_view text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return std::nullopt;
    text.remove_prefix(prefix.size());
    int value = 0;
    std::size_t digits = 0;
    for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
      if (digits == 9) return std::nullopt;
      value = 10 * value + (text[digits] - '0');
    }
    if (digits == 0 || (digits < text.size() && text[digits] != ' ')) return std::nullopt;
    return value;
  }

  /// Processes and threads of others may bear any name.
  void read_name(const json_value& event) {
    const auto kind = event.find("name"), args = event.find("args"), pid = event.find("pid");
    if (!kind || !args || !pid || !args->has("name")) return;
    const auto name = args->at("name").text();
    if (kind->text() == "process_name") {
      if (const auto r = number_behind(name, "rank "); r && pid->integer(-any, any) == *r)
        ranks_ = std::max(ranks_, rank(*pid) + 1);
    } else if (kind->text() == "thread_name") {
      if (const auto from = number_behind(name, "h2d from rank ")) senders_[thread_of(event)] = *from;
    }
  }

  static trace_thread thread_of(const json_value& event) {
    return {event.at("pid").integer(-any, any), event.at("tid").integer(-any, any)};
  }

  static action_kind kind_of(const json_value& name, const action& a) {
    const auto text = name.text();
    for (int k = 0; k < action_kinds; ++k) {
      if (text.find(kind_names[k]) == std::string::npos) continue;
      auto guess = a;
      guess.kind = static_cast<action_kind>(k);
      if (to_text(guess) == text) return guess.kind;
    }
    name.expected("the text form of an action of stage " + std::to_string(a.stage) +
                  (a.microbatch == no_microbatch ? "" : " and microbatch " + std::to_string(a.microbatch)) + ", as in 2F0");
  }

  timed_action read_action(const json_value& event) {
    const auto args = event.at("args");
    timed_action a;
    a.what.stage = args.at("stage").count(0, max_stages - 1);
    a.what.direction = static_cast<std::int16_t>(args.at("replica").count(0, std::numeric_limits<std::int16_t>::max()));
    const auto microbatch = args.find("microbatch");
    a.what.microbatch = microbatch ? microbatch->count(0, max_microbatches - 1) : no_microbatch;
    a.what.kind = kind_of(event.at("name"), a.what);
    if ((is_compute(a.what.kind) || is_transfer(a.what.kind)) != microbatch.has_value())
      args.fail(microbatch ? "a microbatch, where none is expected" : "no microbatch, where one is expected");
    a.rank = rank(event.at("pid"));
    const auto peer = args.find("peer");
    if (is_transfer(a.what.kind) != peer.has_value())
      args.fail(peer ? "a peer of what is no transfer" : "a transfer without a peer");
    if (peer) a.peer = rank(*peer);
    if (detail::is_h2d(a.what.kind)) {
      // It lies with the receiver, on a thread that is named after the sender.
      const auto from = senders_.find(thread_of(event));
      if (a.peer != a.rank || from == senders_.end() || from->second >= max_stages)
        event.fail("a copy to the device of rank " + std::to_string(a.peer) +
                   ", expected on a thread of this rank with a name such as \"h2d from rank 0\"");
      a.rank = from->second;
    }
    // Whole nanoseconds, as they were written: what ends where the next begins still does so.
    const double start = event.at("ts").number(-max_seconds * 1e6, max_seconds * 1e6);
    const double duration = event.at("dur").number(0, max_seconds * 1e6);
    a.start_s = std::floor(start * 1e3 + 0.5) / 1e9;
    a.end_s = std::floor((start + duration) * 1e3 + 0.5) / 1e9;
    if (is_compute(a.what.kind) || a.what.kind == action_kind::optimizer) {
      // Of computations, only fused ones share time on a thread.
      auto& last_s = compute_ends_.try_emplace(thread_of(event), -infinity).first->second;
      a.what.joined = a.start_s < last_s && a.end_s <= last_s;
      last_s = std::max(last_s, a.end_s);
    }
    return a;
  }

  std::vector<json_value> actions_;
  std::map<trace_thread, int> senders_;          ///< of the threads of copies to a device
  std::map<trace_thread, double> compute_ends_;  ///< of the threads' computations so far
  int ranks_ = 1;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE timeline parse_trace(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  return detail::trace_reader(document.value()).read();
}

}  // namespace hetsched
