// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/arena_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/chunked_transfer.hpp>
#include <hetsched/runtime/executor/detail/group_member.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/slice_transfer.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched::detail {

/// The boundaries that a rank's tensors cross.
struct rank_boundaries {
  std::vector<rank_edge> edges;
  std::span<const boundary_transfer> transfers;  ///< by direction, then by the stage before them
  int stages = 0;                                ///< of the schedule
  std::size_t chunk_bytes = 0;                   ///< of what goes by way of the hosts; 0: as one
};

/// One rank's end of all boundaries that its tensors cross, with every tensor that comes, leaves or waits there. All are made
/// beforehand, as many as the order of the schedule can ask for at once. Tensors of an edge are named by their place in the
/// order of its sends. Where one rank's whole tensor is another's, it travels itself; else a slice_transfer takes it.
template <class Tensor, class Communicator, class Stager, class Queue = host_queue>
class rank_edges {
  using operation = typename Communicator::operation;
  using copy = typename Stager::operation;
  static constexpr bool copies = !std::same_as<Stager, no_stager>;
  using chunks_type = chunked_transfer<Tensor, Communicator, Stager>;
  static constexpr bool in_chunks = chunks_type::possible;

 public:
  /// `queue`: where tensors are made, cut and put together.
  rank_edges(rank_boundaries crossed, const group_member& me, Communicator comm, Stager stager, Queue queue = Queue())
      : queue_(std::move(queue)),
        comm_(std::move(comm)),
        listed_(std::move(crossed.edges)),
        chunk_bytes_(crossed.chunk_bytes),
        stager_(std::move(stager)) {
    for (const auto& e : listed_) {
      const bool gradient = e.where.what == payload::gradient;
      make(e, at(crossed.transfers, e.where.direction * (crossed.stages - 1) + e.where.stage - (gradient ? 1 : 0)), me);
    }
    for (auto& s : states_)
      if (s.slices) sliced_.push_back(&s);
  }

  [[nodiscard]] Communicator& comm() { return comm_; }
  [[nodiscard]] const Communicator& comm() const { return comm_; }
  [[nodiscard]] const std::vector<rank_edge>& listed() const { return listed_; }
  /// The channel that a tensor comes or leaves over, or of its parts the first that is not there.
  [[nodiscard]] edge channel_of(int e, std::size_t p) {
    auto& s = at(states_, e);
    const bool under_way = s.slices && p < s.posted && s.slot_of[p] >= 0;
    return under_way ? s.slices->missing(comm_, s.slot_of[p], s.where) : s.where;
  }
  /// Of this rank's tensors that cross it.
  [[nodiscard]] const tensor_shape& shape_of(int e) const { return at(states_, e).shape; }
  [[nodiscard]] bool in_slices(int e) const { return at(states_, e).slices != nullptr; }
  [[nodiscard]] stamp stamp_of(int e, int microbatch, std::int64_t step) const {
    const auto& where = at(listed_, e).where;
    return {step, microbatch, where.what, where.direction, where.stage};
  }
  [[nodiscard]] std::size_t place(int e, int microbatch) const { return as_size(at(at(listed_, e).place, microbatch)); }

  /// Frees all buffers.
  /// Requires: nothing is under way.
  void begin_step(std::int64_t step) {
    step_ = step;
    for (auto& s : states_) {
      s.posted = s.ended = s.oldest = s.copying = 0;
      std::fill(s.slot_of.begin(), s.slot_of.end(), -1);
      std::fill(s.landed.begin(), s.landed.end(), -1);
      std::fill(s.copied.begin(), s.copied.end(), char{0});
      s.leaving.free_all();
      s.buffers.free_all();
      s.landing.free_all();
      s.passing_on.clear();
      if (s.slices) s.slices->begin_step();
      if (s.chunks) s.chunks->begin_step();
    }
  }

