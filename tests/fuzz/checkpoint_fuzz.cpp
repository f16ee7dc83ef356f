// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, with a right checksum behind them the reader of a checkpoint's manifest either throws input_error or
// returns slices that lie in their parts and fill every tensor exactly once.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <utility>

#include <hetsched/io/checkpoint/checkpoint_manifest.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  const auto sum = hetsched::crc64(std::as_bytes(std::span(text)));
  text += ",\n  \"checksum\": \"" + hetsched::detail::hexadecimal(sum) + "\"\n}\n";
  try {
    const auto read = hetsched::parse_checkpoint(text, "input");
    std::map<std::pair<int, std::string>, std::size_t> held, wanted;
    for (const auto& s : read.slices) {
      const auto width = hetsched::detail::element_bytes(s.element);
      if (s.part < 0 || static_cast<std::size_t>(s.part) >= read.parts.size()) std::abort();
      const auto bytes = static_cast<std::size_t>(read.parts[static_cast<std::size_t>(s.part)]);
      if (width == 0 || static_cast<std::size_t>(s.offset) > bytes ||
          s.count > (bytes - static_cast<std::size_t>(s.offset)) / width)
        std::abort();
      held[{s.layer, s.name}] += s.count;
      wanted[{s.layer, s.name}] = static_cast<std::size_t>(hetsched::detail::element_count(s.shape));
    }
    if (held != wanted) std::abort();
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
