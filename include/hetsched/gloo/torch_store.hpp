// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/torch_store_test.cpp, with PyTorch's own store by tests/torch/check.py.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <gloo/rendezvous/store.h>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>

namespace hetsched {

/// A client of PyTorch's TCPStore (torch >= 2.1), such as the one in which the workers of a torchrun meet. Names are as PyTorch's
/// own client has them: there, "/" stands before each. One connection, used by one thread at a time; after an error it is closed,
/// and every further call fails. The server answers within 10 s.
class torch_store final : public ::gloo::rendezvous::Store {
 public:
  /// Throws: error if nobody answers there, or somebody who is no such store.
  torch_store(const std::string& host, int port);

  /// Throws: error if the name is there with another value.
  void set(const std::string& name, const std::vector<char>& value) override;
  /// Requires: the name is there (wait); the server ends the connection otherwise.
  [[nodiscard]] std::vector<char> get(const std::string& name) override {
    const auto until = clock::now() + answer_within;
    request ask(query::get);
    ask.text('/' + name);
    write(ask, until);
    return read_text(until);
  }
  void wait(const std::vector<std::string>& names) override { wait(names, answer_within); }
  /// Asks again and again, at most a tenth of a second apart: the server's own wait cannot be ended by who changes its mind.
  /// Throws: error if not all are there in time; the connection serves on.
  void wait(const std::vector<std::string>& names, const std::chrono::milliseconds& at_most) override;
  /// Whether all are there.
  [[nodiscard]] bool check(const std::vector<std::string>& names);
  /// Removes what this client has set.
  void forget() {
    const auto until = clock::now() + answer_within;
    for (const auto& name : std::exchange(own_, {})) {
      request ask(query::remove);
      ask.text('/' + name);
      write(ask, until);
      (void)read<std::int64_t>(until);
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds answer_within{10};
  static constexpr std::uint64_t longest_value = 1 << 20;  // of a rank: some hundred bytes
  enum class query : std::uint8_t { validate = 0, compare_set = 2, get = 3, check = 5, count = 7, remove = 8 };

  /// Numbers are in the order of bytes of the host, as PyTorch has them.
  struct request {
    explicit request(query what) : bytes(1, static_cast<char>(what)) {}
    template <class Number>
    requires std::is_integral_v<Number>
    void number(Number value) {
      const auto* const first = reinterpret_cast<const char*>(&value);
      bytes.append(first, sizeof value);
    }
    void text(std::string_view value) {
      number(std::uint64_t{value.size()});
      bytes += value;
    }
    std::string bytes;
  };

  [[noreturn]] void fail(const std::string& why) {
    server_ = {};
    throw error("PyTorch's store at " + at_.text() + ": " + why);
  }
  void ready(short events, clock::time_point until);
  void write(const request& ask, clock::time_point until);
  void read(char* to, std::size_t size, clock::time_point until);
  template <class Number>
  [[nodiscard]] Number read(clock::time_point until) {
    Number value;
    read(reinterpret_cast<char*>(&value), sizeof value, until);
    return value;
  }
  [[nodiscard]] std::vector<char> read_text(clock::time_point until) {
    const auto size = read<std::uint64_t>(until);
    if (size > longest_value) fail("a value of " + std::to_string(size) + " bytes is none of a rank");
    std::vector<char> value(size);
    read(value.data(), value.size(), until);
    return value;
  }

  detail::host_and_port at_;
  detail::unique_socket server_;
  std::vector<std::string> own_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/torch_store.ipp>
#endif
