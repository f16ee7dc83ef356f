// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
#include <hetsched/core/sha256.hpp>
#include <hetsched/gloo/detail/proof.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>
#include <hetsched/gloo/stranger.hpp>

namespace hetsched::detail {

/// The connections of a pair of ranks: one for what must not wait behind tensors, and one for these.
enum line_of : std::size_t { control_line, data_line };
inline constexpr std::size_t lines_per_pair = 2;

/// Connects a rank with all others, each pair by its lines; the higher rank calls the lower one. Both prove that they know the
/// key of the run, in turn: hello, challenge, proof, proof. Who cannot is dropped and counted, and has made nobody wait: all
/// connections are served at once, none for longer than `patience`, and of those that have proved nothing the oldest goes when
/// there are too many. Nobody listens any more once all ranks are there.
class introduction {
 public:
  using clock = std::chrono::steady_clock;

  introduction(int rank, int ranks, const sha256_digest& key, unique_socket door)
      : rank_(rank), ranks_(ranks), key_(key), door_(std::move(door)), lines_(as_size(ranks)) {
    if (rank + 1 == ranks) door_ = {};  // nobody calls the last one
  }

  /// Where a lower rank listens.
  void call(int rank, const socket_address& at) {
    for (std::uint32_t line = 0; line < lines_per_pair; ++line) calls_.push_back({rank, line, at});
  }

  /// Returns when all ranks are connected.
  /// Throws: error that says which are not, and which strangers were there.
  void run(clock::time_point until, double deadline_s);

  [[nodiscard]] unique_socket take(int rank, std::size_t line) { return std::move(at(lines_, rank)[line]); }
  [[nodiscard]] const std::vector<stranger>& strangers() const { return strangers_; }

 private:
  static constexpr auto patience = std::chrono::seconds(5);

  /// Somebody who has connected, and has not proved anything yet.
  struct guest {
    unique_socket socket;
    std::string host;
    clock::time_point since;
    std::vector<std::byte> heard{};
    std::optional<hello> said{};
    random_word challenge{};
  };
  enum class call_state { waits, connects, said_hello, has_proved, done };
  /// A connection that this rank makes.
  struct outgoing {
    int rank;
    std::uint32_t line;
    socket_address at;
    call_state state = call_state::waits;
    clock::time_point next{};  ///< when to try again
    unique_socket socket{};
    std::vector<std::byte> heard{};
    hello said{};
    random_word challenge{};
    std::string why = "it has not been tried";
  };

  [[nodiscard]] bool complete() const {
    for (int r = 0; r < ranks_; ++r)
      for (const auto& line : at(lines_, r))
        if (r != rank_ && !line) return false;
    return true;
  }

  enum class reading { more, whole, ended };
  /// Reads up to so many bytes, not beyond.
  static reading read_up_to(std::size_t size, const unique_socket& s, std::vector<std::byte>& heard) {
    const std::size_t before = heard.size();
    heard.resize(size);
    const auto n = recv(s.number(), heard.data() + before, size - before, MSG_DONTWAIT);
    heard.resize(before + as_size(std::max<ssize_t>(n, 0)));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return reading::ended;
    return heard.size() == size ? reading::whole : reading::more;
  }
  /// What is sent is short, and fits into what the system keeps.
  template <class T>
  static bool say(const unique_socket& s, const T& what) {
    return send(s.number(), &what, sizeof what, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof what);
  }
  template <class T>
  static T take_out(std::vector<std::byte>& heard) {
    T out;
    std::memcpy(&out, heard.data(), sizeof out);
    heard.clear();
    return out;
  }

  void send_away(guest& g, const std::string& why) {
    count_stranger(strangers_, g.host, why);
    g.socket = {};
  }

  void answer_door();

  void hear(guest& g);

  void begin(outgoing& c) {
    c.socket = unique_socket(socket(c.at.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!c.socket) return give_up(c, std::strerror(errno));
    c.state = call_state::connects;
    c.why = "it does not answer";
    if (connect(c.socket.number(), c.at.data(), c.at.size) != 0 && errno != EINPROGRESS) give_up(c, std::strerror(errno));
  }
  /// For now.
  void give_up(outgoing& c, const std::string& why) {
    c.socket = {};
    c.heard.clear();
    c.state = call_state::waits;
    c.next = clock::now() + std::chrono::milliseconds(50);
    c.why = why;
  }
  void go_on(outgoing& c);

  [[nodiscard]] std::string missing_text(double deadline_s) const;

  int rank_, ranks_;
  const std::size_t most_guests_ = 128 + lines_per_pair * as_size(ranks_);  ///< ranks among them
  sha256_digest key_;
  unique_socket door_;
  std::deque<guest> guests_;
  std::vector<outgoing> calls_;
  std::vector<std::array<unique_socket, lines_per_pair>> lines_;  ///< by rank; those that are proved
  std::vector<stranger> strangers_;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/introduction.ipp>
#endif
