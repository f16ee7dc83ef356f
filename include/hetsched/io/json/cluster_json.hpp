// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/models/anchor.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/io/json/device_json.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

/// Most devices that a cluster file may describe.
inline constexpr int max_devices = 1 << 20;

/// What a cluster.json says.
struct cluster_file {
  cluster hardware;
  std::optional<training_stack> stack{};  ///< of the trainer that runs there
  std::vector<device_anchor> anchors{};   ///< how fast devices were seen to train: see anchored()
  std::vector<std::string> files{};       ///< other files that it names: models of anchors, device.json
};

/// Reads a cluster.json from its text.
/// Throws: file_error.
/// Complexity: O(size).
[[nodiscard]] cluster_file parse_cluster_file(std::string_view text, std::string_view file_name);

/// Reads a cluster.json.
/// Throws: file_error.
[[nodiscard]] inline cluster_file read_cluster_file(const std::string& path) { return parse_cluster_file(read_text(path), path); }

/// Its hardware alone.
/// Throws: file_error.
[[nodiscard]] inline cluster parse_cluster(std::string_view text, std::string_view file_name) {
  return parse_cluster_file(text, file_name).hardware;
}
[[nodiscard]] inline cluster read_cluster(const std::string& path) { return parse_cluster(read_text(path), path); }

/// The text of a cluster.json that parse_cluster reads back as an equal cluster. Every device in use is written out, whether
/// the catalogue has it or not.
[[nodiscard]] std::string to_json(const cluster& c);

/// Names of the subclusters, by position.
[[nodiscard]] inline std::vector<std::string> subcluster_names(const cluster& c) {
  std::vector<std::string> names;
  for (const auto& s : c.subclusters) names.push_back(s.name);
  return names;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/cluster_json.ipp>
#endif
