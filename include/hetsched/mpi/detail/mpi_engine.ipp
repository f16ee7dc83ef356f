// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/mpi/detail/mpi_engine.hpp>
#include <hetsched/runtime/communicator/detail/no_signals.hpp>

namespace hetsched::detail {

/// Frames are no longer, so that MPI sends most of them at once; texts of failures are cut to it.
inline constexpr std::size_t longest_mpi_frame = 2048;

[[nodiscard]] inline std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  return MPI_Error_string(code, text, &length) == MPI_SUCCESS ? text : "error " + std::to_string(code) + " of MPI";
}

/// Errors of a communicator's are returned, until it ends; then they are its handler's again.
class mpi_returned_errors {
 public:
  explicit mpi_returned_errors(MPI_Comm of) : of_(of) {
    MPI_Comm_get_errhandler(of_, &before_);
    MPI_Comm_set_errhandler(of_, MPI_ERRORS_RETURN);
  }
  ~mpi_returned_errors() {
    MPI_Comm_set_errhandler(of_, before_);
    // MPI's own are not counted everywhere.
    if (before_ != MPI_ERRORS_ARE_FATAL && before_ != MPI_ERRORS_RETURN) MPI_Errhandler_free(&before_);
  }
  mpi_returned_errors(const mpi_returned_errors&) = delete;
  mpi_returned_errors& operator=(const mpi_returned_errors&) = delete;

