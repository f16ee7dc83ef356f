// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/proof.hpp>
#include <hetsched/gloo/tcp_socket.hpp>

namespace hetsched::detail {

using gloo_device = std::shared_ptr<::gloo::transport::tcp::Device>;

/// A device of Gloo whose pairs listen where nobody is: at an address of this host's loopback that is drawn for them. Gloo
/// believes whoever connects first, and what it reads then may end the process. So ranks connect by themselves, and Gloo gets
/// what they have connected.
[[nodiscard]] inline gloo_device make_device() {
  const auto drawn = fresh_bytes<3>();
  sockaddr_in nowhere{};
  nowhere.sin_family = AF_INET;
  nowhere.sin_addr.s_addr =
      htonl(0x7f000000u | std::to_integer<std::uint32_t>(drawn[0]) << 16 | std::to_integer<std::uint32_t>(drawn[1]) << 8 |
            (std::to_integer<std::uint32_t>(drawn[2]) % 254 + 1));
  ::gloo::transport::tcp::attr attributes;
  attributes.ai_family = AF_INET;
  attributes.ai_socktype = SOCK_STREAM;
  attributes.ai_protocol = 0;
  attributes.ai_addr = {};
  std::memcpy(&attributes.ai_addr, &nowhere, sizeof nowhere);
  attributes.ai_addrlen = sizeof nowhere;
  return std::make_shared<::gloo::transport::tcp::Device>(attributes);
}

/// This process's socket with these names of both ends; -1: there is none. One name is not enough: systems use a port for several
/// connections, if they go to different addresses.
[[nodiscard]] inline int find_socket(const sockaddr_in& own_end, const sockaddr_in& other_end) {
  const auto is_named = [](int number, auto name_of, const sockaddr_in& wanted) {
    sockaddr_in found{};
    socklen_t size = sizeof found;
    return name_of(number, reinterpret_cast<sockaddr*>(&found), &size) == 0 && found.sin_family == AF_INET &&
           found.sin_port == wanted.sin_port && found.sin_addr.s_addr == wanted.sin_addr.s_addr;
  };
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const std::string name = entry.path().filename().string();
    int number = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc() &&
        is_named(number, getpeername, other_end) && is_named(number, getsockname, own_end))
      return number;
  }
  return -1;
}

/// Has the system ask the other host whether it is there, after so many seconds in which nothing has come; one that does not
/// answer three times, two seconds apart, or does not confirm for as long what is sent, ends the connection. So a host that is
/// cut off or without power is known whether anybody waits for it or not.
[[nodiscard]] inline bool keep_alive(const unique_socket& s, double silence_s) {
  const int on = 1, between_s = 2, times = 3, silence = std::max(1, static_cast<int>(std::min(silence_s, 1e4)));
  const unsigned most_ms = 1000u * static_cast<unsigned>(silence + between_s * times);
  const auto set = [&](int level, int option, const auto& value) {
    return setsockopt(s.number(), level, option, &value, sizeof value) == 0;
  };
  return set(SOL_SOCKET, SO_KEEPALIVE, on) && set(IPPROTO_TCP, TCP_KEEPIDLE, silence) &&
         set(IPPROTO_TCP, TCP_KEEPINTVL, between_s) && set(IPPROTO_TCP, TCP_KEEPCNT, times) &&
         set(IPPROTO_TCP, TCP_USER_TIMEOUT, most_ms);
}

/// Gives Gloo's pair with a rank a socket that is connected. The pair is connected with this function first, over loopback; then
/// the socket takes the place of that one, under the same number.
/// Throws: error, or what Gloo throws.
inline void hand_over(const gloo_device& device, ::gloo::transport::Context& context, int rank, unique_socket connected) {
  namespace tcp = ::gloo::transport::tcp;
  const auto failed = [](const char* what) { return error(std::string("the connection cannot be given to Gloo: ") + what); };
  auto& pair = context.createPair(rank);
  sockaddr_in listens{};
  const auto at = tcp::Address(pair->address().bytes()).getSockaddr();
  std::memcpy(&listens, &at, sizeof listens);
  const unique_socket local(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  socklen_t size = sizeof name;
  if (!local || connect(local.number(), reinterpret_cast<const sockaddr*>(&listens), sizeof name) != 0 ||
      getsockname(local.number(), reinterpret_cast<sockaddr*>(&name), &size) != 0)
    throw failed(std::strerror(errno));
  // Of two addresses the lower one is called: Gloo waits until it has been.
  sockaddr_in higher{};
  higher.sin_family = AF_INET;
  higher.sin_addr.s_addr = INADDR_NONE;
  higher.sin_port = 0xffff;
  pair->connect(tcp::Address(reinterpret_cast<const sockaddr*>(&higher), sizeof higher).bytes());
  const int number = find_socket(listens, name);
  if (number < 0) throw failed("somebody else on this host has been connected");
  constexpr int on = 1;
  if (fcntl(connected.number(), F_SETFL, O_NONBLOCK) != 0 ||
      setsockopt(connected.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      dup3(connected.number(), number, O_CLOEXEC) != number)
    throw failed(std::strerror(errno));
  auto* const handler = dynamic_cast<tcp::Handler*>(pair.get());
  if (!handler) throw failed("its pairs are of an unknown kind");
  device->registerDescriptor(number, EPOLLIN, handler);
}

}  // namespace hetsched::detail
