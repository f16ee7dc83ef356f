// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/arena_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/rank_program.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>
#include <hetsched/schedule/transfer_ends.hpp>

namespace hetsched::detail {

/// One rank's end of all boundaries that its tensors cross, with every tensor that comes, leaves or waits there. All are made
/// beforehand, as many as the order of the schedule can ask for at once. Tensors of an edge are named by their place in the
/// order of its sends.
template <class Tensor, class Communicator, class Stager>
class rank_edges {
  using operation = typename Communicator::operation;
  using copy = typename Stager::operation;
  static constexpr bool copies = !std::same_as<Stager, no_stager>;

 public:
  /// Requires: edges name ranks of the communicator.
  rank_edges(std::vector<rank_edge> edges, const std::vector<tensor_shape>& boundaries, Communicator comm, Stager stager)
      : comm_(std::move(comm)), listed_(std::move(edges)), stager_(std::move(stager)) {
    for (const auto& e : listed_) make(e, boundaries[at(e.where.stage - (e.where.what == payload::gradient ? 1 : 0))]);
  }

  [[nodiscard]] Communicator& comm() { return comm_; }
  [[nodiscard]] const Communicator& comm() const { return comm_; }
  [[nodiscard]] const std::vector<rank_edge>& listed() const { return listed_; }
  [[nodiscard]] std::size_t place(int e, int microbatch) const { return at(listed_[at(e)].place[at(microbatch)]); }

  /// Frees all buffers.
  /// Requires: nothing is under way.
  void begin_step(std::int64_t step) {
    step_ = step;
    for (auto& s : states_) {
      s.posted = s.ended = 0;
      std::fill(s.slot_of.begin(), s.slot_of.end(), -1);
      std::fill(s.landed.begin(), s.landed.end(), -1);
      std::fill(s.copied.begin(), s.copied.end(), char{0});
      s.leaving.free_all();
      s.buffers.free_all();
      s.landing.free_all();
    }
  }

  /// Whether n more tensors can leave over an edge; if not, sends that have been received are about to end.
  [[nodiscard]] bool has_room(int e, std::size_t n) {
    auto& s = states_[at(e)];
    if (s.leaving.free.size() < n && s.channel >= 0) reclaim(s);
    return s.leaving.free.size() >= n;
  }
  /// Keeps a tensor that is to leave.
  /// Requires: has_room(e, 1).
  void leave(int e, std::size_t p, Tensor&& t) {
    auto& s = states_[at(e)];
    s.slot_of[p] = s.leaving.take();
    s.leaving.tensors[at(s.slot_of[p])] = std::move(t);
  }
  /// Begins the first phase of a staged transfer.
  /// Requires: the tensor has been left here.
  void begin_copy_out(int e, std::size_t p, std::size_t op) {
    auto& s = states_[at(e)];
    if constexpr (copies) {
      s.copied[p] = 1;
      s.copied_by[p] = op;
      const auto slot = at(s.slot_of[p]);
      stager_.post_copy(s.leaving.tensors[slot], s.staged[slot], s.copies[p]);
      ++copying_;
    } else {
      (void)p, (void)op, (void)s;
    }
  }
  [[nodiscard]] bool copied_out(int e, std::size_t p) {
    if constexpr (copies)
      return ended(states_[at(e)], p);
    else
      return (void)e, (void)p, true;
  }
  /// Sends a tensor.
  /// Requires: it has been left here, and copied out if it is staged.
  void send(int e, std::size_t p, int microbatch, std::size_t op) {
    auto& s = states_[at(e)];
    s.started[p] = {steady_now_s(), op};
    ++s.posted;
    const auto slot = at(s.slot_of[p]);
    comm_.post_send(s.channel, stamp_of(listed_[at(e)].where, microbatch), s.copied[p] ? s.staged[slot] : s.leaving.tensors[slot],
                    s.operations[p]);
  }

