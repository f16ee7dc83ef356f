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

HETSCHED_INLINE void introduction::answer_door() {
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
  if (say(g.socket, proof_of(key_, "is called", *g.said, g.challenge)))
    lines_[g.said->from][g.said->line] = std::exchange(g.socket, {});
  else
    g.socket = {};
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
  at(lines_, c.rank)[c.line] = std::move(c.socket);
  c.socket = {};
}

HETSCHED_INLINE std::string introduction::missing_text(double deadline_s) const {
  std::string text;
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_ || std::all_of(at(lines_, r).begin(), at(lines_, r).end(), [](const auto& l) { return bool(l); })) continue;
    const auto called =
        std::find_if(calls_.begin(), calls_.end(), [&](const outgoing& c) { return c.rank == r && c.state != call_state::done; });
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

}  // namespace hetsched::detail
