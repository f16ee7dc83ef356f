// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/gloo/detail/line_traffic.hpp>

namespace hetsched::detail {

HETSCHED_INLINE line_traffic::line_traffic(gloo_mesh mesh)
    : mesh_(std::move(mesh)),
      drive_(key_of_alarm),
      neighbours_(neighbours_of(mesh_.rank, mesh_.ranks)),
      peers_(as_size(mesh_.ranks)) {
  for (int p = 0; p < mesh_.ranks; ++p) {
    auto& peer = at(peers_, p);
    peer.there = p != mesh_.rank;
    peer.waits_to_say = peer.waits_to_send = true;
  }
  for (const int p : neighbours_) meet(p);
  if (mesh_.door) drive_.watch.add(mesh_.door->watched(), key_of_door);
}

HETSCHED_INLINE void line_traffic::meet(int p) {
  auto& peer = at(peers_, p);
  peer.met = true;
  peer.waits_to_say = peer.waits_to_send = false;
  peer.frames.memory.resize(8 * longest_frame);
  peer.data.memory.resize(heard_at_once);
  met_.push_back(p);
  drive_.watch.add(socket_of(p, control_line), key_of(p, control_line));
  if (aborted_) {
    say(p, frame_kind::abort, reason_.data(), std::min(reason_.size(), longest_frame - sizeof(frame_header)));
    return;
  }
  drive_.watch.add(socket_of(p, data_line), key_of(p, data_line));
  if (peer.has_to_say()) write_frames(p);
  if (peer.outgoing.first) write_tensors(p);
}

HETSCHED_INLINE void line_traffic::need(int p) {
  auto& peer = at(peers_, p);
  if (!mesh_.door || peer.met || peer.called || p > mesh_.rank) return;
  peer.called = true;
  mesh_.door->call(p, parse_address(at(addresses_, p)), deadline_in(mesh_.connect_deadline_s));
  (void)look_at_door();
  drive_.watch.alarm();  // somebody is to count the time
}

HETSCHED_INLINE int line_traffic::look_at_door() {
  if (!mesh_.door) return -1;
  auto& door = *mesh_.door;
  try {
    door.look(0);
    for (int p = door.newcomer(); p >= 0; p = door.newcomer()) {
      if (at(peers_, p).met) {  // it has called twice
        for (std::size_t line = 0; line < lines_per_pair; ++line) (void)door.take(p, line);
        continue;
      }
      take_lines(mesh_, door, p);
      meet(p);
    }
  } catch (const error& e) {
    fail(e.what());
  }
  for (auto [p, why] = door.give_up_one(); p >= 0; std::tie(p, why) = door.give_up_one()) {
    at(peers_, p).down = true;
    if (is_used(p)) fail("rank " + std::to_string(mesh_.rank) + ": " + why);
  }
  return door.is_busy() ? 50 : -1;
}

HETSCHED_INLINE void line_traffic::fail(const std::string& reason) {
  if (aborted_) return;
  aborted_ = true;
  reason_ = reason;
  for (auto& c : channels_.all) c.transfers = {};
  const std::size_t length = std::min(reason.size(), longest_frame - sizeof(frame_header));
  for (auto& peer : peers_) {
    peer.drop_tensors();
    if (!peer.met) peer.to_say.clear();
  }
  for (const int p : met_) {
    auto& peer = at(peers_, p);
    if (peer.down) continue;
    peer.waits_to_send = false;
    drive_.watch.remove(socket_of(p, data_line));
    say(p, frame_kind::abort, reason.data(), length);
    answer_leaving(p);
  }
  drive_.drop_long();
  drive_.wake();
  bell_.ring_for_all();
  happened_.notify_all();
}

HETSCHED_INLINE void line_traffic::lose(int p, const std::string& why) {
  auto& peer = at(peers_, p);
  if (peer.down) return;
  peer.down = true;
  peer.waits_to_say = peer.waits_to_send = false;
  for (const auto line : {control_line, data_line}) drive_.watch.remove(socket_of(p, line));
  if (!peer.leaving || is_used(p)) fail(lost_text(peers_, p, why));
  for (int asker = 0; asker < mesh_.ranks && !is_mesh(mesh_.ranks) && !aborted_; ++asker)  // they may not have been told
    if (const auto number = at(peers_, asker).asked; number > 0 && way_to(asker) != p)
      answer_behind(p, {.number = number, .asker = static_cast<std::uint32_t>(asker)});
  if (!is_mesh(mesh_.ranks)) write_to_neighbours();
  happened_.notify_all();
}

HETSCHED_INLINE void line_traffic::write_frames(int p) {
  auto& peer = at(peers_, p);
  while (peer.has_to_say()) {
    const auto n = ::send(socket_of(p, control_line), peer.to_say.data() + peer.said, peer.to_say.size() - peer.said,
                          MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;  // that the connection has ended is found by who reads
    peer.said += as_size(n);
  }
  const bool left = peer.has_to_say();
  if (std::exchange(peer.waits_to_say, left) != left) watch(p, control_line);
}

HETSCHED_INLINE void line_traffic::take_numbers(int p, const char* body, std::size_t bytes) {
  const auto part = read_part<gathered_numbers>(body);
  if (!comes_by(p, part.from)) return distrust(p, "a frame", "brings numbers of a rank that is not there");
  if (!peers_[part.from].add_numbers(part, body + sizeof part, (bytes - sizeof part) / sizeof(double)))
    return distrust(p, "a frame", "brings more numbers than it said");
  pass_on(p, frame_kind::numbers, body, bytes);
  happened_.notify_all();
}

HETSCHED_INLINE void line_traffic::take_question(int p, const char* body, std::size_t bytes) {
  auto question = read_part<inquiry>(body);
  if (!comes_by(p, question.asker)) return distrust(p, "a frame", "asks for a rank that is not there");
  pass_on(p, frame_kind::ask, body, bytes);
  peers_[question.asker].asked = question.number;
  for (const int other : neighbours_)
    if (other != p && at(peers_, other).down) answer_behind(other, question);
  question.answerer = static_cast<std::uint32_t>(mesh_.rank);
  answer(p, question);
}

HETSCHED_INLINE void line_traffic::take_answer(int p, const char* body) {
  const auto told = read_part<inquiry>(body);
  if (!comes_by(p, told.answerer) || told.asker >= as_size(mesh_.ranks) || comes_by(p, told.asker))
    return distrust(p, "a frame", "answers for a rank that is not there");
  if (is_other(told.asker)) return answer(way_to(static_cast<int>(told.asker)), told);
  auto& known = peers_[told.answerer].answered_to;
  known = std::max(known, told.number);
  happened_.notify_all();
}

HETSCHED_INLINE void line_traffic::take_frame(int p, const char* frame) {
  auto& peer = at(peers_, p);
  const auto header = read_part<frame_header>(frame);
  const char* const body = frame + sizeof header;
  if (const char* const fault = fault_of(frame, peer.unasked_sent)) return distrust(p, "a frame", fault);
  acknowledge(p, header.acknowledged);
  switch (header.kind) {
    case frame_kind::receive_posted: {
      const auto wanted = read_part<tensor_note>(body);
      auto& c = find(wanted.where(mesh_.rank, p));
      if (aborted_ || wanted.number < c.moved) break;
      c.wanted.push_back(wanted);
      send_what_may_go(c);
      break;
    }
    case frame_kind::announced: {
      const auto waiting = read_part<tensor_note>(body);
      auto& c = find(waiting.where(p, mesh_.rank));
      c.announced = std::max(c.announced, waiting.number + 1);
      if (!aborted_) ask_for(c, waiting.number);
      break;
    }
    case frame_kind::numbers:
      return take_numbers(p, body, header.bytes);
    case frame_kind::abort:
      peer.gave_up = true;
      fail(printable({body, header.bytes}));
      happened_.notify_all();
      break;
    case frame_kind::leaving:
      peer.leaving = true;
      peer.tensors_due = read_part<std::uint64_t>(body);
      answer_leaving(p);
      break;
    case frame_kind::released:
      peer.released = true;
      happened_.notify_all();
      break;
    case frame_kind::acknowledge:
      break;
    case frame_kind::ask:
      return take_question(p, body, header.bytes);
    case frame_kind::answer:
      return take_answer(p, body);
  }
}

HETSCHED_INLINE void line_traffic::read_frames(int p) {
  auto& peer = at(peers_, p);
  auto& in = peer.frames;
  std::string why;
  std::size_t got = 0, room = in.make_room();
  if (read_some(socket_of(p, control_line), in.memory.data() + in.last, room, got, why) == reading::ended) return lose(p, why);
  in.last += got;
  while (!peer.mute && in.size() >= sizeof(frame_header)) {
    const std::size_t size = sizeof(frame_header) + read_part<frame_header>(in.data()).bytes;
    if (size > longest_frame) return distrust(p, "a frame", "has a wrong length");
    if (in.size() < size) break;
    std::array<char, longest_frame> frame;
    std::memcpy(frame.data(), in.data(), size);
    in.take(size);
    take_frame(p, frame.data());
  }
  if (!is_mesh(mesh_.ranks)) write_to_neighbours();  // many frames at once
}

HETSCHED_INLINE void line_traffic::send_what_may_go(channel_end& c) {
  auto& peer = at(peers_, c.peer);
  while (c.transfers.first && !aborted_) {
    auto& t = *c.transfers.first;
    auto& note = t.header.note;
    while (c.wanted_first < c.wanted.size() && c.wanted[c.wanted_first].number < note.number) ++c.wanted_first;
    const bool is_wanted = c.wanted_first < c.wanted.size() && c.wanted[c.wanted_first].number == note.number;
    if (is_wanted) {
      if (const auto text = difference(c.where, note.tensor(), c.wanted[c.wanted_first].tensor()); !text.empty())
        return fail(text);
      ++c.wanted_first;
    } else if (note.bytes > small_tensor || peer.unasked_sent >= peer.acknowledged + most_unasked) {
      if (std::exchange(c.announced, note.number + 1) <= note.number) say(c.peer, frame_kind::announced, &note, 1);
      break;
    }
    if (c.wanted_first == c.wanted.size()) c.wanted.clear(), c.wanted_first = 0;
    note.unasked = !is_wanted;
    peer.unasked_sent += !is_wanted;
    t.header.acknowledged = peer.told = peer.unasked_got;
    c.transfers.pop();
    ++c.moved;
    peer.outgoing.push(t);
  }
  if (peer.outgoing.first && !peer.waits_to_send) write_tensors(c.peer);
}

HETSCHED_INLINE void line_traffic::write_tensors(int p) {
  auto& peer = at(peers_, p);
  if (peer.down || peer.broken_at) return;  // the system would take what nobody reads
  bool full = false;
  for (std::size_t left = working_ ? moved_at_once : heard_at_once; peer.outgoing.first && left > 0 && !full;) {
    std::array<iovec, 16> parts;
    const auto [count, asked] = parts_of(peer.outgoing, parts, left);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto n = ::sendmsg(socket_of(p, data_line), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return break_off(p, std::strerror(errno));
    const auto sent = as_size(std::max<ssize_t>(n, 0));
    full = sent < asked;
    left -= asked;
    take_written(peer.outgoing, sent, [&](gloo_transfer& t) {
      ++peer.tensors_sent;
      bytes_sent_ += t.header.note.bytes;
      end(t, true);
    });
  }
  const bool left = peer.outgoing.first != nullptr;
  if (std::exchange(peer.waits_to_send, left) != left) watch(p, data_line);
}

HETSCHED_INLINE void line_traffic::take_early(channel_end& c) {
  while (!aborted_ && c.transfers.first && c.early_first && c.early_first->whole) {
    auto& t = c.transfers.pop();
    auto& early = *c.early_first;
    c.early_first = early.next;
    if (const auto text = difference(c.where, early.note.tensor(), t.header.note.tensor()); !text.empty()) return fail(text);
    if (early.note.bytes > 0) std::memcpy(t.data, early.bytes, early.note.bytes);
    blocks_.give_back(early);
    took_unasked(c.peer);
    end(t, false);
  }
}

HETSCHED_INLINE bool line_traffic::take_header(int p, const tensor_header& header) {
  auto& peer = at(peers_, p);
  const auto& note = header.note;
  const auto refuse = [&](const char* fault) {
    distrust(p, "a tensor", fault);
    return false;
  };
  if (!is_known(note)) return refuse("is of an unknown kind");
  auto& c = find(note.where(p, mesh_.rank));
  if (const char* const fault = fault_of(header, c.moved, peer.unasked_sent)) return refuse(fault);
  peer.unasked_come += note.unasked != 0;
  if (peer.unasked_come > peer.told + most_unasked) return refuse("is more than may come unasked");
  ++c.moved;
  peer.have = 0;
  peer.into = nullptr;
  peer.into_early = nullptr;
  if (c.transfers.first && !c.early_first) {
    if (const auto text = difference(c.where, note.tensor(), c.transfers.first->header.note.tensor()); !text.empty()) {
      fail(text);
      return false;
    }
    peer.into = &c.transfers.pop();
  } else if (note.unasked == 0) {
    return refuse("has not been asked for");
  } else {
    peer.into_early = &blocks_.take(note);
    (c.early_first ? c.early_last->next : c.early_first) = peer.into_early;
    c.early_last = peer.into_early;
  }
  peer.from = &c;
  peer.coming = note;
  acknowledge(p, header.acknowledged);
  return !aborted_;
}

HETSCHED_INLINE void line_traffic::finish_tensor(int p) {
  auto& peer = at(peers_, p);
  auto& c = *std::exchange(peer.from, nullptr);
  ++peer.tensors_got;
  if (peer.into) {
    if (peer.coming.unasked != 0) took_unasked(p);
    end(*std::exchange(peer.into, nullptr), false);
  } else {
    peer.into_early->whole = true;
    take_early(c);
  }
  answer_leaving(p);
}

HETSCHED_INLINE void line_traffic::share_out(int p) {
  auto& peer = at(peers_, p);
  auto& in = peer.data;
  while (!aborted_ && !peer.mute) {
    if (peer.from) {
      const std::size_t part = std::min(peer.coming.bytes - peer.have, in.size());
      if (part > 0) std::memcpy(peer.place(), in.data(), part);
      in.take(part);
      peer.have += part;
      if (peer.have < peer.coming.bytes) return;
      finish_tensor(p);
    } else {
      if (in.size() < sizeof(tensor_header)) return;
      const auto header = read_part<tensor_header>(in.data());
      in.take(sizeof header);
      if (!take_header(p, header)) return;
    }
  }
}

HETSCHED_INLINE void line_traffic::read_tensors(int p) {
  auto& peer = at(peers_, p);
  auto& in = peer.data;
  for (std::size_t budget = moved_at_once; budget > 0 && !aborted_ && !peer.mute;) {
    const std::size_t missing = peer.from ? peer.coming.bytes - peer.have : 0;
    const bool straight = missing >= heard_at_once / 2;  // the rest of a long one goes where it belongs
    const std::size_t room = straight ? std::min(missing, budget) : in.make_room();
    char* const to = !straight ? in.memory.data() + in.last : peer.place();
    std::string why;
    std::size_t got = 0;
    const auto result = read_some(socket_of(p, data_line), to, room, got, why);
    if (result == reading::ended) return break_off(p, why);
    (straight ? peer.have : in.last) += got;
    budget -= std::min(budget, got);
    share_out(p);
    if (result == reading::some) return;
  }
}

HETSCHED_INLINE int line_traffic::look_after_connections() {
  int limit_ms = mesh_.door && mesh_.door->is_busy() ? look_at_door() : -1;
  for (const int p : met_) {
    const auto& peer = at(peers_, p);
    if (!peer.broken_at || peer.down || aborted_ || peer.leaving) continue;
    if (std::chrono::steady_clock::now() - *peer.broken_at >= std::chrono::seconds(1))
      fail(lost_text(peers_, p, peer.broken_why));
    limit_ms = 50;
  }
  return limit_ms;
}

HETSCHED_INLINE void line_traffic::handle(std::span<const epoll_event> happened) {
  working_ = true;
  for (const auto& e : happened) {
    if (e.data.u64 == key_of_alarm) {
      drive_.watch.quiet();
      continue;
    }
    if (e.data.u64 == key_of_door) {
      (void)look_at_door();
      continue;
    }
    const int p = static_cast<int>(e.data.u64 / lines_per_pair);
    const bool of_frames = e.data.u64 % lines_per_pair == control_line;
    if ((e.events & EPOLLOUT) != 0 && !at(peers_, p).down) of_frames ? write_frames(p) : write_tensors(p);
    if ((e.events & ~std::uint32_t{EPOLLOUT}) == 0 || at(peers_, p).down) continue;
    if (!of_frames)
      read_tensors(p);
    else if (at(peers_, p).mute)
      lose(p, "it is not heard any more");
    else
      read_frames(p);
  }
  working_ = false;
}

}  // namespace hetsched::detail
