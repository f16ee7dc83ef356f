// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/gloo/detail/channel_engine.hpp>

namespace hetsched::detail {

HETSCHED_INLINE channel_engine::~channel_engine() {
  if (mesh_.ranks == 1) return;
  {
    lock hold(guard_);
    if (std::uncaught_exceptions() > exceptions_ && reason_.empty())
      reason_ = "rank " + std::to_string(mesh_.rank) + " was ended by an exception";
    if (!aborted_ && !reason_.empty()) fail(std::string(reason_));  // so is who leaves behind a gather that came to its deadline
    // Who holds itself connected with this rank would miss it.
    (void)await(hold, deadline_in(5), [&] { return aborted_ || !mesh_.door || !mesh_.door->is_expected(); });
    mesh_.door.reset();
    for (const int p : met_) say(p, frame_kind::leaving, &at(peers_, p).tensors_sent, 1);
    (void)await(hold, deadline_in(aborted_ ? 1 : 5), [&] {
      return first_without(peers_, [&](const peer_state& peer) {
               const bool silent = aborted_ && peer.answered_to < questions_;  // it does not answer this either
               return !peer.met || peer.down || peer.released || silent;
             }) < 0;
    });
    stopped_ = true;
    drive_.stop();
  }
  worker_.join();
}

HETSCHED_INLINE bool channel_engine::is_over(standstill::wait& w) {
  const bool over = stood_still_.is_over(w);
  if (const auto seconds = stood_still_.news(); seconds && mesh_.say)
    mesh_.say("rank " + std::to_string(mesh_.rank) + ": this process stood still for " + std::to_string(std::llround(*seconds)) +
              " s, which its deadlines do not count");
  return over;
}

HETSCHED_INLINE void channel_engine::post(channel_end& c, gloo_transfer& t, const stamp& s) {
  t.ended.store(false, std::memory_order_relaxed);
  t.written = 0;
  auto& n = t.header.note;
  n.tell(s, c.where);
  const lock hold(guard_);
  if (aborted_) return;
  n.number = c.posted++;
  c.transfers.push(t);
  if (n.bytes > small_tensor) drive_.begin_long();
  if (c.sending) {
    send_what_may_go(c);
  } else {
    if (n.bytes > small_tensor || (n.number + 1 == c.announced && n.number >= c.moved))
      say(c.peer, frame_kind::receive_posted, &n, 1);
    take_early(c);
  }
  const auto& peer = at(peers_, c.peer);
  if (!aborted_ && peer.down && (c.transfers.first || peer.outgoing.first)) fail(lost_text(peers_, c.peer, {}));
}

HETSCHED_INLINE wait_result channel_engine::gather(std::span<const double> mine, std::vector<std::vector<double>>& all,
                                                   deadline_time until) {
  lock hold(guard_);
  if (aborted_) return wait_result::aborted;
  const std::uint64_t round = ++round_;
  for (const int p : neighbours_) {
    for (std::size_t first = 0; first == 0 || first < mine.size(); first += numbers_per_frame) {
      const gathered_numbers part{.round = round, .all = mine.size(), .from = static_cast<std::uint64_t>(mesh_.rank)};
      const std::size_t count = std::min(numbers_per_frame, mine.size() - first);
      say(p, frame_kind::numbers, &part, 1, mine.data() + first, count);
    }
  }
  int missing = -1;
  const auto has_brought = [round](peer_state& peer) { return peer.has_brought(round); };
  const auto look = [&] {
    missing = first_without(peers_, has_brought);
    return missing < 0 || at(peers_, way_to(missing)).down;
  };
  const bool in_time = await(hold, until, [&] { return look() || aborted_; });
  // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
  if (aborted_ && missing >= 0)
    (void)await(hold, std::min(until, deadline_in(1)),
                [&] { return look() || (is_mesh(mesh_.ranks) && at(peers_, missing).gave_up); });
  if (missing >= 0) {
    if (in_time && !aborted_) fail(lost_text(peers_, way_to(missing), {}));
    if (!aborted_) reason_ = ranks_without(peers_, has_brought) + " not answered in time";
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }
  take_round(peers_, mine, all);
  if (!aborted_) reason_.clear();  // of an earlier round that was late
  return wait_result::progress;
}

HETSCHED_INLINE void channel_engine::meet_all(deadline_time until) {
  std::vector<std::vector<double>> all;
  const auto own = mesh_.door ? std::vector<double>(mesh_.address.begin(), mesh_.address.end()) : std::vector<double>();
  auto ended = gather(own, all, until);
  if (ended == wait_result::deadline && !is_mesh(mesh_.ranks)) ended = ask();  // who is behind another one is not to blame
  if (ended != wait_result::progress)
    throw error("rank " + std::to_string(mesh_.rank) + ": not all ranks have been connected: " + failure());
  const lock hold(guard_);
  for (std::size_t p = 0; mesh_.door && p < all.size(); ++p) {
    auto& text = addresses_.emplace_back();
    for (const double letter : all[p]) text += letter >= 32 && letter < 127 ? static_cast<char>(letter) : '?';
  }
}

HETSCHED_INLINE wait_result channel_engine::ask() {
  lock hold(guard_);
  const inquiry question{.number = ++questions_, .asker = static_cast<std::uint32_t>(mesh_.rank)};
  for (std::size_t i = 0; i < neighbours_.size() && !aborted_; ++i) say(neighbours_[i], frame_kind::ask, &question, 1);
  const auto has_answered = [&](const peer_state& peer) {
    const auto p = static_cast<int>(&peer - peers_.data());
    return at(peers_, way_to(p)).down || peer.answered_to >= question.number;
  };
  (void)await(hold, deadline_in(1), [&] { return aborted_ || first_without(peers_, has_answered) < 0; });
  // Behind one that does not answer nobody does: those are not to blame.
  const auto is_excused = [&](const peer_state& peer) {
    const int before = next_to(static_cast<int>(&peer - peers_.data()), mesh_.rank, mesh_.ranks);
    return has_answered(peer) || (before != mesh_.rank && !has_answered(at(peers_, before)));
  };
  if (first_without(peers_, has_answered) >= 0) fail(ranks_without(peers_, is_excused) + " not answered for a second");
  return aborted_ ? wait_result::aborted : wait_result::deadline;
}

HETSCHED_INLINE void channel_engine::work() {
  lock hold(guard_);
  while (!stopped_) {
    drive_.park(hold, stopped_, [&] {
      bell_.nudge();
      happened_.notify_all();
    });
    stood_still_.look();
    const int limit_ms = look_after_connections();
    hold.unlock();
    bell_.ring_late();
    constexpr int tick_ms = standstill::tick.count();
    const auto happened = drive_.watch.wait(limit_ms < 0 ? tick_ms : std::min(limit_ms, tick_ms));
    hold.lock();
    handle(happened);
  }
}

}  // namespace hetsched::detail
