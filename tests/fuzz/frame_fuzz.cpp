// SPDX-License-Identifier: Apache-2.0
// Whatever another rank sends, a frame is refused, or all that it says of itself can be read from its bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <hetsched/gloo/detail/frame.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hetsched::detail;
  // Of its own, so that no byte behind it can be read.
  const auto frame = std::make_unique<char[]>(longest_frame);
  if (size > 0) std::memcpy(frame.get(), data, size < longest_frame ? size : longest_frame);
  constexpr std::uint64_t sent = 1000;
  if (fault_of(frame.get(), sent)) return 0;
  const auto header = read_part<frame_header>(frame.get());
  const char* const body = frame.get() + sizeof header;
  if (header.acknowledged > sent) std::abort();
  switch (header.kind) {
    case frame_kind::receive_posted:
    case frame_kind::announced:
      if (read_part<tensor_note>(body).edge_what > static_cast<std::uint8_t>(hetsched::payload::collective)) std::abort();
      break;
    case frame_kind::numbers: {
      std::vector<double> numbers((header.bytes - sizeof(gathered_numbers)) / sizeof(double));
      if (!numbers.empty()) std::memcpy(numbers.data(), body + sizeof(gathered_numbers), numbers.size() * sizeof(double));
      if (sizeof(gathered_numbers) + numbers.size() * sizeof(double) != header.bytes) std::abort();
      break;
    }
    case frame_kind::abort:
      if (std::string(body, header.bytes).size() != header.bytes) std::abort();
      break;
    case frame_kind::leaving:
      (void)read_part<std::uint64_t>(body);
      break;
    case frame_kind::ask:
    case frame_kind::answer:
      (void)read_part<hetsched::detail::inquiry>(body);
      break;
    case frame_kind::released:
    case frame_kind::acknowledge:
      if (header.bytes != 0) std::abort();
      break;
    default:
      std::abort();
  }
  return 0;
}