  /// Takes in slices and passes them on, and sends chunks that have been copied. Returns whether there was any.
  /// `early(edge)`: whether its receives are posted as soon as there are buffers.
  template <class Early>
  bool advance(Early&& early) {
    bool moved = false;
    for (auto* const s : sliced_) {
      moved = s->slices->advance(comm_) || moved;
      const auto e = as_size(s - states_.data());
      if (!reclaim_passed_on(*s)) continue;
      moved = true;
      if (early(static_cast<int>(e))) post_receives(e);
    }
    if constexpr (in_chunks)
      for (auto& s : states_)
        if (s.chunks) moved = s.chunks->advance(stager_, comm_) || moved;
    return moved;
  }
  /// Whether all slices have been posted that this rank is to gather from its group before they leave it, and all tensors of
  /// groups that it has begun to copy to its host. A rank of which others wait for such must not wait for those others inside a
  /// layer.
  [[nodiscard]] bool all_posted() const {
    if (std::any_of(states_.begin(), states_.end(), [](const state& s) { return s.copying > 0; })) return false;
    return std::all_of(sliced_.begin(), sliced_.end(), [](const state* s) { return !s->sends() || s->slices->all_posted(); });
  }
  /// Whether a tensor is on its way to the host.
  [[nodiscard]] bool is_copied_out(int e, std::size_t p) const { return at(states_, e).copied[p] != 0; }
  /// Whether chunks are, of a tensor whose sending has begun.
  [[nodiscard]] bool sends_chunks() const {
    return std::any_of(states_.begin(), states_.end(), [](const state& s) { return s.chunks && s.chunks->sending(); });
  }
  /// Whether slices that were passed on have not been received: their buffers are not free.
  [[nodiscard]] bool passing_on() const {
    return std::any_of(sliced_.begin(), sliced_.end(), [](const state* s) { return !s->passing_on.empty(); });
  }

  /// Whether n more tensors can leave over an edge; if not, sends that have been received are about to end.
  [[nodiscard]] bool has_room(int e, std::size_t n) {
    auto& s = at(states_, e);
    if (s.leaving.free.size() < n && s.remote) reclaim(s);
    return s.leaving.free.size() >= n;
  }
  /// Keeps a tensor that is to leave.
  /// Requires: has_room(e, 1).
  void leave(int e, std::size_t p, Tensor&& t) {
    auto& s = at(states_, e);
    s.slot_of[p] = s.leaving.take();
    at(s.leaving.tensors, s.slot_of[p]) = std::move(t);
  }
  /// Begins the first phase of a staged transfer.
  /// Requires: the tensor has been left here.
  void begin_copy_out(int e, std::size_t p, std::size_t op) {
    auto& s = at(states_, e);
    if constexpr (copies) {
      s.copied[p] = 1;
      s.copied_by[p] = op;
      s.copying += s.grouped;
      const auto slot = as_size(s.slot_of[p]);
      if constexpr (in_chunks)
        if (s.chunks) return s.chunks->copy_out(stager_, p, s.leaving.tensors[slot], s.staged[slot]);
      stager_.post_copy(s.leaving.tensors[slot], s.staged[slot], s.copies[p]);
      ++copying_;
    } else {
      (void)p, (void)op, (void)s;
    }
  }
  /// Of chunks: the first.
  [[nodiscard]] bool copied_out(int e, std::size_t p) {
    if constexpr (copies) {
      auto& s = at(states_, e);
      if constexpr (in_chunks)
        if (s.chunks) return s.chunks->copied_any(stager_, p);
      return ended(s, p);
    }
    return (void)e, (void)p, true;
  }
  /// Sends a tensor.
  /// Requires: it has been left here, and copied out if it is staged.
  void send(int e, std::size_t p, int microbatch, std::size_t op) {
    auto& s = at(states_, e);
    s.started[p] = {steady_now_s(), op};
    ++s.posted;
    s.copying -= s.grouped && s.copied[p];
    if (s.slices) return s.slices->begin(comm_, s.slot_of[p], p, stamp_of(at(listed_, e).where, microbatch), leaves_from(s, p));
    if constexpr (in_chunks)
      if (s.chunks)
        return s.chunks->send(stager_, comm_, p, stamp_of(at(listed_, e).where, microbatch), leaves_from(s, p), s.copied[p] != 0);
    comm_.post_send(s.channel, stamp_of(at(listed_, e).where, microbatch), leaves_from(s, p), s.operations[p]);
  }