 private:
  MPI_Comm of_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

HETSCHED_INLINE mpi_engine::mpi_engine(mpi_session& mpi, const mpi_options& options)
    : mpi_(mpi), options_(options), guard_(mpi.guard()) {
  if (options_.message_bytes < 1 || options_.message_bytes > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw input_error("message_bytes: found " + std::to_string(options_.message_bytes) + ", expected 1 to 2147483647");
  lock hold(guard_);
  MPI_Comm_rank(options_.among, &rank_);
  MPI_Comm_size(options_.among, &ranks_);
  peers_.resize(as_size(ranks_));
  if (ranks_ == 1) return;
  const auto until = deadline_in(options_.connect_deadline_s);
  // That a process ends meanwhile is no reason for the others to.
  const mpi_returned_errors returned(options_.among);
  for (auto* const one : {&frames_, &tensors_}) {
    auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(options_.among, made.get(), &request), done = 0, fruitless = 0;
    while (code == MPI_SUCCESS && (code = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && done == 0) {
      if (std::chrono::steady_clock::now() >= until) {
        (void)made.release();  // MPI may write there yet
        const auto why = "not all of " + std::to_string(ranks_) + " ranks have come within " +
                         std::to_string(options_.connect_deadline_s) + " s";
        mpi_.give_up(why);
        throw error("rank " + std::to_string(rank_) + ": " + why);
      }
      pause(hold, fruitless);
    }
    if (code != MPI_SUCCESS) throw error("rank " + std::to_string(rank_) + " cannot reach the others: " + mpi_text(code));
    *one = *made;
    MPI_Comm_set_errhandler(*one, MPI_ERRORS_RETURN);
  }
  int there = 0;
  void* most = nullptr;
  MPI_Comm_get_attr(tensors_, MPI_TAG_UB, &most, &there);
  if (there != 0) most_tag_ = *static_cast<int*>(most);
  for (int p = 0; p < ranks_; ++p)
    if (p != rank_) listen(p, std::vector<char>(longest_mpi_frame));
  const no_signals in_thread;
  worker_ = std::thread([this] { work(); });
}

HETSCHED_INLINE mpi_engine::~mpi_engine() {
  if (ranks_ == 1) return;
  bool clean = false;
  {
    lock hold(guard_);
    if (std::uncaught_exceptions() > exceptions_ && reason_.empty())
      reason_ = "rank " + std::to_string(rank_) + " was ended by an exception";
    if (!aborted_ && !reason_.empty()) fail(std::string(reason_));  // so is who leaves behind a gather that came to its deadline
    if (!aborted_)
      (void)await(hold, deadline_in(5), [&] {
        const bool waits = std::any_of(channels_.begin(), channels_.end(),
                                       [&](const mpi_channel& c) { return !c.sends.empty() && !at(peers_, c.peer).left; });
        return aborted_ || (!waits && !is_under_way(true));
      });
    if (aborted_) let_go(hold);
    leaves_ = true;
    for (auto& c : channels_) {
      c.sends.clear();
      for (const auto& note : std::exchange(c.wanted, {})) refuse(note, c.peer);
    }
    for (int p = 0; p < ranks_ && !aborted_; ++p) {
      if (p == rank_ || at(peers_, p).left) continue;
      say(p, frame_kind::leaving);
      at(peers_, p).told_leaving = true;
    }
    const auto has_gone = [&](const peer_state& p) {
      return p.gave_up || p.released || (p.left && (aborted_ || !p.told_leaving));
    };
    clean =
        await(hold, deadline_in(aborted_ ? 1 : 5), [&] { return first_without(has_gone) < 0 && !is_under_way(false); }) && !lost_;
    if (!clean)
      mpi_.give_up(first_without(has_gone) >= 0
                       ? ranks_without(has_gone) + " not answered when rank " + std::to_string(rank_) + " left"
                       : "rank " + std::to_string(rank_) + " could not send all it had to say");
    stopped_ = true;
    wake_.notify_one();
  }
  worker_.join();
  const lock hold(guard_);
  if (!clean) {  // MPI may write into this memory yet
    (void)new std::vector<under_way>(std::move(of_request_));
    return;
  }
  for (auto& r : requests_) {  // for frames that nobody sends
    MPI_Cancel(&r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&frames_);
  MPI_Comm_free(&tensors_);
}

HETSCHED_INLINE mpi_channel& mpi_engine::open(const edge& e) {
  HETSCHED_EXPECTS(e.from != e.to && (e.from == rank_ || e.to == rank_));
  HETSCHED_EXPECTS(e.from >= 0 && e.from < ranks_ && e.to >= 0 && e.to < ranks_);
  const lock hold(guard_);
  return find(e);
}

HETSCHED_INLINE mpi_channel& mpi_engine::find(const edge& e) {
  if (const auto known = by_edge_.find(e); known != by_edge_.end()) return *known->second;
  auto& c = channels_.emplace_back();
  c.where = e;
  c.sending = e.from == rank_;
  c.peer = c.sending ? e.to : e.from;
  by_edge_.emplace(e, &c);
  return c;
}

HETSCHED_INLINE std::size_t mpi_engine::messages_of(std::uint64_t bytes) const {
  return bytes == 0 ? 1 : (bytes + options_.message_bytes - 1) / options_.message_bytes;
}
/// Of one message; an empty tensor is a byte that nobody reads, as empty messages are refusals.
HETSCHED_INLINE std::size_t mpi_engine::size_of(std::uint64_t bytes, std::size_t message) const {
  return bytes == 0 ? 1 : std::min<std::size_t>(options_.message_bytes, bytes - message * options_.message_bytes);
}

HETSCHED_INLINE void mpi_engine::add(MPI_Request request, under_way what) {
  requests_.push_back(request);
  of_request_.push_back(std::move(what));
}

HETSCHED_INLINE void mpi_engine::post(mpi_channel& c, mpi_transfer& t) {
  t.ended.store(false, std::memory_order_relaxed);
  t.refused = false;
  t.messages = 0;
  const lock hold(guard_);
  if (aborted_) return;
  auto& peer = at(peers_, c.peer);
  if (peer.left) return fail(text_of_lost(c.peer));
  if (c.sending) {
    c.sends.push_back(&t);
    match(c);
  } else {
    mpi_note note{.where = c.where, .what = t.what, .tag = peer.next_tag};
    peer.next_tag = peer.next_tag == most_tag_ ? 0 : peer.next_tag + 1;
    t.messages = messages_of(t.what.bytes);
    for (std::size_t m = 0, all = t.messages; m < all; ++m) {
      under_way receive{
          .what = under_way::tensor_in, .peer = c.peer, .bytes = std::vector<char>(t.what.bytes == 0 ? 1 : 0), .transfer = &t};
      void* const to = t.what.bytes == 0 ? static_cast<void*>(receive.bytes.data()) : t.data + m * options_.message_bytes;
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = MPI_Irecv(to, static_cast<int>(size_of(t.what.bytes, m)), MPI_BYTE, c.peer, note.tag, tensors_, &request);
      if (code != MPI_SUCCESS) return lose(c.peer, code);
      add(request, std::move(receive));
    }
    say(c.peer, frame_kind::posted, 0, 0, &note, sizeof note);
  }
  (void)progress();
  if (std::exchange(dozes_, false)) wake_.notify_one();
}

HETSCHED_INLINE void mpi_engine::match(mpi_channel& c) {
  while (!aborted_ && !c.sends.empty() && !c.wanted.empty()) {
    if (const auto text = difference(c.where, c.sends.front()->what, c.wanted.front().what); !text.empty()) return fail(text);
    auto& t = *c.sends.front();
    const auto to = c.wanted.front();
    c.sends.pop_front();
    c.wanted.pop_front();
    send(t, to, c.peer);
  }
}

HETSCHED_INLINE void mpi_engine::send(mpi_transfer& t, const mpi_note& to, int peer) {
  static const char nothing = 0;
  bytes_sent_ += t.what.bytes;
  t.messages = messages_of(t.what.bytes);
  for (std::size_t m = 0, all = t.messages; m < all; ++m) {
    const void* const from = t.what.bytes == 0 ? static_cast<const void*>(&nothing) : t.data + m * options_.message_bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(from, static_cast<int>(size_of(t.what.bytes, m)), MPI_BYTE, peer, to.tag, tensors_, &request);
    if (code != MPI_SUCCESS) return lose(peer, code);
    add(request, {.what = under_way::tensor_out, .peer = peer, .bytes = {}, .transfer = &t});
  }
}

HETSCHED_INLINE void mpi_engine::refuse(const mpi_note& note, int peer) {
  for (std::size_t m = messages_of(note.what.bytes); m > 0; --m) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, peer, note.tag, tensors_, &request) == MPI_SUCCESS)
      add(request, {.what = under_way::tensor_out, .peer = peer, .bytes = {}, .transfer = nullptr});
  }
}

HETSCHED_INLINE void mpi_engine::say(int peer, frame_kind kind, std::uint64_t number, std::uint64_t all, const void* body,
                                     std::size_t bytes) {
  static_assert(std::is_trivially_copyable_v<mpi_note>);
  const auto& to = at(peers_, peer);
  if (to.left || to.released) return;
  under_way frame{.what = under_way::frame_out, .peer = peer, .bytes = std::vector<char>(sizeof(frame_head) + bytes)};
  const frame_head head{.kind = kind, .number = number, .all = all};
  std::memcpy(frame.bytes.data(), &head, sizeof head);
  if (bytes > 0) std::memcpy(frame.bytes.data() + sizeof head, body, bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(frame.bytes.data(), static_cast<int>(frame.bytes.size()), MPI_BYTE, peer, 0, frames_, &request);
  if (code != MPI_SUCCESS) return lose(peer, code);
  add(request, std::move(frame));
}

HETSCHED_INLINE void mpi_engine::listen(int peer, std::vector<char> memory) {
  under_way frame{.what = under_way::frame_in, .peer = peer, .bytes = std::move(memory)};
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(frame.bytes.data(), static_cast<int>(frame.bytes.size()), MPI_BYTE, peer, 0, frames_, &request);
  if (code != MPI_SUCCESS) return lose(peer, code);
  add(request, std::move(frame));
}

HETSCHED_INLINE bool mpi_engine::progress() {
  if (requests_.empty()) return false;
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    fail("MPI fails: " + mpi_text(code));
    return false;
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  taken_.clear();
  for (int k = 0; k < count; ++k) {
    auto& status = at(statuses_, k);
    if (code == MPI_SUCCESS) status.MPI_ERROR = MPI_SUCCESS;
    taken_.emplace_back(std::move(at(of_request_, at(ended_, k))), status);
  }
  std::sort(ended_.begin(), ended_.begin() + count, std::greater<>());
  for (int k = 0; k < count; ++k) {
    const auto gap = as_size(at(ended_, k));
    requests_[gap] = requests_.back();
    if (gap + 1 < of_request_.size()) of_request_[gap] = std::move(of_request_.back());
    requests_.pop_back();
    of_request_.pop_back();
  }
  for (auto& [what, status] : taken_) take(what, status, status.MPI_ERROR);
  return true;
}

HETSCHED_INLINE void mpi_engine::take(under_way& ended, const MPI_Status& status, int code) {
  int cancelled = 0, bytes = 0;
  if (code == MPI_SUCCESS && ended.what != under_way::frame_out) MPI_Test_cancelled(&status, &cancelled);
  if (code == MPI_SUCCESS && (ended.what == under_way::frame_in || ended.what == under_way::tensor_in))
    MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (code != MPI_SUCCESS) lose(ended.peer, code);
  if (ended.what == under_way::frame_in && code == MPI_SUCCESS && cancelled == 0) {
    hear(ended.peer, ended.bytes.data(), static_cast<std::size_t>(bytes));
    if (const auto& peer = at(peers_, ended.peer); !peer.gave_up && !peer.released) listen(ended.peer, std::move(ended.bytes));
  }
  if (!ended.transfer) return;
  auto& t = *ended.transfer;
  if (code != MPI_SUCCESS || cancelled != 0 || (ended.what == under_way::tensor_in && bytes == 0)) t.refused = true;
  if (--t.messages > 0) return;
  if (!t.refused) return end(t, ended.what == under_way::tensor_out);
  auto& from = at(peers_, ended.peer);
  from.refused = true;
  if (from.left) fail(text_of_lost(ended.peer));  // else a frame on its way says why
}

HETSCHED_INLINE void mpi_engine::end(mpi_transfer& t, bool sent) {
  t.end_s = steady_now_s();
  t.ended.store(true, std::memory_order_release);  // from then on it may be gone
  ring(sent);
}

HETSCHED_INLINE void mpi_engine::ring(bool of_send) {
  (of_send ? sent_ : received_) = true;
  if (also_) also_();
}

HETSCHED_INLINE void mpi_engine::hear(int peer, const char* frame, std::size_t bytes) {
  auto& from = at(peers_, peer);
  frame_head head;
  if (bytes < sizeof head) return fail("rank " + std::to_string(peer) + " speaks another language");
  std::memcpy(&head, frame, sizeof head);
  const char* const body = frame + sizeof head;
  bytes -= sizeof head;
  switch (head.kind) {
    case frame_kind::posted: {
      mpi_note note;
      std::memcpy(static_cast<void*>(&note), body, sizeof note);
      auto& c = find(note.where);
      c.wanted.push_back(note);
      match(c);
      if (!aborted_ && !leaves_) return;
      for (const auto& unanswered : std::exchange(c.wanted, {})) refuse(unanswered, peer);
      return;
    }
    case frame_kind::numbers: {
      if (from.gathered.empty() || from.gathered.back().round != head.number)
        from.gathered.push_back({.round = head.number, .all = head.all, .numbers = {}});
      auto& numbers = from.gathered.back().numbers;
      const auto before = numbers.size();
      numbers.resize(before + bytes / sizeof(double));
      if (bytes > 0) std::memcpy(numbers.data() + before, body, bytes);
      return;
    }
    case frame_kind::abort:
      from.gave_up = true;
      return fail(std::string(body, bytes));
    case frame_kind::leaving:
      say(peer, frame_kind::released);
      from.left = true;
      if (!leaves_ && (from.refused || std::any_of(channels_.begin(), channels_.end(),
                                                   [&](const mpi_channel& c) { return c.peer == peer && !c.sends.empty(); })))
        fail(text_of_lost(peer));
      return;
    case frame_kind::released:
      from.released = true;
      return;
    case frame_kind::ask:
      return say(peer, frame_kind::answer, head.number);
    case frame_kind::answer:
      from.answered_to = head.number;
      return;
  }
}

HETSCHED_INLINE std::string mpi_engine::text_of_lost(int peer) const { return "rank " + std::to_string(peer) + " has left"; }

HETSCHED_INLINE void mpi_engine::lose(int peer, int code) {
  const auto why = "rank " + std::to_string(peer) + " was lost: " + mpi_text(code);
#ifdef HETSCHED_MPI_ULFM
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  if (kind == MPIX_ERR_REVOKED) return;  // by one that aborts: a frame on its way says why
  if (kind == MPIX_ERR_PROC_FAILED) {    // the others can go on, and finalise MPI
    at(peers_, peer).left = true;
    return fail(why);
  }
#endif
  at(peers_, peer).left = lost_ = true;
  mpi_.give_up(why);
  fail(why);
}

HETSCHED_INLINE void mpi_engine::fail(const std::string& reason) {
  if (std::exchange(aborted_, true)) return;
  reason_ = reason;
  const std::string told = reason_.substr(0, longest_mpi_frame - sizeof(frame_head));
  for (int p = 0; p < ranks_; ++p)
    if (p != rank_) say(p, frame_kind::abort, 0, 0, told.data(), told.size());
  for (auto& c : channels_) {
    c.sends.clear();
    for (const auto& note : std::exchange(c.wanted, {})) refuse(note, c.peer);
  }
  if (also_) also_();
}

HETSCHED_INLINE bool mpi_engine::is_under_way(bool tensors_only) const {
  return std::any_of(of_request_.begin(), of_request_.end(), [&](const under_way& u) {
    return tensors_only ? u.what == under_way::tensor_out : u.what != under_way::frame_in && u.what != under_way::tensor_in;
  });
}

HETSCHED_INLINE void mpi_engine::let_go(lock& hold) {
  const auto none = [&] {
    return std::none_of(of_request_.begin(), of_request_.end(), [](const under_way& u) { return u.transfer != nullptr; });
  };
  if (await(hold, deadline_in(1), none)) return;
  // A rank that is stopped does not answer notes. What has not begun to come can be taken back.
  mpi_.give_up(reason_);
  for (std::size_t k = 0; k < of_request_.size(); ++k)
    if (of_request_[k].what == under_way::tensor_in) MPI_Cancel(&requests_[k]);
  if (await(hold, deadline_in(4), none)) return;
#ifdef HETSCHED_MPI_ULFM
  // What has begun to come ends as well where all communication is revoked.
  if (MPIX_Comm_revoke(tensors_) == MPI_SUCCESS && await(hold, deadline_in(1), none)) return;
#endif
  mpi_.end_all(reason_ + ", amid a tensor");
}

HETSCHED_INLINE void mpi_engine::abort(const std::string& reason) {
  lock hold(guard_);
  fail(reason.empty() ? "aborted" : reason);
  let_go(hold);
}

HETSCHED_INLINE std::string mpi_engine::failure() const {
  const lock hold(guard_);
  return reason_;
}

HETSCHED_INLINE std::uint64_t mpi_engine::bytes_sent() const {
  const lock hold(guard_);
  return bytes_sent_;
}

HETSCHED_INLINE void mpi_engine::on_wake(std::function<void()> ring) {
  const lock hold(guard_);
  also_ = std::move(ring);
}

HETSCHED_INLINE void mpi_engine::pause(lock& hold, int& fruitless) const {
  constexpr int at_once = 200;  // then others on this processor have their turn, too
  hold.unlock();
  if (++fruitless < at_once)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  hold.lock();
}

HETSCHED_INLINE bool mpi_engine::is_over(standstill::wait& w) {
  const bool over = stood_still_.is_over(w);
  if (const auto seconds = stood_still_.news(); seconds && options_.say)
    options_.say("rank " + std::to_string(rank_) + ": this process stood still for " + std::to_string(std::llround(*seconds)) +
                 " s, which its deadlines do not count");
  return over;
}

template <class Done>
bool mpi_engine::await(lock& hold, deadline_time until, const Done& done) {
  ++waiters_;
  bool in_time = true;
  int fruitless = 0;
  for (auto w = stood_still_.begin(until);;) {
    const bool moved = progress();
    if (done()) break;
    if (is_over(w)) {
      in_time = false;
      break;
    }
    if (moved)
      fruitless = 0;
    else
      pause(hold, fruitless);
  }
  // The thread takes over what is under way.
  if (--waiters_ == 0 && of_request_.size() >= as_size(ranks_) && std::exchange(dozes_, false)) wake_.notify_one();
  return in_time;
}

HETSCHED_INLINE wait_result mpi_engine::wait(deadline_time until, bool sends) {
  lock hold(guard_);
  const bool in_time = await(hold, until, [&] { return aborted_ || received_ || (sends && sent_); });
  if (aborted_) return wait_result::aborted;
  if (!in_time) return wait_result::deadline;
  received_ = false;
  if (sends) sent_ = false;
  return wait_result::progress;
}

template <class Done>
int mpi_engine::first_without(const Done& done) const {
  for (int p = 0; p < ranks_; ++p)
    if (p != rank_ && !done(at(peers_, p))) return p;
  return -1;
}

template <class Done>
std::string mpi_engine::ranks_without(const Done& done) const {
  std::string names;
  int count = 0;
  for (int p = 0; p < ranks_; ++p)
    if (p != rank_ && !done(at(peers_, p))) names += (count++ > 0 ? ", " : "") + std::to_string(p);
  return count == 1 ? "rank " + names + " has" : "ranks " + names + " have";
}

HETSCHED_INLINE wait_result mpi_engine::gather(std::span<const double> mine, std::vector<std::vector<double>>& all,
                                               deadline_time until) {
  constexpr std::size_t per_frame = (longest_mpi_frame - sizeof(frame_head)) / sizeof(double);
  lock hold(guard_);
  if (aborted_) return wait_result::aborted;
  const std::uint64_t round = ++round_;
  for (int p = 0; p < ranks_; ++p) {
    if (p == rank_) continue;
    for (std::size_t first = 0; first == 0 || first < mine.size(); first += per_frame)
      say(p, frame_kind::numbers, round, mine.size(), mine.data() + first,
          sizeof(double) * std::min(per_frame, mine.size() - first));
  }
  const auto has_brought = [round](const peer_state& p) {
    return !p.gathered.empty() && p.gathered.front().round == round &&
           p.gathered.front().numbers.size() == p.gathered.front().all;
  };
  int missing = -1;
  const auto look = [&] {
    for (auto& p : peers_)
      while (!p.gathered.empty() && p.gathered.front().round < round) p.gathered.pop_front();  // of a gather that was given up
    missing = first_without(has_brought);
    return missing < 0 || at(peers_, missing).left;
  };
  const bool in_time = await(hold, until, [&] { return look() || aborted_; });
  // A rank that has what all brought may abort already, while another's numbers are still under way to this one.
  if (aborted_ && missing >= 0)
    (void)await(hold, std::min(until, deadline_in(1)), [&] { return look() || at(peers_, missing).gave_up; });
  if (missing >= 0) {
    if (in_time && !aborted_) fail(text_of_lost(missing));
    if (!aborted_) reason_ = ranks_without(has_brought) + " not answered in time";
    return aborted_ ? wait_result::aborted : wait_result::deadline;
  }
  all.resize(as_size(ranks_));
  for (int p = 0; p < ranks_; ++p) {
    if (p == rank_) {
      at(all, p).assign(mine.begin(), mine.end());
      continue;
    }
    at(all, p) = std::move(at(peers_, p).gathered.front().numbers);
    at(peers_, p).gathered.pop_front();
  }
  if (!aborted_) reason_.clear();  // of an earlier round that was late
  return wait_result::progress;
}

HETSCHED_INLINE wait_result mpi_engine::ask() {
  lock hold(guard_);
  const std::uint64_t question = ++questions_;
  for (int p = 0; p < ranks_ && !aborted_; ++p)
    if (p != rank_) say(p, frame_kind::ask, question);
  const auto has_answered = [question](const peer_state& p) { return p.left || p.answered_to >= question; };
  (void)await(hold, deadline_in(1), [&] { return aborted_ || first_without(has_answered) < 0; });
  if (first_without(has_answered) >= 0) fail(ranks_without(has_answered) + " not answered for a second");
  return aborted_ ? wait_result::aborted : wait_result::deadline;
}

HETSCHED_INLINE void mpi_engine::work() {
  lock hold(guard_);
  while (!stopped_) {
    stood_still_.look();
    const bool moved = waiters_ == 0 && progress();
    if (moved) {  // others may want MPI, too
      hold.unlock();
      std::this_thread::yield();
      hold.lock();
      continue;
    }
    // Tensors are to go on while the rank computes, and what it has to send is to leave soon after it is asked for.
    const bool busy =
        waiters_ == 0 && (of_request_.size() >= as_size(ranks_) ||
                          std::any_of(channels_.begin(), channels_.end(), [](const mpi_channel& c) { return !c.sends.empty(); }));
    dozes_ = !busy;
    wake_.wait_for(hold, std::chrono::microseconds(busy ? 50 : 1000));
    dozes_ = false;
  }
}

}  // namespace hetsched::detail
