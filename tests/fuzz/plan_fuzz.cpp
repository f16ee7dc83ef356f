// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of plan.json either throws input_error or returns what its writer writes back equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <variant>

#include <hetsched/io/json/plan_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = hetsched::parse_any_plan(text, "input");
    const auto written = std::visit([](const auto& f) { return to_json(f.plan, f.subclusters, f.device_counts); }, read);
    if (hetsched::parse_any_plan(written, "output") != read) std::abort();
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
