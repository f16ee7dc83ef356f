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

#include <string>
#include <utility>
#include <vector>

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
[[nodiscard]] socket_address find_address(const std::string& host, const std::string& port, int type = SOCK_STREAM);

/// The own address from which packets to a host leave; empty if there is none.
[[nodiscard]] std::string address_toward(const std::string& host);

struct own_address {
  std::string address, interface;
};

/// Addresses of this host, those of IPv4 first. Of all interfaces: those that other hosts can reach, of IPv6 only where there
/// is none of IPv4. Of a named one: all but those that need its name.
[[nodiscard]] std::vector<own_address> own_addresses(const std::string& interface = {});

/// Has the system ask the other host whether it is there, after so many seconds in which nothing has come; one that does not
/// answer three times, two seconds apart, or does not confirm for as long what is sent, ends the connection. So a host that is
/// cut off or without power is known whether anybody waits for it or not.
[[nodiscard]] bool keep_alive(const unique_socket& s, double silence_s);

struct listener {
  unique_socket socket;
  host_and_port at;
};

/// Listens on an address, at any port.
/// Throws: error that says why it cannot.
[[nodiscard]] listener listen_on(const std::string& address);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/tcp_socket.ipp>
#endif
