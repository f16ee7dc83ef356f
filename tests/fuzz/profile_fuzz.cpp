// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of profile.json either throws input_error or returns what its writer writes back equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <hetsched/io/json/profile_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = hetsched::parse_profile_file(text, "input");
    if (hetsched::parse_profile_file(hetsched::to_json(read), "output") != read) std::abort();
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
