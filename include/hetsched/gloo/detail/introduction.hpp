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

#include <hetsched/core/error.hpp>
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
      : rank_(rank), ranks_(ranks), key_(key), door_(std::move(door)), lines_(static_cast<std::size_t>(ranks)) {
    if (rank + 1 == ranks) door_ = {};  // nobody calls the last one
  }

  /// Where a lower rank listens.
  void call(int rank, const socket_address& at) {
    for (std::uint32_t line = 0; line < lines_per_pair; ++line) calls_.push_back({rank, line, at});
  }

  /// Returns when all ranks are connected.
  /// Throws: error that says which are not, and which strangers were there.
  void run(clock::time_point until, double deadline_s) {
    while (!complete()) {
      if (clock::now() > until) throw error(missing_text(deadline_s));
      std::vector<pollfd> watched;
      const auto watch = [&](const unique_socket& s, short events) { watched.push_back({s.number(), events, 0}); };
      for (const auto& g : guests_) watch(g.socket, POLLIN);
      for (const auto& c : calls_) watch(c.socket, c.state == call_state::connects ? POLLOUT : POLLIN);
      watch(door_, POLLIN);
      poll(watched.data(), watched.size(), 10);
      std::size_t next = 0;
      for (auto& g : guests_)
        if (watched[next++].revents != 0) hear(g);
      for (auto& c : calls_)
        if (watched[next++].revents != 0) go_on(c);
      const auto now = clock::now();
      for (auto& g : guests_)
        if (g.socket && now - g.since > patience) send_away(g, g.said ? "proved nothing" : "said nothing, or too little");
      std::erase_if(guests_, [](const guest& g) { return !g.socket; });
      for (auto& c : calls_)
        if (c.state == call_state::waits && now >= c.next) begin(c);
      if (watched[next].revents != 0) answer_door();
    }
    door_ = {};
    guests_.clear();
  }

  [[nodiscard]] unique_socket take(int rank, std::size_t line) { return std::move(lines_[at(rank)][line]); }
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

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  [[nodiscard]] bool complete() const {
    for (int r = 0; r < ranks_; ++r)
      for (const auto& line : lines_[at(r)])
        if (r != rank_ && !line) return false;
    return true;
  }

  enum class reading { more, whole, ended };
  /// Reads up to so many bytes, not beyond.
  static reading read_up_to(std::size_t size, const unique_socket& s, std::vector<std::byte>& heard) {
    const std::size_t before = heard.size();
    heard.resize(size);
    const auto n = recv(s.number(), heard.data() + before, size - before, MSG_DONTWAIT);
    heard.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
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

  void answer_door() {
    for (int i = 0; i < 64; ++i) {
      socket_address from;
      unique_socket s(accept4(door_.number(), from.data(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!s) {
        const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (!no_room || guests_.empty()) return;
      }
      if (!s || guests_.size() >= most_guests_) {
        send_away(guests_.front(), "said nothing, or too little");
        guests_.pop_front();
      }
      if (s) guests_.push_back({std::move(s), numbers_of(from.data(), from.size).host, clock::now()});
    }
  }

  void hear(guest& g) {
    const auto got = read_up_to(g.said ? sizeof(sha256_digest) : sizeof(hello), g.socket, g.heard);
    if (got == reading::ended) return send_away(g, g.said ? "proved nothing" : "said nothing, or too little");
    if (got == reading::more) return;
    if (!g.said) {
      const auto said = take_out<hello>(g.heard);
      const bool fits = said.is_one() && said.to == static_cast<std::uint32_t>(rank_) && said.from > said.to &&
                        said.from < static_cast<std::uint32_t>(ranks_) && said.line < lines_per_pair;
      if (!fits) return send_away(g, "said something else than ranks do");
      g.said = said;
      g.challenge = fresh_bytes<sizeof(random_word)>();
      if (!say(g.socket, g.challenge)) send_away(g, "left");
      return;
    }
    if (!same_digest(take_out<sha256_digest>(g.heard), proof_of(key_, "calls", *g.said, g.challenge)))
      return send_away(g, "did not know the secret");
    // A rank that calls again has not heard that it was let in.
    if (say(g.socket, proof_of(key_, "is called", *g.said, g.challenge)))
      lines_[g.said->from][g.said->line] = std::exchange(g.socket, {});
    else
      g.socket = {};
  }

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
  void go_on(outgoing& c) {
    if (c.state == call_state::connects) {
      int problem = 0;
      socklen_t size = sizeof problem;
      if (getsockopt(c.socket.number(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0 || problem != 0)
        return give_up(c, std::strerror(problem));
      c.said = {.from = static_cast<std::uint32_t>(rank_),
                .to = static_cast<std::uint32_t>(c.rank),
                .line = c.line,
                .fresh = fresh_bytes<sizeof(random_word)>()};
      c.state = call_state::said_hello;
      if (!say(c.socket, c.said)) give_up(c, "it closes the connection");
      return;
    }
    const auto got =
        read_up_to(c.state == call_state::said_hello ? sizeof(random_word) : sizeof(sha256_digest), c.socket, c.heard);
    if (got == reading::ended) return give_up(c, "it closes the connection");
    if (got == reading::more) return;
    if (c.state == call_state::said_hello) {
      c.challenge = take_out<random_word>(c.heard);
      c.state = call_state::has_proved;
      if (!say(c.socket, proof_of(key_, "calls", c.said, c.challenge))) give_up(c, "it closes the connection");
      return;
    }
    if (!same_digest(take_out<sha256_digest>(c.heard), proof_of(key_, "is called", c.said, c.challenge)))
      return give_up(c, "who listens there does not know the secret");
    c.state = call_state::done;
    lines_[at(c.rank)][c.line] = std::move(c.socket);
    c.socket = {};
  }

  [[nodiscard]] std::string missing_text(double deadline_s) const {
    std::string text;
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_ || std::all_of(lines_[at(r)].begin(), lines_[at(r)].end(), [](const auto& l) { return bool(l); })) continue;
      const auto called = std::find_if(calls_.begin(), calls_.end(),
                                       [&](const outgoing& c) { return c.rank == r && c.state != call_state::done; });
      text += text.empty() ? "rank " + std::to_string(rank_) + ": " : "; ";
      text += called == calls_.end() ? "rank " + std::to_string(r) + " has not called"
                                     : "rank " + std::to_string(r) + " cannot be reached at " +
                                           numbers_of(called->at.data(), called->at.size).text() + ", as " + called->why;
    }
    text += ", within " + std::to_string(deadline_s) + " s";
    auto all = strangers_;
    for (const auto& g : guests_) count_stranger(all, g.host, "said nothing, or too little");
    if (!all.empty()) text += "; turned away: " + hetsched::to_text(all);
    return text;
  }

  int rank_, ranks_;
  const std::size_t most_guests_ = 128 + lines_per_pair * static_cast<std::size_t>(ranks_);  ///< ranks among them
  sha256_digest key_;
  unique_socket door_;
  std::deque<guest> guests_;
  std::vector<outgoing> calls_;
  std::vector<std::array<unique_socket, lines_per_pair>> lines_;  ///< by rank; those that are proved
  std::vector<stranger> strangers_;
};

}  // namespace hetsched::detail