  /// Posts receives in the order of the sends, while there are buffers, up to a number of places.
  void post_receives(std::size_t e, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    auto& s = states_[e];
    const auto& listed = listed_[e];
    if (s.channel < 0 || s.buffers.tensors.empty()) return;
    while (s.posted < std::min(most, listed.microbatches.size()) && !s.buffers.free.empty()) {
      const std::size_t p = s.posted++;
      s.slot_of[p] = s.buffers.take();
      comm_.post_receive(s.channel, stamp_of(listed.where, listed.microbatches[p]), s.buffers.tensors[at(s.slot_of[p])],
                         s.operations[p]);
    }
  }
  /// Whether a transfer has ended, at either end.
  [[nodiscard]] bool transferred(int e, std::size_t p) {
    auto& s = states_[at(e)];
    return p < s.posted && comm_.poll(s.operations[p]);
  }
  /// Begins the last phase of a staged transfer if the tensor has come and there is room. Returns whether it has ended.
  [[nodiscard]] bool copied_in(int e, std::size_t p, std::size_t op, bool early) {
    if constexpr (copies) {
      auto& s = states_[at(e)];
      if (s.landed[p] < 0) {
        if (!transferred(e, p) || s.landing.free.empty()) return false;
        s.landed[p] = s.landing.take();
        s.copied_by[p] = op;
        s.copied[p] = 1;
        stager_.post_copy(s.buffers.tensors[at(s.slot_of[p])], s.landing.tensors[at(s.landed[p])], s.copies[p]);
        ++copying_;
      }
      if (!ended(s, p)) return false;
      s.buffers.free.push_back(std::exchange(s.slot_of[p], -1));
      if (early) post_receives(at(e));
      return true;
    } else {
      (void)op, (void)early;
      return transferred(e, p);
    }
  }
  /// Takes the tensor that has come over an edge, in exchange for one of its shape.
  void take(int e, std::size_t p, Tensor& old, bool early) {
    using std::swap;
    auto& s = states_[at(e)];
    if (s.channel < 0) {
      const int slot = std::exchange(s.slot_of[p], -1);
      swap(old, s.leaving.tensors[at(slot)]);
      s.leaving.free.push_back(slot);
    } else if (s.landed[p] >= 0) {
      swap(old, s.landing.tensors[at(s.landed[p])]);
      s.landing.free.push_back(s.landed[p]);
    } else {
      const int slot = std::exchange(s.slot_of[p], -1);
      swap(old, s.buffers.tensors[at(slot)]);
      s.buffers.free.push_back(slot);
      if (early) post_receives(at(e));
    }
  }

  /// Whether copies are under way: a wait does not hear of their ends.
  [[nodiscard]] bool copying() const { return copying_ > 0; }
  [[nodiscard]] bool all_sent() {
    for (auto& s : states_)
      if (s.sends() && (reclaim(s), s.ended < s.posted)) return false;
    return true;
  }
  /// The edge and the op of the first send that has not ended; -1: none.
  [[nodiscard]] std::pair<int, std::size_t> first_unsent() {
    for (std::size_t e = 0; e < states_.size(); ++e)
      if (auto& s = states_[e]; s.sends() && (reclaim(s), s.ended < s.posted))
        return {static_cast<int>(e), s.started[s.ended].second};
    return {-1, 0};
  }

  /// Appends this rank's sends, arrivals and copies.
  /// Requires: all have ended.
  void record(const rank_program& program, int first_rank, std::vector<timed_action>& out) const {
    for (std::size_t e = 0; e < states_.size(); ++e) {
      const auto& s = states_[e];
      const auto& where = listed_[e].where;
      if (s.channel < 0) continue;
      const bool gradient = where.what == payload::gradient;
      const int own = (s.sends() ? where.from : where.to) - first_rank, peer = (s.sends() ? where.to : where.from) - first_rank;
      for (std::size_t p = 0; p < s.posted; ++p) {
        const double end_s = s.operations[p].end_s;
        if (s.sends())
          out.push_back({program.ops[s.started[p].second].what, own, peer, s.started[p].first, end_s});
        else
          out.push_back({{.kind = gradient ? action_kind::receive_gradient : action_kind::receive_activation,
                          .direction = static_cast<std::int16_t>(where.direction),
                          .stage = where.stage + (gradient ? -1 : 1),
                          .microbatch = listed_[e].microbatches[p]},
                         own,
                         peer,
                         end_s,
                         end_s});
        if (!s.copied.empty() && s.copied[p])
          out.push_back({program.ops[s.copied_by[p]].what, own, peer, s.copies[p].start_s, s.copies[p].end_s});
      }
    }
  }

