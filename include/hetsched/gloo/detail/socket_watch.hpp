// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>

namespace hetsched::detail {

/// Waits for what happens to sockets, each known by a number of the caller's, until somebody calls alarm().
class socket_watch {
 public:
  socket_watch() = default;
  /// Throws: error if the system gives no more files.
  explicit socket_watch(std::uint64_t number_of_alarm)
      : events_(epoll_create1(EPOLL_CLOEXEC)), alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!events_ || !alarm_) throw error(std::string("sockets cannot be watched: ") + std::strerror(errno));
    add(alarm_.number(), number_of_alarm);
  }
  /// Throws: error if the system watches no more.
  void add(int socket, std::uint64_t number) const {
    if (!control(EPOLL_CTL_ADD, socket, EPOLLIN, number))
      throw error(std::string("a socket cannot be watched: ") + std::strerror(errno));
  }
  /// Of a socket that is not watched: does nothing. So does remove().
  void change(int socket, std::uint64_t number, bool for_input, bool for_output) const {
    (void)control(EPOLL_CTL_MOD, socket, (for_input ? std::uint32_t{EPOLLIN} : 0) | (for_output ? std::uint32_t{EPOLLOUT} : 0),
                  number);
  }
  void remove(int socket) const { (void)control(EPOLL_CTL_DEL, socket, 0, 0); }
  void alarm() const {
    const std::uint64_t one = 1;
    (void)!::write(alarm_.number(), &one, sizeof one);
  }
  /// Behind an alarm, until the next one.
  void quiet() const {
    std::uint64_t times = 0;
    (void)!::read(alarm_.number(), &times, sizeof times);
  }
  /// `limit_ms`: -1: none. The result is good until the next call.
  [[nodiscard]] std::span<const epoll_event> wait(int limit_ms) {
    const int count = epoll_wait(events_.number(), happened_.data(), static_cast<int>(happened_.size()), limit_ms);
    return {happened_.data(), as_size(std::max(count, 0))};
  }

 private:
  [[nodiscard]] bool control(int how, int socket, std::uint32_t for_what, std::uint64_t number) const {
    epoll_event event{};
    event.events = for_what;
    event.data.u64 = number;
    return epoll_ctl(events_.number(), how, socket, &event) == 0;
  }
  unique_socket events_, alarm_;
  std::array<epoll_event, 32> happened_{};
};

enum class reading { some, full, ended };
/// Reads once. Full: there may be more. `why`: it has ended.
[[nodiscard]] reading read_some(int socket, char* to, std::size_t room, std::size_t& got, std::string& why);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/socket_watch.ipp>
#endif
