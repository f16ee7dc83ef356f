// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>

namespace hetsched::detail {

HETSCHED_INLINE socket_address find_address(const std::string& host, const std::string& port, int type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int problem = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); problem != 0)
    throw error(gai_strerror(problem));
  const addrinfo* best = found;
  for (const addrinfo* i = found; i; i = i->ai_next)
    if (i->ai_family == AF_INET && best->ai_family != AF_INET) best = i;
  socket_address address;
  address.size = best->ai_addrlen;
  std::memcpy(&address.bytes, best->ai_addr, best->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

HETSCHED_INLINE std::string address_toward(const std::string& host) {
  try {
    const auto there = find_address(host, "9", SOCK_DGRAM);
    const unique_socket s(socket(there.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    socket_address own;
    if (!s || connect(s.number(), there.data(), there.size) != 0 || getsockname(s.number(), own.data(), &own.size) != 0)
      return {};
    const auto address = numbers_of(own.data(), own.size).host;
    return address.starts_with("127.") || address == "::1" ? std::string() : address;
  } catch (const error&) {
    return {};
  }
}

HETSCHED_INLINE std::vector<own_address> own_addresses(const std::string& interface) {
  std::vector<own_address> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {
    if (interface.empty() && !found.empty()) break;
    for (const ifaddrs* i = all; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) continue;
      if (interface.empty() ? (i->ifa_flags & IFF_LOOPBACK) != 0 : interface != i->ifa_name) continue;
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr)) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({numbers_of(i->ifa_addr, size).host, i->ifa_name});
    }
  }
  freeifaddrs(all);
  return found;
}

HETSCHED_INLINE bool keep_alive(const unique_socket& s, double silence_s) {
  const int on = 1, between_s = 2, times = 3, silence = std::max(1, static_cast<int>(std::min(silence_s, 1e4)));
  const unsigned most_ms = 1000u * static_cast<unsigned>(silence + between_s * times);
  const auto set = [&](int level, int option, const auto& value) {
    return setsockopt(s.number(), level, option, &value, sizeof value) == 0;
  };
  return set(SOL_SOCKET, SO_KEEPALIVE, on) && set(IPPROTO_TCP, TCP_KEEPIDLE, silence) &&
         set(IPPROTO_TCP, TCP_KEEPINTVL, between_s) && set(IPPROTO_TCP, TCP_KEEPCNT, times) &&
         set(IPPROTO_TCP, TCP_USER_TIMEOUT, most_ms);
}

HETSCHED_INLINE listener listen_on(const std::string& address) {
  auto at = find_address(address, "0");
  unique_socket s(socket(at.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s || bind(s.number(), at.data(), at.size) != 0 || listen(s.number(), SOMAXCONN) != 0 ||
      getsockname(s.number(), at.data(), &at.size) != 0)
    throw error(std::strerror(errno));
  return {std::move(s), numbers_of(at.data(), at.size)};
}

}  // namespace hetsched::detail
