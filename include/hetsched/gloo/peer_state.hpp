// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

#include <hetsched/gloo/frame.hpp>

namespace hetsched::detail {

/// What a rank knows of another one.
struct peer_state {
  struct sent_frame {
    std::vector<char> bytes;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
  };
  struct round_part {
    std::uint64_t round = 0, all = 0;
    std::vector<double> numbers;
  };

  std::vector<char> memory;  ///< for frames from it
  std::unique_ptr<::gloo::transport::UnboundBuffer> incoming;
  std::thread reader;  ///< none for this rank itself
  std::deque<sent_frame> unacknowledged;
  std::uint64_t acknowledged = 0;  ///< of the frames sent to it
  std::uint64_t frames_got = 0, frames_told = 0;
  std::uint64_t tensors_sent = 0, tensors_got = 0, tensors_due = 0;
  std::uint64_t answered_to = 0;  ///< the last question whether it is there
  std::deque<round_part> gathered;
  bool down = false;      ///< its frames have ended
  bool gave_up = false;   ///< it has aborted: it brings no more numbers
  bool leaving = false;   ///< it has said so
  bool answered = false;  ///< to that
  bool released = false;  ///< it has got all that this rank has sent

  /// Gloo cannot tell whether a frame has left, but its receiver can.
  void acknowledge(std::uint64_t frames) {
    for (; acknowledged < frames && !unacknowledged.empty(); ++acknowledged) unacknowledged.pop_front();
  }
  /// False if they are more than were announced.
  [[nodiscard]] bool add_numbers(const gathered_numbers& part, const char* values, std::size_t count) {
    const bool goes_on = !gathered.empty() && gathered.back().round == part.round;
    const std::size_t before = goes_on ? gathered.back().numbers.size() : 0;
    if (count > (goes_on ? gathered.back().all : part.all) - before) return false;
    if (!goes_on) gathered.push_back({.round = part.round, .all = part.all, .numbers = {}});
    auto& numbers = gathered.back().numbers;
    numbers.resize(before + count);
    if (count > 0) std::memcpy(numbers.data() + before, values, count * sizeof(double));
    return true;
  }
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

}  // namespace hetsched::detail
