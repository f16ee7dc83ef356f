// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/model/tensor_graph.hpp>

namespace hetsched {

/// Contents of a graph.json.
struct graph_file {
  tensor_graph graph;
  int loss = -1;                ///< the node named loss, else the last one
  std::vector<int> segments{};  ///< of each node, for in_segments(); empty where no node names one
  friend bool operator==(const graph_file&, const graph_file&) = default;
};

/// Reads a graph.json from its text. Its numbers are fp16 unless "dtype" says otherwise.
/// Throws: file_error.
/// Complexity: O(size).
[[nodiscard]] graph_file parse_graph(std::string_view text, std::string_view file_name);

/// Reads a graph.json.
/// Throws: file_error.
[[nodiscard]] inline graph_file read_graph(const std::string& path) { return parse_graph(read_text(path), path); }

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/graph_json.ipp>
#endif
