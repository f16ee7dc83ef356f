// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/round_trip_test.cpp.

#include <string>
#include <string_view>
#include <variant>

#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/io/json/pipeline_json.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

/// Most layers that a model or profile file may have.
inline constexpr int max_layers = 100'000;

/// Most devices that a replica in a profile may have.
inline constexpr int max_replica_devices = 1'000'000;

/// What a profile.json holds: shapes as a whole (version 1), or single replicas (version 2).
using profile_file = std::variant<profile, replica_profile>;

namespace detail {

[[nodiscard]] profile read_profile_1(const json_value& top);

}  // namespace detail

/// Reads a profile.json of either version from its text. What depends on the cluster (names of subclusters, and a subcluster and
/// a device row for one thing) is checked by profile_cost_model and replica_cost_model.
/// Throws: file_error.
/// Complexity: O(size + entries^2).
[[nodiscard]] profile_file parse_profile_file(std::string_view text, std::string_view file_name);

/// Reads a profile.json of either version.
/// Throws: file_error.
[[nodiscard]] inline profile_file read_profile_file(const std::string& path) { return parse_profile_file(read_text(path), path); }

/// Reads a profile.json of version 1 from its text, as parse_profile_file.
/// Throws: file_error.
[[nodiscard]] inline profile parse_profile(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  return detail::read_profile_1(document.format("profile", {"layers", "costs"}));
}

/// Reads a profile.json of version 1.
/// Throws: file_error.
[[nodiscard]] inline profile read_profile(const std::string& path) { return parse_profile(read_text(path), path); }

/// The text of a profile.json of version 1 that reads back as an equal profile.
[[nodiscard]] std::string to_json(const profile& p);

/// The text of a profile.json of version 2, as above.
[[nodiscard]] std::string to_json(const replica_profile& p);

/// The text of a profile.json of the version that it is.
[[nodiscard]] inline std::string to_json(const profile_file& p) {
  return std::visit([](const auto& one) { return to_json(one); }, p);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/profile_json.ipp>
#endif
