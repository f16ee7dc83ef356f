// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

namespace hetsched::detail {

/// Closes a socket when it goes.
class unique_socket {
 public:
  unique_socket() = default;
  explicit unique_socket(int number) : number_(number) {}
  unique_socket(unique_socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  unique_socket& operator=(unique_socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~unique_socket() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// An address of IPv4 or IPv6, with a port.
struct socket_address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] sockaddr* data() { return reinterpret_cast<sockaddr*>(&bytes); }
  [[nodiscard]] const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

/// "10.0.0.1" or "fe80::1", and a port.
struct host_and_port {
  std::string host, port;
  /// "10.0.0.1:80" or "[fe80::1]:80".
  [[nodiscard]] std::string text() const { return (host.find(':') == std::string::npos ? host : '[' + host + ']') + ':' + port; }
};

[[nodiscard]] inline host_and_port numbers_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) return {"?", "?"};
  return {host, port};
}

/// The address of a host and a port, by number or by name; IPv4 where there are both.
/// Throws: error that says what is wrong with them.
[[nodiscard]] inline socket_address find_address(const std::string& host, const std::string& port, int type = SOCK_STREAM) {
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

/// The own address from which packets to a host leave; empty if there is none.
[[nodiscard]] inline std::string address_toward(const std::string& host) {
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

struct own_address {
  std::string address, interface;
};

/// Addresses of this host, those of IPv4 first. Of all interfaces: those that other hosts can reach, of IPv6 only where there
/// is none of IPv4. Of a named one: all but those that need its name.
[[nodiscard]] inline std::vector<own_address> own_addresses(const std::string& interface = {}) {
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

struct listener {
  unique_socket socket;
  host_and_port at;
};

/// Listens on an address, at any port.
/// Throws: error that says why it cannot.
[[nodiscard]] inline listener listen_on(const std::string& address) {
  auto at = find_address(address, "0");
  unique_socket s(socket(at.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s || bind(s.number(), at.data(), at.size) != 0 || listen(s.number(), SOMAXCONN) != 0 ||
      getsockname(s.number(), at.data(), &at.size) != 0)
    throw error(std::strerror(errno));
  return {std::move(s), numbers_of(at.data(), at.size)};
}

}  // namespace hetsched::detail
