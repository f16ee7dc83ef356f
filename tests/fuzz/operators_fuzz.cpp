// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of operators either throws input_error or returns rows that it reads equal when they are written
// line by line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <hetsched/io/operators_csv.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = hetsched::parse_operators(text, "input");
    std::string again = read.heading + '\n';
    for (const auto& line : read.lines) again += line + '\n';
    if (hetsched::parse_operators(again, "output") != read) std::abort();
    (void)hetsched::to_csv(read, std::vector<double>(read.lines.size(), 1e300));
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