  /// Bytes of tensors that are leaving, that can be received before they are taken, and of both on their way through the
  /// host.
  struct usage {
    std::size_t sending = 0, receiving = 0, staging = 0;
  };
  [[nodiscard]] usage bytes() const {
    usage u;
    const auto add = [](std::size_t& sum, const std::vector<Tensor>& list) {
      for (const auto& t : list) sum += elements(t) * sizeof(typename tensor_traits<Tensor>::element);
    };
    for (const auto& s : states_) {
      add(u.sending, s.leaving.tensors);
      add(s.landing.tensors.empty() ? u.receiving : u.staging, s.buffers.tensors);
      add(u.receiving, s.landing.tensors);
      add(u.staging, s.staged);
    }
    return u;
  }

 private:
  struct pool {
    std::vector<Tensor> tensors;
    std::vector<int> free;
    int take() {
      HETSCHED_EXPECTS(!free.empty());
      const int k = free.back();
      free.pop_back();
      return k;
    }
    void free_all() {
      free.clear();
      for (std::size_t k = tensors.size(); k-- > 0;) free.push_back(static_cast<int>(k));
    }
  };
  struct state {
    int channel = -1;                                     ///< -1: within the rank
    pool leaving;                                         ///< at the sending end
    std::vector<Tensor> staged;                           ///< the same on the host
    pool buffers;                                         ///< at the receiving end
    pool landing;                                         ///< the same behind the last phase
    std::vector<int> slot_of, landed;                     ///< by place: of leaving or buffers, of landing; -1: none
    std::vector<char> copied;                             ///< by place: goes through the host
    std::unique_ptr<operation[]> operations;              ///< by place
    std::unique_ptr<copy[]> copies;                       ///< by place
    std::vector<std::size_t> copied_by;                   ///< by place: op
    std::vector<std::pair<double, std::size_t>> started;  ///< by place, at the sending end: when, by which op
    std::size_t posted = 0;
    std::size_t ended = 0;  ///< sends
    [[nodiscard]] bool sends() const { return channel >= 0 && !started.empty(); }
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] stamp stamp_of(const edge& e, int microbatch) const { return {step_, microbatch, e.what, e.direction, e.stage}; }

  static void fill(std::vector<Tensor>& list, int count, const tensor_shape& shape) {
    for (int k = 0; k < count; ++k) list.push_back(tensor_traits<Tensor>::make(shape));
  }
  void fill_on_host(std::vector<Tensor>& list, int count, const tensor_shape& shape) {
    for (int k = 0; k < count; ++k)
      if constexpr (requires { stager_.make(shape); })
        list.push_back(stager_.make(shape));
      else
        list.push_back(tensor_traits<Tensor>::make(shape));
  }

  void make(const rank_edge& e, const tensor_shape& shape) {
    auto& s = states_.emplace_back();
    const std::size_t all = e.microbatches.size();
    const bool sending = e.where.from == comm_.rank(), remote = e.where.from != e.where.to, staged = copies && e.staged > 0;
    if (staged && e.staged < all)
      throw input_error(to_text(e.where) + ": some microbatches go by way of the host, others do not");
    s.slot_of.assign(all, -1);
    s.landed.assign(all, -1);
    s.copied.assign(all, 0);
    if (sending) fill(s.leaving.tensors, e.leaving, shape);
    if (sending && remote) s.started.resize(all);
    if (sending && staged) fill_on_host(s.staged, e.leaving, shape);
    if (!sending && !staged) fill(s.buffers.tensors, e.buffers, shape);
    if (!sending && staged) {
      fill_on_host(s.buffers.tensors, e.buffers, shape);
      fill(s.landing.tensors, e.buffers, shape);
    }
    for (auto* p : {&s.leaving, &s.buffers, &s.landing}) p->free.reserve(p->tensors.size());
    if (staged) {
      s.copies = std::make_unique<copy[]>(all);
      s.copied_by.assign(all, 0);
    }
    if (!remote) return;
    s.channel = comm_.open(e.where);
    s.operations = std::make_unique<operation[]>(all);
  }

  /// Ends sends, in their order.
  void reclaim(state& s) {
    for (; s.ended < s.posted && comm_.poll(s.operations[s.ended]); ++s.ended)
      s.leaving.free.push_back(std::exchange(s.slot_of[s.ended], -1));
  }

  [[nodiscard]] bool ended(state& s, std::size_t p) {
    if (!stager_.poll(s.copies[p])) return false;
    --copying_;
    return true;
  }

  Communicator comm_;
  std::vector<rank_edge> listed_;
  std::vector<state> states_;
  std::int64_t step_ = 0;
  std::size_t copying_ = 0;
  Stager stager_;  ///< last, so that it ends before the tensors that it copies
};

}  // namespace hetsched::detail
