// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of schedules either throws input_error or returns what its writer writes back equal; the checker
// gives an answer, and the passes do not spoil what it finds sound.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = hetsched::parse_schedule_csv(text);
    if (hetsched::parse_schedule_csv(hetsched::to_csv(read)) != read) std::abort();
    if (!hetsched::check(read).empty()) return 0;
    const auto grouped = hetsched::group_transfers(read);
    if (!hetsched::check(grouped).empty()) std::abort();
    if (!hetsched::check(hetsched::split_streams(grouped)).empty()) std::abort();
    const bool plain = std::all_of(read.lanes.begin(), read.lanes.end(), [](const hetsched::lane& l) {
      return l.stream == hetsched::stream::compute &&
             std::none_of(l.actions.begin(), l.actions.end(), [](const auto& a) { return hetsched::is_transfer(a.kind); });
    });
    if (plain && !hetsched::check(hetsched::add_transfers(read)).empty()) std::abort();
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
