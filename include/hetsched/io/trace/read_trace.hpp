// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// Reads the timeline out of a Chrome trace (JSON object format) that chrome_trace() has written, whatever other events stand
/// between.
/// Returns: the same actions in the same order, with times in whole nanoseconds (exact below 2^53 of them, about 100 days).
/// Fused computations are known by their nested times, so those that take no time come back apart, and so do other joined
/// actions.
/// Throws: file_error.
/// Complexity: O(events * log(events)).
[[nodiscard]] timeline parse_trace(std::string_view text, std::string_view file_name);

/// Reads a trace file; see parse_trace.
/// Throws: file_error.
[[nodiscard]] inline timeline read_trace(const std::string& path) { return parse_trace(read_text(path), path); }

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/trace/read_trace.ipp>
#endif
