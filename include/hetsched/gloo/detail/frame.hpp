// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>

namespace hetsched::detail {

/// What ranks say to each other besides tensors.
enum class frame_kind : std::uint32_t {
  receive_posted,  ///< tensor_note: a tensor of this number may come
  numbers,         ///< gathered_numbers, then doubles; goes on to all neighbours
  abort,           ///< text
  leaving,         ///< std::uint64_t: tensors sent to the receiver of this
  released,        ///< the answer to leaving: all of them have come
  acknowledge,     ///< nothing but the header
  ask,             ///< inquiry: whether all are there; goes on to all neighbours
  answer,          ///< inquiry: the same, to the one that has asked
  announced        ///< tensor_note: a tensor of this number waits until it may come
};

struct frame_header {
  frame_kind kind = frame_kind::acknowledge;
  std::uint32_t bytes = 0;         ///< that follow
  std::uint64_t acknowledged = 0;  ///< unasked tensors that its sender has got from its receiver
};

/// The longest frame, in bytes. All hosts are taken to have the same byte order.
inline constexpr std::size_t longest_frame = 1024;

/// Tensors of at most so many bytes go unasked, so many of them to one rank before it has taken the first. Longer ones go when
/// their receives have been posted, straight into their memory.
inline constexpr std::size_t small_tensor = 16384, most_unasked = 64;

/// A tensor, as one end of its channel knows it. Both ends compare before bytes go into a tensor.
struct tensor_note {
  std::uint64_t number = 0;  ///< of its channel, from 0
  std::int64_t step = 0;
  std::uint64_t bytes = 0, elements = 0, shape = 0;
  std::int32_t microbatch = 0, stamp_direction = 0, stamp_stage = 0;
  std::int32_t edge_direction = 0, edge_stage = 0, edge_part = 0;
  std::uint8_t stamp_what = 0, edge_what = 0;
  std::uint8_t unasked = 0;  ///< of a tensor that is sent

  void tell(const hetsched::stamp& s, const edge& e);
  [[nodiscard]] hetsched::stamp stamp() const {
    return {step, microbatch, static_cast<payload>(stamp_what), stamp_direction, stamp_stage};
  }
  [[nodiscard]] sent_tensor tensor() const { return {stamp(), bytes, elements, shape}; }
  [[nodiscard]] edge where(int from, int to) const {
    return {from, to, static_cast<payload>(edge_what), edge_direction, edge_stage, edge_part};
  }
};

/// Comes before the bytes of a tensor.
struct tensor_header {
  tensor_note note;
  std::uint64_t acknowledged = 0;  ///< as in frame_header
};

struct gathered_numbers {
  std::uint64_t round = 0, all = 0;  ///< all: of the round, of this rank
  std::uint64_t from = 0;            ///< the rank that brings them
};
struct inquiry {
  std::uint64_t number = 0;
  std::uint32_t asker = 0, answerer = 0;  ///< ranks
};
inline constexpr std::size_t numbers_per_frame =
    (longest_frame - sizeof(frame_header) - sizeof(gathered_numbers)) / sizeof(double);

template <class T>
[[nodiscard]] T read_part(const char* from) {
  T part;
  std::memcpy(&part, from, sizeof part);
  return part;
}

[[nodiscard]] inline bool is_known(const tensor_note& n) {
  constexpr auto last = static_cast<std::uint8_t>(payload::collective);
  return n.edge_what <= last && n.stamp_what <= last;
}

/// What is wrong with a frame that came from another rank, whatever is in its `longest_frame` bytes; nullptr: nothing, its body
/// can be read. `sent`: unasked tensors that this rank has sent to that one.
[[nodiscard]] const char* fault_of(const char* frame, std::uint64_t sent);

/// What is wrong with what comes before a tensor; nullptr: nothing. `number`: of the next tensor of its channel.
[[nodiscard]] const char* fault_of(const tensor_header& h, std::uint64_t number, std::uint64_t sent);

template <class T>
void append(std::vector<char>& to, const T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (count == 0) return;
  const std::size_t before = to.size();
  to.resize(before + count * sizeof(T));
  std::memcpy(to.data() + before, values, count * sizeof(T));
}

/// Appends a frame of up to two parts.
template <class First, class Second = char>
void append_frame(std::vector<char>& to, frame_kind kind, std::uint64_t acknowledged, const First* first, std::size_t firsts,
                  const Second* second = nullptr, std::size_t seconds = 0) {
  const frame_header header{.kind = kind,
                            .bytes = static_cast<std::uint32_t>(firsts * sizeof(First) + seconds * sizeof(Second)),
                            .acknowledged = acknowledged};
  append(to, &header, 1);
  append(to, first, firsts);
  append(to, second, seconds);
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/frame.ipp>
#endif
