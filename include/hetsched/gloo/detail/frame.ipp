// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/frame.hpp>

namespace hetsched::detail {

HETSCHED_INLINE const char* fault_of(const char* frame, std::uint64_t sent) {
  const auto header = read_part<frame_header>(frame);
  const char* const body = frame + sizeof header;
  constexpr std::size_t room = longest_frame - sizeof header;
  std::size_t expected = 0;
  switch (header.kind) {
    case frame_kind::receive_posted:
    case frame_kind::announced:
      expected = sizeof(tensor_note);
      if (header.bytes == expected && !is_known(read_part<tensor_note>(body))) return "asks for something unknown";
      break;
    case frame_kind::numbers:
      if (header.bytes < sizeof(gathered_numbers) || header.bytes > room ||
          (header.bytes - sizeof(gathered_numbers)) % sizeof(double) != 0)
        return "has a wrong length";
      expected = header.bytes;
      break;
    case frame_kind::abort:
      if (header.bytes > room) return "has a wrong length";
      expected = header.bytes;
      break;
    case frame_kind::leaving:
      expected = sizeof(std::uint64_t);
      break;
    case frame_kind::ask:
    case frame_kind::answer:
      expected = sizeof(inquiry);
      break;
    case frame_kind::released:
    case frame_kind::acknowledge:
      break;
    default:
      return "is of an unknown kind";
  }
  if (header.bytes != expected) return "has a wrong length";
  if (header.acknowledged > sent) return "acknowledges what was not sent";
  return nullptr;
}

HETSCHED_INLINE const char* fault_of(const tensor_header& h, std::uint64_t number, std::uint64_t sent) {
  if (h.note.number != number) return "is not the next one";
  if (h.note.unasked != 0 && h.note.bytes > small_tensor) return "is too long to come unasked";
  if (h.acknowledged > sent) return "acknowledges what was not sent";
  return nullptr;
}

HETSCHED_INLINE void tensor_note::tell(const hetsched::stamp& s, const edge& e) {
  step = s.step;
  microbatch = s.microbatch;
  stamp_direction = s.direction;
  stamp_stage = s.stage;
  stamp_what = static_cast<std::uint8_t>(s.what);
  edge_direction = e.direction;
  edge_stage = e.stage;
  edge_part = e.part;
  edge_what = static_cast<std::uint8_t>(e.what);
}

}  // namespace hetsched::detail
