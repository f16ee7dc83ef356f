// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// A timeline as a Chrome trace (JSON object format, complete events in microseconds), for Perfetto or chrome://tracing.
/// Every rank is a process; its threads are compute, send to each peer (or d2h, network and, at the receiver, h2d), and
/// collective. Events are named by the text form of actions, 2F0 or 1SEND_F3.
/// Complexity: O(actions * log(threads)).
/// Example:
///   const auto order = build_schedule("1f1b", stages, 8);
///   const auto played = simulate(stages, order);
///   write_file("trace.json", chrome_trace(played.timeline));
[[nodiscard]] std::string chrome_trace(const timeline& t);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/trace/chrome_trace.ipp>
#endif
