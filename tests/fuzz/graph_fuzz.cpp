// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of graph.json either throws input_error or returns a graph; so does its backward.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <hetsched/io/json/graph_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    auto file = hetsched::parse_graph(text, "input");
    (void)hetsched::add_backward(file.graph, file.loss);
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