  /// Adds this rank's part of the transfer of a tensor to the lists of its phases.
  void plan(int e, const stamp& what, communication_plan& phases) const {
    const auto& s = at(states_, e);
    if (s.slices) return s.slices->plan(what, phases);
    phases.resize(std::max(phases.size(), s.phase + 1));
    phases[s.phase].push_back({s.channel, s.sends(), what, s.bytes});
  }

  /// Posts receives in the order of the sends, while there are buffers, up to a number of places.
  void post_receives(std::size_t e, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    auto& s = states_[e];
    const auto& listed = listed_[e];
    if (!s.remote || s.buffers.tensors.empty()) return;
    while (s.posted < std::min(most, listed.microbatches.size()) && !s.buffers.free.empty()) {
      const std::size_t p = s.posted++;
      s.slot_of[p] = s.buffers.take();
      if (s.slices)
        s.slices->begin(comm_, s.slot_of[p], p, stamp_of(listed.where, listed.microbatches[p]),
                        at(s.buffers.tensors, s.slot_of[p]));
      else if (s.chunks)
        receive_chunks(s, p, stamp_of(listed.where, listed.microbatches[p]));
      else
        comm_.post_receive(s.channel, stamp_of(listed.where, listed.microbatches[p]), at(s.buffers.tensors, s.slot_of[p]),
                           s.operations[p]);
    }
  }
  /// Whether a transfer has ended, at either end; of slices, at the receiving one.
  [[nodiscard]] bool transferred(int e, std::size_t p) {
    auto& s = at(states_, e);
    if (p >= s.posted) return false;
    if (!s.slices) return is_over(s, p);
    return s.slices->received(s.slot_of[p]);
  }
  /// Begins the last phase of a staged transfer if the tensor has come and there is room. Returns whether it has ended.
  [[nodiscard]] bool copied_in(int e, std::size_t p, std::size_t op, bool early) {
    if constexpr (copies) {
      auto& s = at(states_, e);
      if (s.landed[p] < 0) {
        if (!has_come(e, p) || s.landing.free.empty()) return false;
        s.landed[p] = s.landing.take();
        s.copied_by[p] = op;
        s.copied[p] = 1;
        if (!s.chunks) {
          stager_.post_copy(at(s.buffers.tensors, s.slot_of[p]), at(s.landing.tensors, s.landed[p]), s.copies[p]);
          ++copying_;
        }
      }
      if (!landed_all(s, p)) return false;
      give_back(s, p);
      if (early) post_receives(as_size(e));
      return true;
    } else {
      (void)op, (void)early;
      return transferred(e, p);
    }
  }
  /// Takes the tensor that has come over an edge, in exchange for one of its shape.
  void take(int e, std::size_t p, Tensor& old, bool early) {
    using std::swap;
    auto& s = at(states_, e);
    if (!s.remote) {
      const int slot = std::exchange(s.slot_of[p], -1);
      swap(old, at(s.leaving.tensors, slot));
      s.leaving.free.push_back(slot);
    } else if (s.landed[p] >= 0) {
      swap(old, at(s.landing.tensors, s.landed[p]));
      s.landing.free.push_back(s.landed[p]);
    } else {
      swap(old, at(s.buffers.tensors, s.slot_of[p]));
      give_back(s, p);
      if (early) post_receives(as_size(e));
    }
  }

  /// Whether copies are under way: a wait does not hear of their ends.
  [[nodiscard]] bool copying() const {
    return copying_ > 0 ||
           std::any_of(states_.begin(), states_.end(), [](const state& s) { return s.chunks && s.chunks->copying(); });
  }
  [[nodiscard]] bool all_sent() {
    for (auto& s : states_)
      if (s.sends() && (reclaim(s), s.ended < s.posted)) return false;
    for (auto* const s : sliced_)
      if (reclaim_passed_on(*s), !s->passing_on.empty()) return false;
    return true;
  }
  struct unsent {
    edge where;
    action what;
  };
  /// The first send that has not ended, as the actions of a program have it.
  [[nodiscard]] std::optional<unsent> first_unsent(const rank_program& program) {
    for (auto& s : states_) {
      const auto e = static_cast<int>(&s - states_.data());
      if (s.sends() && (reclaim(s), s.ended < s.posted)) {
        const auto p = s.slices ? as_size(std::find_if(s.slot_of.begin(), s.slot_of.end(), [](int slot) { return slot >= 0; }) -
                                          s.slot_of.begin())
                                : s.ended;
        return unsent{channel_of(e, p), program.ops[s.started[p].second].what};
      }
      if (s.passing_on.empty()) continue;
      const auto [p, slot] = s.passing_on.front();
      return unsent{s.slices->missing(comm_, slot, s.where), arrival_of(as_size(e), p)};
    }
    return std::nullopt;
  }

