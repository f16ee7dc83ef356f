// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of traces either throws input_error or returns a timeline that figures() takes, and that comes
// back from its writer equal but for what is told by nested times. Those of torch.profiler's traces throw input_error or return
// what figures() and parse_operators() take or refuse.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <hetsched/io/operators_csv.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/io/trace/kineto.hpp>
#include <hetsched/io/trace/kineto_operators.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    (void)hetsched::figures(hetsched::parse_kineto_traces({{"input", std::string(text)}}));
  } catch (const hetsched::input_error&) {
  }
  try {
    (void)hetsched::parse_operators(hetsched::kineto_operators_csv(text, "input"), "table");
  } catch (const hetsched::input_error&) {
  }
  hetsched::timeline read;
  try {
    read = hetsched::parse_trace(text, "input");
  } catch (const hetsched::input_error&) {
    return 0;
  }
  // Nanoseconds are exact up to here; and a trace of very many ranks takes long to write.
  const bool exact = std::all_of(read.actions.begin(), read.actions.end(),
                                 [](const auto& a) { return std::abs(a.start_s) < 4e6 && std::abs(a.end_s) < 4e6; });
  if (!exact || read.ranks > 1000) return 0;
  (void)hetsched::figures(read);
  auto again = hetsched::parse_trace(hetsched::chrome_trace(read), "output");
  if (again.ranks != read.ranks || again.microbatches != read.microbatches || again.actions.size() != read.actions.size())
    std::abort();
  for (std::size_t i = 0; i < read.actions.size(); ++i) {
    again.actions[i].what.joined = read.actions[i].what.joined;
    if (again.actions[i] != read.actions[i]) std::abort();
  }
  return 0;
}
