// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/introduction.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void introduction::run(clock::time_point until, double deadline_s) {
  while (!complete()) {
    if (clock::now() > until) throw error(missing_text(deadline_s));
    look(10);
  }
  most_guests_ = 128;
}

HETSCHED_INLINE void introduction::look(int wait_ms) {
  std::vector<pollfd> files;
  const auto add = [&](const unique_socket& s, short events) { files.push_back({s.number(), events, 0}); };
  for (const auto& g : guests_) add(g.socket, POLLIN);
  for (const auto& c : calls_) add(c.socket, c.state == call_state::connects ? POLLOUT : POLLIN);
  if (rests_until_ && clock::now() >= *rests_until_) rests_until_.reset();
  const bool listens = !rests_until_;
  if (listens) add(door_, POLLIN);
  poll(files.data(), files.size(), wait_ms);
  std::size_t next = 0;
  for (auto& g : guests_)
    if (files[next++].revents != 0) hear(g);
  for (auto& c : calls_)
    if (files[next++].revents != 0) go_on(c);
  const auto now = clock::now();
  for (auto& g : guests_)
    if (g.socket && now - g.since > patience) send_away(g, g.said ? "proved nothing" : "said nothing, or too little");
  std::erase_if(guests_, [](const guest& g) { return !g.socket; });
  for (auto& c : calls_)
    if (c.state == call_state::waits && now >= c.next) begin(c);
  if (listens && files[next].revents != 0) answer_door();
  std::erase_if(calls_, [](const outgoing& c) { return c.state == call_state::done; });
  if (watched_) watch_all();
}

HETSCHED_INLINE int introduction::watched() {
  if (!watched_) {
    watched_ = unique_socket(epoll_create1(EPOLL_CLOEXEC));
    if (!watched_) throw error(std::string("sockets cannot be watched: ") + std::strerror(errno));
    watch_all();
  }
  return watched_.number();
}

/// Those that are closed have left by themselves.
HETSCHED_INLINE void introduction::watch_all() {
  const auto watch = [&](const unique_socket& s, std::uint32_t for_what) {
    epoll_event event{};
    event.events = for_what;
    if (s && epoll_ctl(watched_.number(), EPOLL_CTL_ADD, s.number(), &event) != 0)
      (void)epoll_ctl(watched_.number(), EPOLL_CTL_MOD, s.number(), &event);
  };
  for (const auto& g : guests_) watch(g.socket, EPOLLIN);
  for (const auto& c : calls_) watch(c.socket, c.state == call_state::connects ? EPOLLOUT : EPOLLIN);
  if (rests_until_)
    (void)epoll_ctl(watched_.number(), EPOLL_CTL_DEL, door_.number(), nullptr);
  else
    watch(door_, EPOLLIN);
}

HETSCHED_INLINE int introduction::newcomer() const {
  for (int r = 0; r < ranks_; ++r)
    if (is_whole(r)) return r;
  return -1;
}

HETSCHED_INLINE std::pair<int, std::string> introduction::give_up_one() {
  const auto late = std::find_if(calls_.begin(), calls_.end(), [&](outgoing& c) { return stood_still_.is_over(c.until); });
  if (late == calls_.end()) return {-1, {}};
  const int rank = late->rank;
  auto text = cannot_be_reached(*late);
  std::erase_if(calls_, [rank](const outgoing& c) { return c.rank == rank; });
  at(lines_, rank) = {};
  return {rank, std::move(text)};
}

HETSCHED_INLINE void introduction::answer_door() {
  for (int i = 0; i < 64; ++i) {
    socket_address from;
    unique_socket s(accept4(door_.number(), from.data(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!s) {
      const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (no_room && guests_.empty())
        rests_until_ = clock::now() + std::chrono::milliseconds(50);  // it would be told at once again
      if (!no_room || guests_.empty()) return;
    }
    if (!s || guests_.size() >= most_guests_) {
      send_away(guests_.front(), "said nothing, or too little");
      guests_.pop_front();
    }
    if (s) guests_.push_back({std::move(s), numbers_of(from.data(), from.size).host, clock::now()});
  }
}

HETSCHED_INLINE void introduction::hear(guest& g) {
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
  if (!say(g.socket, proof_of(key_, "is called", *g.said, g.challenge))) return void(g.socket = {});
  if (watched_) (void)epoll_ctl(watched_.number(), EPOLL_CTL_DEL, g.socket.number(), nullptr);
  lines_[g.said->from][g.said->line] = std::exchange(g.socket, {});
}

HETSCHED_INLINE void introduction::go_on(outgoing& c) {
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
  const auto got = read_up_to(c.state == call_state::said_hello ? sizeof(random_word) : sizeof(sha256_digest), c.socket, c.heard);
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
  if (watched_) (void)epoll_ctl(watched_.number(), EPOLL_CTL_DEL, c.socket.number(), nullptr);
  at(lines_, c.rank)[c.line] = std::move(c.socket);
  c.socket = {};
}

HETSCHED_INLINE std::string introduction::cannot_be_reached(const outgoing& c) {
  return "rank " + std::to_string(c.rank) + " cannot be reached at " + numbers_of(c.at.data(), c.at.size).text() + ", as " +
         c.why;
}

HETSCHED_INLINE std::string introduction::missing_text(double deadline_s) const {
  std::string text;
  for (const int r : expected_) {
    if (is_whole(r)) continue;
    const auto called =
        std::find_if(calls_.begin(), calls_.end(), [&](const outgoing& c) { return c.rank == r && c.state != call_state::done; });
    text += text.empty() ? "rank " + std::to_string(rank_) + ": " : "; ";
    text += called == calls_.end() ? "rank " + std::to_string(r) + " has not called" : cannot_be_reached(*called);
  }
  text += ", within " + std::to_string(deadline_s) + " s";
  auto all = strangers_;
  for (const auto& g : guests_) count_stranger(all, g.host, "said nothing, or too little");
  if (!all.empty()) text += "; turned away: " + hetsched::to_text(all);
  return text;
}

}  // namespace hetsched::detail
