// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/round_trip_test.cpp.

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// Contents of a pipeline.json.
struct pipeline_file {
  int microbatches = 1;
  pipeline times;
  friend bool operator==(const pipeline_file&, const pipeline_file&) = default;
};

namespace detail {

/// Longest time in a file, in seconds.
inline constexpr double max_seconds = 1e9;
inline constexpr int max_microbatches = 1'000'000;
inline constexpr int max_stages = 100'000;

[[nodiscard]] inline std::vector<double> read_seconds(const json_value& array) {
  return array.list([](const json_value& time) { return time.number(0, max_seconds); });
}

}  // namespace detail

/// Reads a pipeline.json from its text.
/// Throws: file_error.
/// Complexity: O(size).
[[nodiscard]] pipeline_file parse_pipeline(std::string_view text, std::string_view file_name);

/// Reads a pipeline.json.
/// Throws: file_error.
[[nodiscard]] inline pipeline_file read_pipeline(const std::string& path) { return parse_pipeline(read_text(path), path); }

/// The text of a pipeline.json that parse_pipeline reads back as an equal one, if activation_bytes are whole numbers (they
/// are rounded).
[[nodiscard]] std::string to_json(const pipeline_file& file);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/pipeline_json.ipp>
#endif
