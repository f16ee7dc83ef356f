// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// What ranks say to each other besides tensors.
enum class frame_kind : std::uint32_t {
  receive_posted,  ///< posted_receive
  numbers,         ///< gathered_numbers, then doubles
  abort,           ///< text
  leaving,         ///< std::uint64_t: tensors sent to the receiver of this
  released,        ///< the answer to leaving: all of them have come
  acknowledge,     ///< nothing but the header
  ask,             ///< std::uint64_t: the number of the question whether the receiver is there
  answer           ///< the same number
};

struct frame_header {
  frame_kind kind = frame_kind::acknowledge;
  std::uint32_t bytes = 0;         ///< that follow
  std::uint64_t acknowledged = 0;  ///< frames that its sender has got from its receiver
};

/// The longest frame, in bytes. All hosts are taken to have the same byte order.
inline constexpr std::size_t longest_frame = 1024;

/// What a receive expects. The sender compares before it sends, so that no tensor travels that does not fit.
struct posted_receive {
  std::int64_t step = 0;
  std::uint64_t bytes = 0, elements = 0, shape = 0;
  std::int32_t microbatch = 0, stamp_direction = 0, stamp_stage = 0;
  std::int32_t edge_direction = 0, edge_stage = 0, edge_part = 0;
  std::uint8_t stamp_what = 0, edge_what = 0;

  [[nodiscard]] stamp expected() const {
    return {step, microbatch, static_cast<payload>(stamp_what), stamp_direction, stamp_stage};
  }
};

struct gathered_numbers {
  std::uint64_t round = 0, all = 0;  ///< all: of the round, of this rank
};
inline constexpr std::size_t numbers_per_frame =
    (longest_frame - sizeof(frame_header) - sizeof(gathered_numbers)) / sizeof(double);

template <class T>
[[nodiscard]] T read_part(const char* from) {
  T part;
  std::memcpy(&part, from, sizeof part);
  return part;
}

/// What is wrong with a frame that came from another rank, whatever is in its `longest_frame` bytes; nullptr: nothing, its body
/// can be read. `sent`: frames that this rank has sent to that one.
[[nodiscard]] inline const char* fault_of(const char* frame, std::uint64_t sent) {
  const auto header = read_part<frame_header>(frame);
  const char* const body = frame + sizeof header;
  constexpr std::size_t room = longest_frame - sizeof header;
  const auto is_payload = [](std::uint8_t what) { return what <= static_cast<std::uint8_t>(payload::collective); };
  std::size_t expected = 0;
  switch (header.kind) {
    case frame_kind::receive_posted: {
      expected = sizeof(posted_receive);
      const auto wanted = read_part<posted_receive>(body);
      if (!is_payload(wanted.edge_what) || !is_payload(wanted.stamp_what)) return "asks for something unknown";
      break;
    }
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
    case frame_kind::ask:
    case frame_kind::answer:
      expected = sizeof(std::uint64_t);
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

template <class T>
void append(std::vector<char>& to, const T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (count == 0) return;
  const std::size_t before = to.size();
  to.resize(before + count * sizeof(T));
  std::memcpy(to.data() + before, values, count * sizeof(T));
}

/// A frame of up to two parts; header.acknowledged is set when it leaves.
template <class First, class Second = char>
[[nodiscard]] std::vector<char> make_frame(frame_kind kind, const First* first, std::size_t firsts,
                                           const Second* second = nullptr, std::size_t seconds = 0) {
  const frame_header header{.kind = kind, .bytes = static_cast<std::uint32_t>(firsts * sizeof(First) + seconds * sizeof(Second))};
  std::vector<char> frame;
  append(frame, &header, 1);
  append(frame, first, firsts);
  append(frame, second, seconds);
  return frame;
}

/// In place of the hash of a shape: bytes without one, which fit as many of any shape.
inline constexpr std::uint64_t no_shape = 0;

/// A hash of a tensor's extents (FNV-1a).
template <class Shape>
[[nodiscard]] std::uint64_t shape_hash(const Shape& shape) {
  std::uint64_t hash = 1469598103934665603u;
  for (const auto extent : shape) {
    auto left = static_cast<std::uint64_t>(extent);
    for (int i = 0; i < 8; ++i, left >>= 8) hash = (hash ^ (left & 255u)) * 1099511628211u;
  }
  return hash;
}

}  // namespace hetsched::detail
