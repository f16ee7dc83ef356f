// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/local_communicator_test.cpp.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/device/steady_time.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// A cuda_api whose memory and events other processes of the machine can use.
///   memory_handle, event_handle           types of bytes that name them in another process
///   allocate_shared(void*&, bytes), free_shared(void*)
///                                         of the current device, and of no pool [cudaMalloc, cudaFree]
///   export_memory(void*, memory_handle&)  of that [cudaIpcGetMemHandle]
///   open_memory(void*&, memory_handle), close_memory(void*)
///                                         in another process, for the current device; closed before it is freed
///                                         [cudaIpcOpenMemHandle, cudaIpcCloseMemHandle]
///   create_shared_event(event&)           [cudaEventCreateWithFlags, cudaEventInterprocess]
///   export_event(event, event_handle&)    of that [cudaIpcGetEventHandle]
///   open_event(event&, event_handle)      in another process; destroyed there, before it is here [cudaIpcOpenEventHandle]
/// Not checked: any of that.
template <class A>
concept cuda_ipc_api = cuda_api<A> &&
    requires(const A& a, void* memory, void*& made, std::size_t bytes, typename A::event e, typename A::event& new_event,
             typename A::memory_handle m, typename A::memory_handle& new_m, typename A::event_handle h,
             typename A::event_handle& new_h) {
  requires std::is_trivially_copyable_v<typename A::memory_handle>;
  requires std::is_trivially_copyable_v<typename A::event_handle>;
  { a.allocate_shared(made, bytes) } -> std::same_as<int>;
  { a.free_shared(memory) } -> std::same_as<int>;
  { a.export_memory(memory, new_m) } -> std::same_as<int>;
  { a.open_memory(made, m) } -> std::same_as<int>;
  { a.close_memory(memory) } -> std::same_as<int>;
  { a.create_shared_event(new_event) } -> std::same_as<int>;
  { a.export_event(e, new_h) } -> std::same_as<int>;
  { a.open_event(new_event, h) } -> std::same_as<int>;
};

namespace detail {

/// What a slot is waited for.
enum class cuda_ipc_stage : std::uint8_t { idle, part, answer };

}  // namespace detail

struct cuda_ipc_options {
  std::size_t slot_bytes = std::size_t{4} << 20;  ///< what travels at a time: two of them are kept for each edge, by its sender
  double deadline_s = 60;                         ///< of close()
};

/// Connects ranks of one machine, with a process and a GPU each, by copies from GPU to GPU (CUDA IPC): the sender copies a part
/// of a tensor to memory that the receiver has opened, the receiver copies it from there, and both go on by events of the
/// other's. `Inner` connects the hosts' sides, such as Gloo, and carries some hundred bytes for each part, and what ranks agree
/// over. A transfer has ended for its sender when the receiver has enqueued its last copy. Tensors of other sizes or shapes than
/// are received abort. A handle: copies are the same end.
/// Tensors are made of a cuda_buffer of the rank's device: see cuda_tensor_traits.
/// Source: CUDA C++ Programming Guide, Interprocess Communication.
template <pipeline_tensor Tensor, cuda_ipc_api Api, class Inner>
requires byte_plane<Inner> && control_plane<Inner>
class cuda_ipc_communicator {
  using traits = tensor_traits<Tensor>;
  using queue = cuda_queue<Api>;
  using event = typename Api::event;
  static constexpr std::size_t slots = 2;
  /// Goes with each part, and comes back when it has been taken.
  struct message {
    std::uint64_t slot_bytes = 0;
    std::uint64_t bytes = 0, shape = 0;  ///< of the tensor, and a hash of its extents
    typename Api::memory_handle memory{};
    std::array<typename Api::event_handle, slots> events{};
  };
  struct channel;

 public:
  static constexpr bool on_devices = true;  ///< see router

  class operation {
   public:
    double end_s = 0;

   private:
    friend class cuda_ipc_communicator;
    struct flight {
      detail::cuda_ipc_stage at = detail::cuda_ipc_stage::idle;
      typename Inner::operation part, answer;
      message out, in;
    };
    channel* on_ = nullptr;
    Tensor* tensor_ = nullptr;
    stamp what_;
    std::uint64_t shape_ = 0;
    std::size_t begun_ = 0;   ///< bytes
    bool has_begun_ = false;  ///< also of an empty tensor, which is one part
    bool ended_ = true;
    std::array<flight, slots> flights_;
  };

