// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of pipeline.json either throws input_error or returns a valid pipeline, which its writer writes
// back equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <hetsched/io/json/pipeline_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  hetsched::pipeline_file read;
  try {
    read = hetsched::parse_pipeline(text, "input");
  } catch (const hetsched::input_error&) {
    return 0;
  }
  hetsched::validate(read.times);
  if (hetsched::parse_pipeline(hetsched::to_json(read), "output") != read) std::abort();
  return 0;
}