  /// Appends this rank's sends, arrivals and copies; ranks are those of the schedule.
  /// Requires: all have ended, at least on the host.
  void record(const rank_program& program, std::vector<timed_action>& out) {
    constexpr bool reads = requires { comm_.read_times(); };
    if constexpr (reads) comm_.read_times();
    for (std::size_t e = 0; e < states_.size(); ++e) {
      auto& s = states_[e];
      const auto& where = listed_[e].where;
      if (!s.remote) continue;
      const int own = s.sends() ? where.from : where.to, peer = s.sends() ? where.to : where.from;
      for (std::size_t p = 0; p < s.posted; ++p) {
        double start_s = s.sends() ? s.started[p].first : 0;
        if constexpr (reads)
          if (!s.slices && !s.chunks) {
            (void)comm_.poll(s.operations[p]);  // its times are others now
            if (s.operations[p].start_s > 0) start_s = s.operations[p].start_s;
          }
        const double end_s = s.slices ? s.ended_s[p] : s.chunks ? s.chunks->end_s(p) : s.operations[p].end_s;
        if (s.sends())
          out.push_back({program.ops[s.started[p].second].what, own, peer, start_s, end_s});
        else
          out.push_back({arrival_of(e, p), own, peer, end_s, end_s});
        if (!s.copied.empty() && s.copied[p])
          out.push_back({program.ops[s.copied_by[p]].what, own, peer, s.chunks ? s.chunks->copy_start_s(p) : s.copies[p].start_s,
                         s.chunks ? s.chunks->copy_end_s(p) : s.copies[p].end_s});
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
      if (s.slices) {
        const auto slots = std::max(s.leaving.tensors.size(), s.buffers.tensors.size());
        (s.sends() ? u.sending : u.receiving) += slots * s.slices->buffered() * sizeof(typename tensor_traits<Tensor>::element);
      }
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
    edge where;  ///< between ranks of the communicator; of slices, between this one and the other group's first
    tensor_shape shape;
    bool remote = false;
    bool grouped = false;  ///< one end at least has several devices
    int channel = -1;      ///< of whole tensors
    std::size_t bytes = 0, phase = 0;
    std::unique_ptr<slice_transfer<Tensor, Communicator, Queue>> slices;
    std::unique_ptr<chunks_type> chunks;                  ///< of whole tensors by way of the hosts
    std::vector<double> ended_s;                          ///< by place, of slices
    std::vector<std::pair<std::size_t, int>> passing_on;  ///< place and buffer of tensors that have been taken
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
    std::size_t ended = 0;    ///< sends
    std::size_t copying = 0;  ///< between groups: tensors on their way to the host, or there and not posted
    std::size_t oldest = 0;   ///< of slices: all sends before it have ended
    [[nodiscard]] bool sends() const { return remote && !started.empty(); }
  };

  [[nodiscard]] stamp stamp_of(const edge& e, int microbatch) const { return {step_, microbatch, e.what, e.direction, e.stage}; }

  void fill(std::vector<Tensor>& list, int count, const tensor_shape& shape) {
    for (int k = 0; k < count; ++k) list.push_back(make_tensor<Tensor>(shape, queue_));
  }
  [[nodiscard]] Tensor make_on_host(const tensor_shape& shape) {
    if constexpr (requires { stager_.make(shape); })
      return stager_.make(shape);
    else
      return make_tensor<Tensor>(shape, queue_);
  }
  void fill_on_host(std::vector<Tensor>& list, int count, const tensor_shape& shape) {
    for (int k = 0; k < count; ++k) list.push_back(make_on_host(shape));
  }

  /// The other device of the only message that a device has in a plan, if that is the whole tensor of both; -1: there is none.
  static int partner(const transfer_plan& plan, const layout& from, const layout& to, int me) {
    int found = -1;
    const auto device_slice = [&](int device) {
      return device < plan.sources ? slice_of(from, device) : slice_of(to, device - plan.sources);
    };
    for (const auto& m : plan.messages) {
      if (m.from != me && m.to != me) continue;
      const int other = m.from == me ? m.to : m.from;
      const auto part = plan.slice_of(m);
      const auto is_part = [&](const slice& s) { return std::equal(s.begin(), s.end(), part.begin(), part.end()); };
      if (found >= 0 || !plan.crosses(m) || !is_part(device_slice(me)) || !is_part(device_slice(other))) return -1;
      const bool alone = std::count_if(plan.messages.begin(), plan.messages.end(),
                                       [&](const slice_message& n) { return n.from == other || n.to == other; }) == 1;
      if (!alone) return -1;
      found = other;
    }
    return found;
  }

  static bool has_message_of(std::span<const slice_message> list, int device) {
    return std::any_of(list.begin(), list.end(), [&](const auto& m) { return m.from == device || m.to == device; });
  }

  void make(const rank_edge& e, const boundary_transfer& boundary, const group_member& me) {
    auto& s = states_.emplace_back();
    const bool gradient = e.where.what == payload::gradient;
    const auto& plan = gradient ? boundary.gradient : boundary.activation;
    const auto& from = gradient ? boundary.gradient_to() : boundary.from;
    const auto& to = gradient ? boundary.gradient_from() : boundary.to;
    const std::size_t all = e.microbatches.size();
    const bool sending = e.where.from == me.group, staged = copies && e.staged > 0;
    const int sources = from.device_count(), device = sending ? me.index : sources + me.index;
    const auto rank_of = [&](int d) {
      return d < sources ? at(me.first, e.where.from) + d : at(me.first, e.where.to) + d - sources;
    };
    s.remote = e.where.from != e.where.to;
    s.grouped = from.device_count() > 1 || to.device_count() > 1;
    const int other = s.remote ? partner(plan, from, to, device) : -1;
    s.where = e.where;
    s.where.from = sending ? comm_.rank() : rank_of(other < 0 ? 0 : other);
    s.where.to = sending ? rank_of(other < 0 ? sources : other) : comm_.rank();
    const auto own = sending ? slice_of(from, me.index) : slice_of(to, me.index);
    const auto& shape = s.shape = shape_of_slice(own, boundary.merged);
    if (staged && e.staged < all)
      throw input_error(to_text(s.where) + ": some microbatches go by way of the host, others do not");
    s.slot_of.assign(all, -1);
    s.landed.assign(all, -1);
    s.copied.assign(all, 0);
    if (sending) fill(s.leaving.tensors, e.leaving, shape);
    if (sending && s.remote) s.started.resize(all);
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
    if (!s.remote) return;
    if (other >= 0) {
      s.channel = comm_.open(s.where);
      if constexpr (partly_ordered<Communicator>)
        if (e.staged > 0 && comm_.orders(s.channel)) {
          const auto why = "the " + to_text(s.where) + " goes by way of the host, but its route is between devices";
          comm_.abort(why);
          throw input_error(why);
        }
      s.bytes = as_size(element_count(own)) * sizeof(typename tensor_traits<Tensor>::element);
      while (!has_message_of(plan.phase(s.phase), device)) ++s.phase;
      s.operations = std::make_unique<operation[]>(all);
      const std::size_t elements = as_size(element_count(own)),
                        chunk = chunk_bytes_ / sizeof(typename tensor_traits<Tensor>::element);
      if (in_chunks && e.staged > 0 && chunk > 0 && elements >= 2 * chunk)
        s.chunks = std::make_unique<chunks_type>(s.channel, all, elements, chunk);
      return;
    }
    s.slices = std::make_unique<slice_transfer<Tensor, Communicator, Queue>>(
        comm_, plan,
        slice_place{
            .me = device, .where = e.where, .own = own, .merged = boundary.merged, .slots = sending ? e.leaving : e.buffers},
        rank_of, [&](const tensor_shape& of) { return staged ? make_on_host(of) : make_tensor<Tensor>(of, queue_); }, queue_);
    s.ended_s.assign(all, 0);
    s.passing_on.reserve(s.buffers.tensors.size());
  }

  /// What is sent: the tensor, or its copy on the host.
  [[nodiscard]] Tensor& leaves_from(state& s, std::size_t p) {
    return s.copied[p] ? at(s.staged, s.slot_of[p]) : at(s.leaving.tensors, s.slot_of[p]);
  }
  /// A tensor is no longer where it was received. Its buffers are free when this rank has passed on what it has to.
  void give_back(state& s, std::size_t p) {
    const int slot = std::exchange(s.slot_of[p], -1);
    if (!s.slices) return s.buffers.free.push_back(slot);
    s.ended_s[p] = s.slices->end_s(slot);
    s.passing_on.emplace_back(p, slot);
    (void)reclaim_passed_on(s);
  }

  [[nodiscard]] action arrival_of(std::size_t e, std::size_t p) const {
    const auto& where = listed_[e].where;
    const bool gradient = where.what == payload::gradient;
    return {.kind = gradient ? action_kind::receive_gradient : action_kind::receive_activation,
            .direction = static_cast<std::int16_t>(where.direction),
            .stage = where.stage + (gradient ? -1 : 1),
            .microbatch = listed_[e].microbatches[p]};
  }

  /// Ends sends: whole tensors in their order, slices in any.
  void reclaim(state& s) {
    if (s.slices) {
      for (std::size_t p = s.oldest; p < s.posted; ++p) {
        auto& slot = s.slot_of[p];
        if (slot >= 0 && s.slices->ended(comm_, slot)) {
          s.ended_s[p] = s.slices->end_s(slot);
          s.leaving.free.push_back(std::exchange(slot, -1));
          ++s.ended;
        }
        if (slot < 0 && p == s.oldest) ++s.oldest;
      }
      return;
    }
    for (; s.ended < s.posted && is_over(s, s.ended); ++s.ended) s.leaving.free.push_back(std::exchange(s.slot_of[s.ended], -1));
  }
  /// Frees the buffers of tensors that were taken, once all has left that this rank passes on of them. Returns whether any are.
  bool reclaim_passed_on(state& s) {
    return std::erase_if(s.passing_on, [&](const auto& one) {
             if (!s.slices->ended(comm_, one.second)) return false;
             s.buffers.free.push_back(one.second);
             return true;
           }) > 0;
  }

  /// Whether a whole tensor has been received.
  [[nodiscard]] bool is_over(state& s, std::size_t p) {
    return s.chunks ? s.chunks->ended(comm_, p) : comm_.poll(s.operations[p]);
  }
  /// Whether there is something to copy to the device.
  [[nodiscard]] bool has_come(int e, std::size_t p) {
    auto& s = at(states_, e);
    return s.chunks ? p < s.posted && s.chunks->come_any(comm_, p) : transferred(e, p);
  }
  void receive_chunks(state& s, std::size_t p, const stamp& what) {
    if constexpr (in_chunks) s.chunks->receive(comm_, p, what, at(s.buffers.tensors, s.slot_of[p]));
  }
  [[nodiscard]] bool landed_all(state& s, std::size_t p) {
    if constexpr (in_chunks)
      if (s.chunks)
        return s.chunks->copy_in(stager_, comm_, p, at(s.buffers.tensors, s.slot_of[p]), at(s.landing.tensors, s.landed[p]));
    return ended(s, p);
  }
  [[nodiscard]] bool ended(state& s, std::size_t p) {
    if (!stager_.poll(s.copies[p])) return false;
    --copying_;
    return true;
  }

  [[no_unique_address]] Queue queue_;
  Communicator comm_;
  std::vector<rank_edge> listed_;
  std::vector<state> states_;
  std::vector<state*> sliced_;  ///< those with slices
  std::size_t chunk_bytes_;
  std::int64_t step_ = 0;
  std::size_t copying_ = 0;
  Stager stager_;  ///< last, so that it ends before the tensors that it copies
};

}  // namespace hetsched::detail
