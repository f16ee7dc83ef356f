// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
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
#include <hetsched/runtime/communicator/detail/standstill.hpp>

namespace hetsched::detail {

/// The connections of a pair of ranks: one for what must not wait behind tensors, and one for these.
enum line_of : std::size_t { control_line, data_line };
inline constexpr std::size_t lines_per_pair = 2;

/// Connects a rank with others, each pair by its lines; the higher rank calls the lower one. Both prove that they know the key of
/// the run, in turn: hello, challenge, proof, proof. Who cannot is dropped and counted, and has made nobody wait: all connections
/// are served at once, none for longer than `patience`, and of those that have proved nothing the oldest goes when there are too
/// many.
class introduction {
 public:
  using clock = std::chrono::steady_clock;

  /// `expected`: whom run() waits for; empty: all others.
  introduction(int rank, int ranks, const sha256_digest& key, unique_socket door, std::vector<int> expected = {})
      : rank_(rank), ranks_(ranks), key_(key), door_(std::move(door)), expected_(std::move(expected)), lines_(as_size(ranks)) {
    for (int r = 0; expected_.empty() && r < ranks; ++r)
      if (r != rank) expected_.push_back(r);
    if (rank + 1 == ranks) door_ = {};  // nobody calls the last one
  }

  /// Where a lower rank listens, and until when it is to answer, but for time in which this process stands still.
  void call(int rank, const socket_address& at, clock::time_point until = clock::time_point::max()) {
    for (std::uint32_t line = 0; line < lines_per_pair; ++line) calls_.push_back({rank, line, at, stood_still_.begin(until)});
  }

  /// Returns when all expected ranks are connected.
  /// Throws: error that says which are not, and which strangers were there.
  void run(clock::time_point until, double deadline_s);

  /// Does what there is to do, and waits for that at most so long.
  void look(int wait_ms);
  /// A file that has something to read where look() has something to do but to count time, from the first call on.
  [[nodiscard]] int watched();
  /// Whether somebody has connected, or is called, without having been proved, or could not be let in: look() is to count time.
  [[nodiscard]] bool is_busy() const { return !guests_.empty() || !calls_.empty() || rests_until_; }
  /// Whether a rank that is called may hold itself connected already: it has all proofs, and has not been heard on them.
  [[nodiscard]] bool is_expected() const {
    const auto has_proofs = [&](int rank) {
      return std::all_of(calls_.begin(), calls_.end(),
                         [rank](const outgoing& c) { return c.rank != rank || c.state == call_state::has_proved; });
    };
    return std::any_of(calls_.begin(), calls_.end(), [&](const outgoing& c) { return has_proofs(c.rank); });
  }
  /// A rank with all its lines, to be taken; -1: there is none.
  [[nodiscard]] int newcomer() const;
  /// A rank that has not answered in time, and is called no more, and why; -1: there is none. To be asked four times a second
  /// while some are called.
  [[nodiscard]] std::pair<int, std::string> give_up_one();

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
    standstill::wait until;
    call_state state = call_state::waits;
    clock::time_point next{};  ///< when to try again
    unique_socket socket{};
    std::vector<std::byte> heard{};
    hello said{};
    random_word challenge{};
    std::string why = "it has not been tried";
  };

  [[nodiscard]] bool complete() const {
    return std::all_of(expected_.begin(), expected_.end(), [&](int r) { return is_whole(r); });
  }
  [[nodiscard]] bool is_whole(int rank) const {
    return std::all_of(at(lines_, rank).begin(), at(lines_, rank).end(), [](const auto& line) { return bool(line); });
  }
  void watch_all();

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

  [[nodiscard]] static std::string cannot_be_reached(const outgoing& c);
  [[nodiscard]] std::string missing_text(double deadline_s) const;

  int rank_, ranks_;
  std::size_t most_guests_ = 128 + lines_per_pair * as_size(ranks_);  ///< ranks among them; fewer once they have met
  std::optional<clock::time_point> rests_until_{};                    ///< the door, as the system gives no more files
  sha256_digest key_;
  unique_socket door_;
  unique_socket watched_;  ///< where all of the sockets below are
  std::vector<int> expected_;
  std::deque<guest> guests_;
  std::vector<outgoing> calls_;
  standstill stood_still_;
  std::vector<std::array<unique_socket, lines_per_pair>> lines_;  ///< by rank; those that are proved
  std::vector<stranger> strangers_;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/introduction.ipp>
#endif
