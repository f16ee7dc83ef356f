// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/channel_end.hpp>
#include <hetsched/gloo/detail/frame.hpp>

namespace hetsched::detail {

/// Bytes that have come over a connection and have not been read.
struct heard_bytes {
  std::vector<char> memory;
  std::size_t first = 0, last = 0;
  [[nodiscard]] const char* data() const { return memory.data() + first; }
  [[nodiscard]] std::size_t size() const { return last - first; }
  void take(std::size_t bytes) {
    first += bytes;
    if (first == last) first = last = 0;
  }
  /// Room at the end for as many as possible.
  [[nodiscard]] std::size_t make_room() {
    if (first > 0) std::memmove(memory.data(), memory.data() + first, size());
    last -= std::exchange(first, 0);
    return memory.size() - last;
  }
};

/// What a rank knows of another one.
struct peer_state {
  struct round_part {
    std::uint64_t round = 0, all = 0;
    std::vector<double> numbers;
  };
  using time = std::chrono::steady_clock::time_point;

  bool there = false;                                ///< false for this rank itself
  bool met = false;                                  ///< it is connected; else what there is to be sent waits
  bool called = false;                               ///< to be
  heard_bytes frames, data;                          ///< from it
  std::vector<char> to_say;                          ///< frames to it that have not left
  std::size_t said = 0;                              ///< bytes of them that have
  transfer_queue outgoing;                           ///< tensors to it that have not left
  bool waits_to_say = false, waits_to_send = false;  ///< for room in the system's memory

  // The tensor that is coming; there is none where from is null.
  tensor_note coming;
  channel_end* from = nullptr;
  gloo_transfer* into = nullptr;       ///< null: early
  early_tensor* into_early = nullptr;  ///< null where into is not
  std::size_t have = 0;                ///< bytes of it

  std::uint64_t unasked_sent = 0, acknowledged = 0;  ///< by it
  std::uint64_t unasked_come = 0;                    ///< begun to come
  std::uint64_t unasked_got = 0, told = 0;           ///< taken by receives; acknowledged to it
  std::uint64_t tensors_sent = 0, tensors_got = 0, tensors_due = 0;
  std::uint64_t answered_to = 0;  ///< the last question whether it is there
  std::uint64_t asked = 0;        ///< its own last one
  std::deque<round_part> gathered;
  bool down = false;                ///< its frames have ended
  bool gave_up = false;             ///< it has aborted: it brings no more numbers
  bool leaving = false;             ///< it has said so
  bool answered = false;            ///< to that
  bool released = false;            ///< it has got all that this rank has sent
  bool mute = false;                ///< its tensors have ended, or what it says is not to be read
  std::optional<time> broken_at{};  ///< its tensors have ended; its frames may tell why
  std::string broken_why;

  /// Forgets what has been said, if it is all.
  [[nodiscard]] bool has_to_say() {
    if (said < to_say.size()) return true;
    to_say.clear();
    said = 0;
    return false;
  }
  /// From then on no tensor is touched.
  void drop_tensors() {
    outgoing = {};
    into = nullptr;
    from = nullptr;
  }
  /// Where the next byte of the tensor that is coming goes.
  [[nodiscard]] char* place() const { return (into ? into->data : into_early->bytes) + have; }
  /// False if they are more than were announced.
  [[nodiscard]] bool add_numbers(const gathered_numbers& part, const char* values, std::size_t count);
  /// Whether all numbers of a round are here.
  [[nodiscard]] bool has_brought(std::uint64_t round) {
    while (!gathered.empty() && gathered.front().round < round) gathered.pop_front();  // of a gather that was given up
    return !gathered.empty() && gathered.front().round == round && gathered.front().numbers.size() == gathered.front().all;
  }
  [[nodiscard]] std::vector<double> take_numbers() {
    auto numbers = std::move(gathered.front().numbers);
    gathered.pop_front();
    return numbers;
  }
};

/// The numbers of a round that all have brought; `mine` are those of the rank whose peers these are.
void take_round(std::vector<peer_state>& peers, std::span<const double> mine, std::vector<std::vector<double>>& all);
/// The first other rank that has not done something; -1: all have.
template <class Done>
[[nodiscard]] int first_without(std::vector<peer_state>& peers, const Done& done) {
  for (std::size_t p = 0; p < peers.size(); ++p)
    if (peers[p].there && !done(peers[p])) return static_cast<int>(p);
  return -1;
}
/// "rank 1 has", or "ranks 1, 2 have".
template <class Done>
[[nodiscard]] std::string ranks_without(std::vector<peer_state>& peers, const Done& done) {
  std::string names;
  int count = 0;
  for (std::size_t p = 0; p < peers.size(); ++p)
    if (peers[p].there && !done(peers[p])) names += (count++ > 0 ? ", " : "") + std::to_string(p);
  return count == 1 ? "rank " + names + " has" : "ranks " + names + " have";
}
[[nodiscard]] inline std::string lost_text(const std::vector<peer_state>& peers, int p, const std::string& why) {
  return "rank " + std::to_string(p) + (at(peers, p).leaving ? " has left" : " was lost") + (why.empty() ? "" : ": " + why);
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/peer_state.ipp>
#endif