  /// `inner`: of the same ranks. `device`: the rank's.
  /// Throws: input_error for slots of no bytes.
  cuda_ipc_communicator(cuda_devices<Api>& devices, int device, Inner inner, cuda_ipc_options options = {})
      : own_(new state{&devices, device, std::move(inner), options}) {
    if (options.slot_bytes == 0) throw input_error("cuda_ipc_options::slot_bytes is 0, expected at least 1");
  }

  [[nodiscard]] int rank() const { return own_->inner.rank(); }
  [[nodiscard]] int ranks() const { return own_->inner.ranks(); }
  /// Throws: cuda_error.
  [[nodiscard]] int open(const edge& e) {
    const std::lock_guard lock(own_->guard);
    auto& all = own_->channels;
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c->where == e; });
    if (found != all.end()) return static_cast<int>(found - all.begin());
    auto made = std::make_unique<channel>();
    auto& c = *made;
    c.where = e;
    c.sends = e.from == rank();
    c.parts = own_->inner.open(e);
    edge back = e;
    std::swap(back.from, back.to);
    back.part = -1 - e.part;
    c.answers = own_->inner.open(back);
    c.lane = own_->devices->lend_queue(own_->device, "the " + to_text(e));
    const auto& q = *c.lane;
    const auto current = q.make_current();
    c.mine.slot_bytes = own_->options.slot_bytes;
    for (std::size_t s = 0; s < slots; ++s) {
      q.own()->require(q.api().create_shared_event(c.own[s]), "cudaEventCreateWithFlags");
      q.own()->require(q.api().export_event(c.own[s], c.mine.events[s]), "cudaIpcGetEventHandle");
    }
    if (c.sends) {
      q.own()->require(q.api().allocate_shared(c.memory, slots * own_->options.slot_bytes), "cudaMalloc");
      q.own()->require(q.api().export_memory(c.memory, c.mine.memory), "cudaIpcGetMemHandle");
    }
    all.push_back(std::move(made));
    return static_cast<int>(all.size()) - 1;
  }
  void post_send(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, t, op); }
  void post_receive(int number, const stamp& s, Tensor& t, operation& op) { post(number, s, t, op); }
  /// Throws: cuda_error.
  [[nodiscard]] bool poll(operation& op) {
    const std::lock_guard lock(own_->guard);
    if (!op.ended_) advance(*op.on_);
    return op.ended_;
  }
  /// Answers come while a rank sends, and go while it receives: it is woken by both, and what it has posted goes on, whichever of
  /// it is waited for; also where another plane of a router has the same `Inner`, and has been told of what came for this one.
  /// Throws: as poll.
  [[nodiscard]] wait_result wait(deadline_time until, bool) {
    const auto result = own_->inner.wait(until, true);
    if (result == wait_result::aborted) {
      forget_posted();
      return result;
    }
    const std::lock_guard lock(own_->guard);
    bool moved = false;
    for (auto& c : own_->channels) {
      const auto parts = c->count, posted = static_cast<std::uint64_t>(c->posted.size());
      advance(*c);
      moved = moved || c->count != parts || c->posted.size() != posted;
    }
    return moved ? wait_result::progress : result;
  }
  void on_wake(std::function<void()> ring) requires waking_plane<Inner> { own_->inner.on_wake(std::move(ring)); }
  void abort(const std::string& reason) {
    own_->inner.abort(reason);
    forget_posted();
  }
  [[nodiscard]] std::string failure() const { return own_->inner.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    const auto result = own_->inner.gather(mine, all, until);
    if (result == wait_result::aborted) forget_posted();
    return result;
  }
  /// Lets go of the others' memory, and then of its own. All ranks call it, behind their last transfer, or none does: what others
  /// may still have open stays until the process ends, as it also does where a rank does not come in time.
  /// Throws: cuda_error.
  void close() {
    {
      const std::lock_guard lock(own_->guard);
      for (auto& c : own_->channels) {
        const bool was_open = std::exchange(c->is_open, false);
        const auto& q = *c->lane;
        const auto current = q.make_current();
        for (std::size_t s = 0; s < slots; ++s)
          if (was_open && c->taken[s]) q.own()->require(q.api().wait(q.stream(), c->theirs[s]), "cudaStreamWaitEvent");
        q.finish();
        if (!was_open) continue;
        for (auto& e : c->theirs) q.own()->require(q.api().destroy_event(e), "cudaEventDestroy");
        if (!c->sends) q.own()->require(q.api().close_memory(c->memory), "cudaIpcCloseMemHandle");
      }
    }
    std::vector<std::vector<double>> all;
    if (gather({}, all, deadline_in(own_->options.deadline_s)) != wait_result::progress) return;
    const std::lock_guard lock(own_->guard);
    for (auto& c : std::exchange(own_->channels, {})) {
      const auto& q = *c->lane;
      const auto current = q.make_current();
      for (auto& e : c->own) q.own()->require(q.api().destroy_event(e), "cudaEventDestroy");
      if (c->sends) q.own()->require(q.api().free_shared(c->memory), "cudaFree");
    }
  }

 private:
  struct channel {
    edge where;
    bool sends = false;
    int parts = -1, answers = -1;  ///< channels of the hosts
    std::shared_ptr<const queue> lane;
    message mine;
    void* memory = nullptr;  ///< the slots, of the sender
    std::array<event, slots> own{}, theirs{};
    bool is_open = false;             ///< what the other end has exported
    std::array<bool, slots> taken{};  ///< what was in the slot, behind an event of theirs
    std::uint64_t count = 0;          ///< parts that have begun here
    std::deque<operation*> posted = {};
  };
  struct state {
    cuda_devices<Api>* devices;
    int device;
    Inner inner;
    cuda_ipc_options options;
    std::mutex guard{};  ///< of all below: one thread may wait while another posts
    std::vector<std::unique_ptr<channel>> channels{};
    bool is_aborted = false;  ///< operations are their owners' again
  };

  static std::span<std::byte> bytes_of(message& m) { return std::as_writable_bytes(std::span(&m, 1)); }

  void post(int number, const stamp& s, Tensor& t, operation& op) {
    const std::lock_guard lock(own_->guard);
    auto& c = *own_->channels[as_size(number)];
    op.on_ = &c;
    op.tensor_ = &t;
    op.what_ = s;
    op.shape_ = detail::shape_hash(traits::shape(t));
    op.begun_ = 0;
    op.has_begun_ = false;
    op.ended_ = false;
    if (own_->is_aborted) return;
    c.posted.push_back(&op);
    advance(c);
  }
  void forget_posted() {
    const std::lock_guard lock(own_->guard);
    drop_posted();
  }
  /// With the guard held.
  void drop_posted() {
    own_->is_aborted = true;
    for (auto& c : own_->channels) c->posted.clear();
  }
  /// Stamps are compared by `Inner`.
  [[nodiscard]] static detail::sent_tensor sent(const stamp& what, std::uint64_t bytes, std::uint64_t shape) {
    return {.stamp = what, .bytes = bytes, .elements = bytes / sizeof(typename traits::element), .shape = shape};
  }
  [[nodiscard]] static bool has_all_begun(const operation& op) {
    return op.has_begun_ && op.begun_ == traits::buffer(std::as_const(*op.tensor_)).bytes();
  }
  void advance(channel& c) {
    while (!own_->is_aborted && !c.posted.empty()) {
      auto& op = *c.posted.front();
      c.sends ? send(c, op) : receive(c, op);
      const bool is_over = has_all_begun(op) && std::all_of(op.flights_.begin(), op.flights_.end(),
                                                            [](const auto& f) { return f.at == detail::cuda_ipc_stage::idle; });
      if (!is_over) return;
      op.end_s = steady_now_s();
      c.posted.pop_front();
      op.ended_ = true;
    }
  }
  /// With the other end's first message.
  void open_theirs(channel& c, const message& m) {
    if (std::exchange(c.is_open, true)) return;
    const auto& q = *c.lane;
    for (std::size_t s = 0; s < slots; ++s)
      q.own()->require(q.api().open_event(c.theirs[s], m.events[s]), "cudaIpcOpenEventHandle");
    if (!c.sends) q.own()->require(q.api().open_memory(c.memory, m.memory), "cudaIpcOpenMemHandle");
  }
  void send(channel& c, operation& op) {
    using enum detail::cuda_ipc_stage;
    auto& inner = own_->inner;
    const auto& b = traits::buffer(std::as_const(*op.tensor_));
    const auto& q = *c.lane;
    const auto current = q.make_current();
    const auto come_back = [&] {
      for (std::size_t s = 0; s < slots; ++s) {
        auto& f = op.flights_[s];
        if (f.at != part || !inner.poll(f.part) || !inner.poll(f.answer)) continue;
        open_theirs(c, f.in);
        c.taken[s] = true;
        f.at = idle;
      }
    };
    for (come_back(); !has_all_begun(op); come_back()) {
      const auto s = static_cast<std::size_t>(c.count % slots);
      auto& f = op.flights_[s];
      if (f.at != idle) return;
      const auto bytes = std::min(c.mine.slot_bytes, static_cast<std::uint64_t>(b.bytes() - op.begun_));
      if (op.begun_ == 0) b.begin_read(q);
      if (c.taken[s]) q.own()->require(q.api().wait(q.stream(), c.theirs[s]), "cudaStreamWaitEvent");
      if (bytes > 0)
        q.own()->require(q.api().copy(static_cast<std::byte*>(c.memory) + s * c.mine.slot_bytes,
                                      static_cast<const std::byte*>(b.data()) + op.begun_, bytes, q.stream()),
                         "cudaMemcpyAsync");
      q.own()->require(q.api().record(c.own[s], q.stream()), "cudaEventRecord");
      b.end_read(q, q.record());
      f.out = c.mine;
      f.out.bytes = b.bytes();
      f.out.shape = op.shape_;
      f.at = part;
      ++c.count;
      op.begun_ += bytes;
      op.has_begun_ = true;
      inner.post_receive_bytes(c.answers, op.what_, bytes_of(f.in), f.answer);
      inner.post_send_bytes(c.parts, op.what_, bytes_of(f.out), f.part);
    }
  }
  void receive(channel& c, operation& op) {
    using enum detail::cuda_ipc_stage;
    auto& inner = own_->inner;
    auto& b = traits::buffer(*op.tensor_);
    const auto& q = *c.lane;
    const auto current = q.make_current();
    const auto go_out = [&] {
      for (auto& f : op.flights_)
        if (f.at == answer && inner.poll(f.answer)) f.at = idle;
    };
    for (go_out(); !has_all_begun(op); go_out()) {
      const auto s = static_cast<std::size_t>(c.count % slots);
      auto& f = op.flights_[s];
      if (f.at == idle) {
        f.at = part;
        inner.post_receive_bytes(c.parts, op.what_, bytes_of(f.in), f.part);
      }
      if (f.at != part || !inner.poll(f.part)) return;
      if (const auto text = difference(c.where, sent(op.what_, f.in.bytes, f.in.shape), sent(op.what_, b.bytes(), op.shape_));
          !text.empty()) {
        inner.abort(text);
        return drop_posted();
      }
      open_theirs(c, f.in);
      const auto bytes = std::min(f.in.slot_bytes, static_cast<std::uint64_t>(b.bytes() - op.begun_));
      if (op.begun_ == 0) b.begin_write(q);
      q.own()->require(q.api().wait(q.stream(), c.theirs[s]), "cudaStreamWaitEvent");
      if (bytes > 0)
        q.own()->require(q.api().copy(static_cast<std::byte*>(b.data()) + op.begun_,
                                      static_cast<const std::byte*>(c.memory) + s * f.in.slot_bytes, bytes, q.stream()),
                         "cudaMemcpyAsync");
      q.own()->require(q.api().record(c.own[s], q.stream()), "cudaEventRecord");
      b.end_write(q, q.record());
      f.out = c.mine;
      f.at = answer;
      ++c.count;
      op.begun_ += bytes;
      op.has_begun_ = true;
      inner.post_send_bytes(c.answers, op.what_, bytes_of(f.out), f.answer);
    }
  }

  std::shared_ptr<state> own_;
};

}  // namespace hetsched
