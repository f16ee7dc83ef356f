// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of cluster.json either throws input_error or returns what its writer writes back equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/stack_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = hetsched::parse_cluster_file(text, "input");
    if (hetsched::parse_cluster(hetsched::to_json(read.hardware), "output") != read.hardware) std::abort();
    if (read.stack && hetsched::parse_stack(hetsched::to_json(*read.stack), "output") != *read.stack) std::abort();
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
