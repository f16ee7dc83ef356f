// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/machine_test.cpp.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

#include <hetsched/cuda_check/detail/device_memory.hpp>
#include <hetsched/cuda_check/detail/vector_clock.hpp>

namespace hetsched::cuda_check {

/// How a machine behaves.
struct habits {
  std::uint64_t seed = 1;
  int devices = 2;
  int most_turns_late = 4;  ///< work is passed over up to so many times
  bool lazy = false;        ///< works only when a thread asks for results or has to wait
  bool in_order = false;    ///< the streams of a device make no progress by themselves: it works in the order of the calls
  std::size_t launch_queue = 1021;  ///< kernels, copies, memsets and graphs of a stream; then calls that add one wait
  double work_s = 0;                ///< how long a kernel, copy or memset takes a stream, in real time
  double copy_s_per_byte = 0;       ///< of a copy on top of that, times a factor from 0.75 to 1.25 that is drawn
  int stops_after = -1;             ///< all devices stand still behind so many jobs, until resume(); -1: never
  bool reach = true;                ///< whether devices reach each other's memory
  int no_gpu = 0;                   ///< the code of all calls, if not 0
  // Mistakes of the program, planted here.
  int deaf_stream = -1;  ///< the stream of this number waits for nothing
  bool hasty = false;    ///< whoever asks for an event is told that it has come
};

/// GPUs that are a thread, stricter than real ones: work is done late, in any order that streams and events allow; whatever reads
/// or writes memory out of their order is reported, whether it does harm or not, and so is memory used when it is not there, and
/// work that is enqueued while another device than the stream's is current.
/// What a job draws depends on the seed, its stream's number on its device and its own on the stream, not on when threads call.
class machine {
 public:
  struct graph_state;
  struct stream_state {
    int device = 0;
    std::size_t actor = 0;
    int number = 0;  ///< on its device
    detail::vector_clock now = {};
    std::uint64_t issued = 0, done = 0;  ///< jobs
    std::size_t queued = 0;              ///< of these, what takes a place in the launch queue
    bool alive = true;
    std::shared_ptr<graph_state> captured = {};  ///< what is captured now
    std::vector<std::size_t> tips = {};          ///< jobs of it that the next one begins behind
  };
  struct event_state {
    int device = 0;
    detail::vector_clock at = {};
    detail::vector_clock known = {};     ///< to the thread that recorded it last, which others come to know by asking for it
    std::uint64_t issued = 0, done = 0;  ///< records
    bool alive = true;
    bool timed = false;
    int shared_by = -1;                          ///< the process that may export it; -1: none
    event_state* opened = nullptr;               ///< what it is, where another process has opened it
    double done_s = 0;                           ///< of the last one
    std::shared_ptr<graph_state> captured = {};  ///< that the last record is in
    std::vector<std::size_t> tips = {};
  };
  struct pool_state {
    int device = 0;
    bool alive = true;
  };
  /// Names memory, or an event, in another process.
  struct memory_handle {
    void* memory = nullptr;
    std::uint64_t number = 0;  ///< of the allocation
  };
  struct event_handle {
    event_state* event = nullptr;
  };
  /// A read or write of a kernel.
  struct range {
    const void* memory = nullptr;
    std::size_t bytes = 0;
    bool writes = false;
  };
  /// Memory as a kernel sees it: what it has said that it uses; anything else is reported.
  class view {
   public:
    /// `held`: whether the machine's lock is.
    view(machine& of, std::span<const range> ranges, bool held) : machine_(of), ranges_(ranges), held_(held) {}
    template <class T>
    [[nodiscard]] const T* read(const T* p) const {
      return reinterpret_cast<const T*>(find(p, false));
    }
    template <class T>
    [[nodiscard]] T* write(T* p) const {
      return reinterpret_cast<T*>(find(p, true));
    }

   private:
    [[nodiscard]] unsigned char* find(const void* p, bool writes) const {
      const auto* const at = static_cast<const unsigned char*>(p);
      const bool told = std::any_of(ranges_.begin(), ranges_.end(), [&](const range& r) {
        const auto* const first = static_cast<const unsigned char*>(r.memory);
        return first <= at && at < first + r.bytes && r.writes >= writes;
      });
      std::unique_lock lock(machine_.guard_, std::defer_lock);
      if (!held_) lock.lock();
      if (!told) machine_.report(std::string("a kernel ") + (writes ? "writes" : "reads") + " what it has not said that it does");
      return machine_.backing(p);
    }
    cuda_check::machine& machine_;
    std::span<const range> ranges_;
    bool held_;
  };
  using work = std::function<void(const view&)>;

  explicit machine(habits habits = {}) : habits_(habits) {
    for (int d = 0; d < habits_.devices; ++d) devices_.push_back(std::make_unique<device>());
    worker_ = std::thread([this] { serve(); });
  }
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;
  ~machine() {
    {
      const std::lock_guard lock(guard_);
      ends_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  // What api passes on; see cuda_api.
  int device_count(int& count) {
    if (const int code = begins("cudaGetDeviceCount"); code != 0) return code;
    count = habits_.devices;
    return 0;
  }
  int set_device(int d) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaSetDevice"); code != 0) return code;
    here().device = d;
    if (d < habits_.devices) devices_[index(d)]->has_context = true;
    return d < habits_.devices ? 0 : 101;
  }
  int get_device(int& d) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaGetDevice"); code != 0) return code;
    d = here().device;
    return 0;
  }
  int has_context(int d, bool& has) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cuDevicePrimaryCtxGetState"); code != 0) return code;
    has = devices_[index(d)]->has_context;
    return 0;
  }
  int create_stream(stream_state*& s, bool urgent = false) {
    const std::lock_guard lock(guard_);
    if (const int code = begin(urgent ? "cudaStreamCreateWithPriority" : "cudaStreamCreateWithFlags"); code != 0) return code;
    const int d = here().device;
    devices_[index(d)]->has_context = true;
    s = &streams_.emplace_back(stream_state{.device = d, .actor = actors_++, .number = devices_[index(d)]->streams++});
    return 0;
  }
  int destroy_stream(stream_state* s) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaStreamDestroy"); code != 0) return code;
    if (s->done < s->issued) report("a stream is destroyed that has work to do");
    return destroy(*s, "a stream");
  }
  int create_event(event_state*& e) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaEventCreateWithFlags"); code != 0) return code;
    devices_[index(here().device)]->has_context = true;
    e = &events_.emplace_back(event_state{.device = here().device});
    return 0;
  }
  int create_timed_event(event_state*& e) {
    const int code = create_event(e);
    if (code == 0) e->timed = true;
    return code;
  }
  int elapsed(double& seconds, const event_state* from, const event_state* to) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaEventElapsedTime"); code != 0) return code;
    if (!from->alive || !to->alive) report("the time of an event is asked for that is destroyed");
    if (!from->timed || !to->timed || from->issued == 0 || to->issued == 0) return invalid_handle;
    if (from->done < from->issued || to->done < to->issued) return detail::cuda_not_ready;
    seconds = to->done_s - from->done_s;
    return 0;
  }
  void begin_range(const std::string& name) {
    const std::lock_guard lock(guard_);
    here().ranges.push_back(name);
  }
  void end_range() {
    const std::lock_guard lock(guard_);
    auto& open = here().ranges;
    if (open.empty()) return report("a range ends that has not begun");
    ++calls_["range " + open.back()];
    open.pop_back();
  }
  int destroy_event(event_state* e) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaEventDestroy"); code != 0) return code;
    return destroy(*e, "an event");
  }
  int create_pool(int d, pool_state*& p) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaMemPoolCreate"); code != 0) return code;
    p = &pools_.emplace_back(pool_state{.device = d});
    return 0;
  }
  int destroy_pool(pool_state* p) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaMemPoolDestroy"); code != 0) return code;
    if (devices_[index(p->device)]->memory.alive() > 0) report("a pool is destroyed with memory in use");
    return destroy(*p, "a pool");
  }
  int share_pool(pool_state* p, int d, int peer, bool& shared) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaMemPoolSetAccess"); code != 0) return code;
    if (p->device != d || d == peer) report("a pool is shared that is not the device's, or with the device itself");
    shared = habits_.reach;
    return 0;
  }

  int record(event_state* e, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaEventRecord"); code != 0) return code;
    if (e = usable(e, "recorded"); !e) return invalid_handle;
    if (e->device != s->device) return invalid_handle;
    if (is_spoilt(s)) return capture_invalidated;
    e->captured = s->captured;
    e->tips = s->tips;
    if (s->captured) return 0;
    const auto number = ++e->issued;
    enqueue({.on = s, .after = [e, number] { e->done = std::max(e->done, number), e->done_s = steady_now_s(); }}, "an event");
    e->at = s->now;
    e->known = here().now;
    return 0;
  }
  int wait(stream_state* s, event_state* e) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaStreamWaitEvent"); code != 0) return code;
    if (&streams_[static_cast<std::size_t>(std::max(habits_.deaf_stream, 0))] == s && habits_.deaf_stream >= 0)
      return ++calls_["dropped"], 0;
    if (e = usable(e, "waited for"); !e) return invalid_handle;
    if (is_spoilt(s)) return capture_invalidated;
    if (e->captured) return join(*s, *e);
    if (s->captured) {
      refuse_capture(*s, "a wait for what is not captured");
      return capture_isolation;
    }
    s->now.join(e->at);
    enqueue({.on = s, .awaited = e, .awaited_record = e->issued}, "a wait");
    return 0;
  }
  int query(event_state* e) {
    if (on_query) on_query();
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaEventQuery"); code != 0) return code;
    if (e = usable(e, "asked for"); !e) return invalid_handle;
    if (e->captured) {
      if (!e->captured->ended) e->captured->invalid = true;
      return report("an event is asked for that is captured"), captured_event;
    }
    ask();
    if (habits_.hasty) return ++calls_["dropped"], 0;
    here().now.join(e->known);
    if (e->done < e->issued) return detail::cuda_not_ready;
    here().now.join(e->at);
    seen_.join(e->at);
    return 0;
  }
  int synchronize(stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaStreamSynchronize"); code != 0) return code;
    if (s->captured) return refuse_capture(*s, "a wait of the host"), capture_unsupported;
    const auto last = s->issued;
    const auto at = s->now;
    while (s->done < last) {
      ask();
      less_to_do_.wait_for(lock, look);  // lazy, it does not hear of what others enqueue
    }
    here().now.join(at);
    seen_.join(at);
    return 0;
  }

  int allocate(void*& made, std::size_t bytes, pool_state* p, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaMallocFromPoolAsync"); code != 0) return code;
    auto& memory = devices_[static_cast<std::size_t>(p->device)]->memory;
    made = memory.allocate(bytes, s);
    if (!made) return out_of_memory;
    auto* const b = memory.find(made);
    enqueue({.on = s, .ranges = {{made, bytes, true}}, .after = [&memory, b] { memory.fill_with_rubbish(*b); }}, "an allocation");
    return 0;
  }
  int free(void* p, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaFreeAsync"); code != 0) return code;
    auto* const memory = memory_of(p);
    auto* const b = memory ? memory->find(p) : nullptr;
    if (!b || !b->alive) return report("memory is freed that is not there"), invalid_value;
    if (s->captured) return report("memory from before a capture is freed in it"), invalid_value;
    enqueue({.on = s,
             .ranges = {{p, b->bytes, true}},
             .after =
                 [memory, b, use = b->use] {
                   memory->fill_with_rubbish(*b);
                   if (b->use == use) b->freed = true;
                 }},
            "a free");
    b->alive = false;
    b->freed_on = s;
    return 0;
  }
  // Between processes. Source: CUDA Runtime API, cudaIpcGetMemHandle, cudaIpcOpenMemHandle, cudaIpcGetEventHandle and
  // cudaIpcOpenEventHandle; CUDA C++ Programming Guide, Interprocess Communication, and Stream Ordered Memory Allocator, IPC
  // Memory Pools.
  int allocate_shared(void*& made, std::size_t bytes, int process) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaMalloc"); code != 0) return code;
    auto& d = *devices_[index(here().device)];
    d.has_context = true;
    made = d.memory.allocate(bytes, nullptr);
    if (!made) return out_of_memory;
    d.memory.fill_with_rubbish(*d.memory.find(made));
    shared_.emplace(made, shared_block{.bytes = bytes, .process = process, .number = ++allocations_});
    return 0;
  }
  int free_shared(void* p) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaFree"); code != 0) return code;
    const auto found = shared_.find(p);
    if (found == shared_.end()) return report("memory is freed by cudaFree that cudaMalloc has not made"), invalid_value;
    if (!found->second.opened.empty()) report("memory is freed that another process has open");
    hosts_.step(host);
    auto now = here().now;
    now.join(hosts_);
    note({p, found->second.bytes, true}, host, now, "a free", -1);
    auto* const b = memory_of(p)->find(p);
    b->alive = false;
    b->freed = true;
    shared_.erase(found);
    return 0;
  }
  int export_memory(void* p, memory_handle& made) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaIpcGetMemHandle"); code != 0) return code;
    const auto found = shared_.find(p);
    if (found == shared_.end()) return invalid_value;  // of a pool, or not the first byte
    made = {p, found->second.number};
    return 0;
  }
  int open_memory(void*& made, const memory_handle& from, int process) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaIpcOpenMemHandle"); code != 0) return code;
    const auto found = shared_.find(from.memory);
    if (found == shared_.end() || found->second.number != from.number) return invalid_value;
    if (found->second.process == process) return not_in_this_process;
    if (!habits_.reach && memory_of(from.memory) != &devices_[index(here().device)]->memory) return no_peer_access;
    found->second.opened.push_back(process);
    made = from.memory;
    return 0;
  }
  int close_memory(void* p, int process) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaIpcCloseMemHandle"); code != 0) return code;
    const auto found = shared_.find(p);
    if (found == shared_.end()) return report("memory is closed that is freed"), invalid_value;
    auto& all = found->second.opened;
    const auto mine = std::find(all.begin(), all.end(), process);
    if (mine == all.end()) return report("memory is closed that is not open"), invalid_value;
    all.erase(mine);
    return 0;
  }
  int create_shared_event(event_state*& e, int process) {
    const int code = create_event(e);
    if (code == 0) e->shared_by = process;
    return code;
  }
  int export_event(event_state* e, event_handle& made) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaIpcGetEventHandle"); code != 0) return code;
    if (!e->alive || e->shared_by < 0) return invalid_handle;
    made = {e};
    return 0;
  }
  int open_event(event_state*& made, const event_handle& from, int process) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaIpcOpenEventHandle"); code != 0) return code;
    if (!from.event || !from.event->alive) return invalid_value;
    if (from.event->shared_by == process) return not_in_this_process;
    made = &events_.emplace_back(event_state{.device = from.event->device, .opened = from.event});
    return 0;
  }

  int allocate_pinned(void*& made, std::size_t bytes) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaHostAlloc"); code != 0) return code;
    devices_[index(here().device)]->has_context = true;
    pinned_block b{.bytes = std::make_unique<unsigned char[]>(bytes), .size = bytes};
    std::memset(b.bytes.get(), detail::device_memory::rubbish, bytes);
    made = b.bytes.get();
    pinned_.emplace(made, std::move(b));
    return 0;
  }
  int free_pinned(void* p) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaFreeHost"); code != 0) return code;
    const auto found = pinned_.find(p);
    if (found == pinned_.end()) return report("pinned memory is freed that is not there"), invalid_value;
    touch({p, found->second.size, true}, "the host that frees it");
    freed_.push_back(std::move(found->second.bytes));  // work may still be to come that writes there
    pinned_.erase(found);
    return 0;
  }

  int copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes, std::size_t rows,
                stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaMemcpyAsync"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    make_room(lock, s);
    needs_current(s, "a copy");
    if (memory_of(to) && memory_of(from) && memory_of(to) != memory_of(from) && !(s->captured && habits_.reach) &&
        !shared_at(to) && !shared_at(from))
      report(s->captured ? "a copy between devices that do not reach each other is captured"
                         : "a copy between pools of two devices names neither");
    return copy(to, to_pitch, from, from_pitch, bytes, rows, s);
  }
  int copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaMemcpyPeerAsync"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    if (s->captured) return s->captured->invalid = true, capture_unsupported;
    make_room(lock, s);
    if (memory_of(to) != &devices_[index(to_device)]->memory || memory_of(from) != &devices_[index(from_device)]->memory)
      report("a copy between devices names others than the memory's");
    return copy(to, bytes, from, bytes, bytes, 1, s);
  }
  int set_zero(void* to, std::size_t bytes, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaMemsetAsync"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    make_room(lock, s);
    needs_current(s, "a memset");
    enqueue({.on = s,
             .ranges = {{to, bytes, true}},
             .after = [this, to, bytes] { std::memset(backing(to), 0, bytes); },
             .works = true,
             .kind = node::memset},
            "a memset");
    return 0;
  }
  int begin_capture(stream_state* s) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaStreamBeginCapture"); code != 0) return code;
    if (s->captured) return report("a stream is captured twice"), illegal_state;
    s->captured = std::make_shared<graph_state>();
    s->captured->number = ++captures_;
    s->tips.clear();
    return 0;
  }
  int end_capture(stream_state* s, std::shared_ptr<graph_state>*& made) {
    const std::lock_guard lock(guard_);
    std::shared_ptr<graph_state> found;
    if (const int code = end(*s, found); code != 0) return code;
    if (const int code = begin("cudaGraphInstantiate"); code != 0) return code;
    made = &graphs_.emplace_back(std::move(found));
    return 0;
  }
  /// What has been launched goes on as it was.
  int end_update(stream_state* s, std::shared_ptr<graph_state>*& g, bool& updated) {
    const std::lock_guard lock(guard_);
    std::shared_ptr<graph_state> found;
    updated = false;
    if (const int code = end(*s, found); code != 0) return code;
    if (!*g) return report("a graph is updated that is destroyed"), invalid_value;
    const int refused = begin("cudaGraphExecUpdate");
    if (refused != 0 && refused != update_failure) return refused;
    updated = refused == 0 && is_update_of(*found, **g);
    if (!updated)
      if (const int code = begin("cudaGraphInstantiate"); code != 0) return code;
    *g = std::move(found);
    return 0;
  }
  int launch(std::shared_ptr<graph_state>* g, stream_state* s) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaGraphLaunch"); code != 0) return code;
    make_room(lock, s);
    needs_current(s, "a graph");
    if (!*g) return report("a graph is launched that is destroyed"), invalid_handle;
    std::vector<range> ranges;
    for (const auto& j : (*g)->jobs) ranges.insert(ranges.end(), j.ranges.begin(), j.ranges.end());
    const auto run = std::make_shared<graph_run>(*g, draw({s->issued}), habits_.in_order);
    enqueue({.on = s, .ranges = std::move(ranges), .ends = [run](bool& moved) { return run->goes_on(moved); }, .works = true},
            "a graph");
    return 0;
  }
  int destroy_graph(std::shared_ptr<graph_state>* g) {
    const std::lock_guard lock(guard_);
    if (const int code = begin("cudaGraphExecDestroy"); code != 0) return code;
    if (!*g) report("a graph is destroyed twice");
    g->reset();
    return 0;
  }

  /// A kernel; the ranges are what it reads and writes.
  int launch(stream_state* s, const char* name, std::vector<range> ranges, work body) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaLaunchKernel"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    make_room(lock, s);
    if (here().device != s->device) return report(std::string(name) + " is launched from another device"), invalid_handle;
    auto run = [this, ranges, body = std::move(body)] { body(view(*this, ranges, true)); };
    enqueue({.on = s, .ranges = std::move(ranges), .after = std::move(run), .works = true}, name, s->device);
    return 0;
  }

  /// A kernel that lasts until `ends` says so. That is asked from its beginning on, with the machine's lock held, and says in
  /// `moved` whether it has done something that others may wait for.
  int launch_until(stream_state* s, const char* name, std::vector<range> ranges, std::function<bool(bool& moved)> ends) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaLaunchKernel"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    make_room(lock, s);
    if (here().device != s->device) return report(std::string(name) + " is launched from another device"), invalid_handle;
    enqueue({.on = s, .ranges = std::move(ranges), .ends = std::move(ends)}, name, s->device);
    return 0;
  }
  /// The same kernel, which may be captured: begin() -> ends is called when it is enqueued, or a graph that has it is launched;
  /// with the machine's lock held, in the order of the calls. `owner`: whose it is.
  int launch_meeting(stream_state* s, const char* name, std::vector<range> ranges, const void* owner,
                     std::function<std::function<bool(bool& moved)>()> begin_it) {
    std::unique_lock lock(guard_);
    if (const int code = begin("cudaLaunchKernel"); code != 0) return code;
    if (is_spoilt(s)) return capture_invalidated;
    make_room(lock, s);
    if (here().device != s->device) return report(std::string(name) + " is launched from another device"), invalid_handle;
    job j{.on = s, .ranges = std::move(ranges), .owner = owner};
    s->captured ? (void)(j.begins = std::move(begin_it)) : (void)(j.ends = begin_it());
    enqueue(std::move(j), name, s->device);
    return 0;
  }
  /// Whether a graph that is captured, or that is not destroyed, has a kernel of this owner.
  [[nodiscard]] bool is_held_by_graph(const void* owner) {
    const std::lock_guard lock(guard_);
    const auto has = [&](const std::shared_ptr<graph_state>& g) {
      return g && std::any_of(g->jobs.begin(), g->jobs.end(), [&](const job& j) { return j.owner == owner; });
    };
    return std::any_of(graphs_.begin(), graphs_.end(), has) ||
           std::any_of(streams_.begin(), streams_.end(), [&](const stream_state& s) { return has(s.captured); });
  }
  /// The number of the allocation that memory of a device is in; 0: it is not there.
  [[nodiscard]] std::uint64_t allocation_of(const void* p) {
    const std::lock_guard lock(guard_);
    auto* const memory = memory_of(p);
    const auto* const b = memory ? memory->find(p) : nullptr;
    return b && b->alive ? static_cast<std::uint64_t>(b->use) + 1 : 0;
  }
  /// Of the calling thread.
  [[nodiscard]] int current_device() {
    const std::lock_guard lock(guard_);
    return here().device;
  }
  /// body() with the machine's lock held; then it looks for work.
  template <class Body>
  auto locked(Body&& body) {
    const std::lock_guard lock(guard_);
    if (asked_ == 0) asked_ = 1;
    changed_.notify_one();
    return body();
  }
  // For kernels of launch_until.
  void report(const std::string& text) {
    if (reports_.size() < 20) reports_.push_back(text);
  }
  void copy_now(void* to, const void* from, std::size_t bytes) {
    if (memory_of(to) && memory_of(from)) std::memcpy(backing(to), backing(from), bytes);
  }

  void copy_out_now(void* to, const void* from, std::size_t bytes) {
    if (memory_of(from)) std::memcpy(to, backing(from), bytes);
  }
  void copy_in_now(void* to, const void* from, std::size_t bytes) {
    if (memory_of(to)) std::memcpy(backing(to), from, bytes);
  }

  /// The host reads or writes pinned memory.
  void host_access(const void* memory, std::size_t bytes, bool writes) {
    const std::lock_guard lock(guard_);
    touch({memory, bytes, writes}, "the host");
  }
  /// The calling thread goes on behind what others have seen, by a lock that the machine does not know of.
  void threads_meet() {
    const std::lock_guard lock(guard_);
    here().now.join(seen_);
  }
  /// Called by whoever asks for an event, without a lock.
  std::function<void()> on_query;
  /// Goes on after stops_after.
  void resume() {
    {
      const std::lock_guard lock(guard_);
      habits_.stops_after = -1;
    }
    changed_.notify_all();
  }

  /// A call of this name fails, the next one that follows so many `successes`; "*": all calls from now on.
  void fail(const std::string& call, int code, int successes = 0) {
    const std::lock_guard lock(guard_);
    failures_[call] = {code, successes};
  }
  [[nodiscard]] std::vector<std::string> reports() {
    const std::lock_guard lock(guard_);
    return reports_;
  }
  /// Of all devices.
  [[nodiscard]] std::size_t blocks_alive() {
    const std::lock_guard lock(guard_);
    std::size_t count = 0;
    for (const auto& d : devices_) count += d->memory.alive();
    return count;
  }
  /// What was made and not destroyed, a line for each kind.
  [[nodiscard]] std::vector<std::string> leaks() {
    const std::lock_guard lock(guard_);
    std::size_t blocks = 0;
    for (const auto& d : devices_) blocks += d->memory.alive();
    const auto count = [](const auto& all) {
      return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](const auto& s) { return s.alive; }));
    };
    std::vector<std::string> found;
    const auto add = [&](std::size_t n, const char* what) {
      if (n > 0) found.push_back(std::to_string(n) + " " + what);
    };
    add(count(streams_), "streams");
    add(count(events_), "events");
    add(count(pools_), "pools");
    add(pinned_.size(), "blocks of pinned memory");
    add(blocks, "blocks of device memory");
    add(static_cast<std::size_t>(std::count_if(graphs_.begin(), graphs_.end(), [](const auto& g) { return g != nullptr; })),
        "graphs");
    return found;
  }
  /// How many streams were made on a device.
  [[nodiscard]] int streams_of(int d) {
    const std::lock_guard lock(guard_);
    return devices_[index(d)]->streams;
  }
  /// How often a call was made; "dropped": calls that a planted mistake has left out.
  [[nodiscard]] std::size_t calls(const std::string& name) {
    const std::lock_guard lock(guard_);
    return calls_[name];
  }
  /// How much the launch queue of a stream has held at most.
  [[nodiscard]] std::size_t longest_queue() {
    const std::lock_guard lock(guard_);
    return longest_;
  }

 private:
  static constexpr int invalid_value = 1, out_of_memory = 2, invalid_handle = 400, illegal_state = 401, capture_unsupported = 900,
                       capture_invalidated = 901, capture_unjoined = 904, capture_isolation = 905, captured_event = 907,
                       update_failure = 910, not_in_this_process = 201, no_peer_access = 217;
  static constexpr std::chrono::microseconds look{200};
  using time_point = std::chrono::steady_clock::time_point;
  enum class node { kernel, copy, memset };
  struct job {
    stream_state* on = nullptr;
    event_state* awaited = nullptr;
    std::uint64_t awaited_record = 0;
    std::vector<range> ranges = {};
    std::function<void()> after = {};                         ///< does it
    std::function<bool(bool&)> ends = {};                     ///< whether it has come to its end
    std::function<std::function<bool(bool&)>()> begins = {};  ///< makes `ends` when its graph is launched
    const void* owner = nullptr;                              ///< of such a kernel
    bool works = false;                                       ///< takes time
    node kind = node::kernel;                                 ///< of a graph, if it works
    std::size_t copies = 0;                                   ///< bytes
    std::optional<time_point> due = {};                       ///< when it ends, once it has begun
    int late = 0;
    std::uint64_t priority = 0;  ///< among those that can be done
  };

 public:
  /// Nothing of it is done before a launch.
  struct graph_state {
    std::vector<job> jobs;
    std::vector<std::vector<std::size_t>> needs;  ///< of each job
    std::vector<std::vector<bool>> before;        ///< which come before it
    bool invalid = false, ended = false;
    std::uint64_t number = 0;  ///< of all captures

    void add(job j, std::vector<std::size_t> behind) {
      std::vector<bool> all(jobs.size() + 1, false);
      for (const auto k : behind) {
        all[k] = true;
        for (std::size_t i = 0; i < before[k].size(); ++i) all[i] = all[i] || before[k][i];
      }
      jobs.push_back(std::move(j));
      needs.push_back(std::move(behind));
      before.push_back(std::move(all));
    }
    [[nodiscard]] bool all_before(const std::vector<std::size_t>& these, const std::vector<std::size_t>& tips) const {
      return std::all_of(these.begin(), these.end(), [&](std::size_t k) {
        return std::any_of(tips.begin(), tips.end(),
                           [&](std::size_t t) { return t == k || (k < before[t].size() && before[t][k]); });
      });
    }
  };

 private:
  /// A launch of a graph. A job that is not captured last begins when all that it needs has ended, in an order that is drawn; one
  /// that waits for others holds up what is behind it. `in_order`: one at a time, so that it holds up all of the graph.
  class graph_run {
   public:
    graph_run(std::shared_ptr<graph_state> of, std::uint64_t seed, bool in_order)
        : of_(std::move(of)), random_(seed), in_order_(in_order), left_(of_->jobs.size()), then_(left_), ends_(left_) {
      for (std::size_t k = 0; k < left_; ++k) {
        missing_.push_back(of_->needs[k].size());
        for (const auto n : of_->needs[k]) then_[n].push_back(k);
        if (of_->needs[k].empty()) ready_.push_back(k);
        if (of_->jobs[k].begins) ends_[k] = of_->jobs[k].begins();
      }
    }
    /// Does a few more jobs, if any can be done. Returns whether all are.
    bool goes_on(bool& moved) {
      for (std::size_t i = 0; i < open_.size();) {
        const auto k = open_[i];
        if (!ends_[k](moved)) {
          ++i;
          continue;
        }
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
        end(k);
        moved = true;
      }
      for (auto few = 1 + random_() % 8; few > 0 && !ready_.empty() && !(in_order_ && !open_.empty()); --few) {
        std::swap(ready_.back(), ready_[static_cast<std::size_t>(random_()) % ready_.size()]);
        const auto k = ready_.back();
        ready_.pop_back();
        moved = true;
        if (ends_[k]) {
          open_.push_back(k);
        } else {
          if (of_->jobs[k].after) of_->jobs[k].after();
          end(k);
        }
      }
      return left_ == 0;
    }

   private:
    void end(std::size_t k) {
      --left_;
      for (const auto t : then_[k])
        if (--missing_[t] == 0) ready_.push_back(t);
    }
    std::shared_ptr<graph_state> of_;
    random_source random_;
    bool in_order_;
    std::size_t left_;
    std::vector<std::vector<std::size_t>> then_;
    std::vector<std::function<bool(bool&)>> ends_;
    std::vector<std::size_t> missing_, ready_, open_;
  };
  struct device {
    detail::device_memory memory;
    std::deque<job> to_do;  ///< in the order of the calls
    int streams = 0;        ///< made so far
    bool has_context = false;
  };
  struct pinned_block {
    std::unique_ptr<unsigned char[]> bytes;
    std::size_t size = 0;
    detail::access_history history = {};
  };
  struct shared_block {
    std::size_t bytes = 0;
    int process = 0;
    std::uint64_t number = 0;      ///< of all that were allocated
    std::vector<int> opened = {};  ///< by these processes
  };
  struct thread_state {
    int device = 0;
    detail::vector_clock now;         ///< what it knows of devices
    std::vector<std::string> ranges;  ///< open
  };

  /// What is captured is of no use any more, and every call says so.
  [[nodiscard]] static bool is_spoilt(const stream_state* s) { return s->captured && s->captured->invalid; }
  int begins(const char* call) {
    const std::lock_guard lock(guard_);
    return begin(call);
  }
  // All below: with guard_ held.
  static std::size_t index(int d) { return static_cast<std::size_t>(d); }
  template <class State>
  int destroy(State& s, const char* what) {
    if (!std::exchange(s.alive, false)) report(std::string(what) + " is destroyed twice");
    return 0;
  }
  void needs_current(const stream_state* s, const char* what) {
    if (!s->alive) report(std::string(what) + " is enqueued on a stream that is destroyed");
    if (here().device != s->device) report(std::string(what) + " is enqueued from another device");
  }
  /// A number that depends on these and the seed.
  [[nodiscard]] std::uint64_t draw(std::initializer_list<std::uint64_t> by) const {
    auto x = random_source(habits_.seed)();
    for (const auto k : by) x = random_source(x ^ k)();
    return x;
  }
  int copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes, std::size_t rows,
           stream_state* s) {
    const auto spans = [&](std::size_t pitch) { return rows == 0 ? 0 : (rows - 1) * pitch + bytes; };
    std::vector<range> ranges;
    for (std::size_t r = 0; r < rows; ++r) {
      ranges.push_back({static_cast<const unsigned char*>(from) + r * from_pitch, bytes, false});
      ranges.push_back({static_cast<unsigned char*>(to) + r * to_pitch, bytes, true});
    }
    if (spans(to_pitch) == 0) return 0;
    auto move = [this, to, from, to_pitch, from_pitch, bytes, rows] {
      for (std::size_t r = 0; r < rows; ++r) std::memcpy(backing(to) + r * to_pitch, backing(from) + r * from_pitch, bytes);
    };
    enqueue({.on = s,
             .ranges = std::move(ranges),
             .after = std::move(move),
             .works = true,
             .kind = node::copy,
             .copies = rows * bytes},
            "a copy");
    return 0;
  }
  int begin(const std::string& call) {
    ++calls_[call];
    if (habits_.no_gpu != 0) return habits_.no_gpu;
    if (const auto all = failures_.find("*"); all != failures_.end()) return all->second.first;
    const auto found = failures_.find(call);
    if (found == failures_.end() || found->second.second-- > 0) return 0;
    return failures_.extract(found).mapped().first;
  }
  /// What it is, in the process that has made it; null where that has destroyed it.
  [[nodiscard]] event_state* usable(event_state* e, const char* how) {
    auto* const own = e->opened ? e->opened : e;
    if (!e->alive || !own->alive) report(std::string("an event is ") + how + " that is destroyed");
    return e->opened && !own->alive ? nullptr : own;
  }
  [[nodiscard]] bool shared_at(const void* p) const {
    const auto above = shared_.upper_bound(const_cast<void*>(p));
    if (above == shared_.begin()) return false;
    const auto& [first, b] = *std::prev(above);
    return static_cast<const char*>(p) < static_cast<const char*>(first) + b.bytes;
  }
  [[nodiscard]] detail::device_memory* memory_of(const void* p) {
    for (auto& d : devices_)
      if (d->memory.contains(p)) return &d->memory;
    return nullptr;
  }
  [[nodiscard]] std::pair<const void* const, pinned_block>* pinned_at(const void* p) {
    auto above = pinned_.upper_bound(p);
    if (above == pinned_.begin()) return nullptr;
    auto& found = *std::prev(above);
    return static_cast<const unsigned char*>(p) < static_cast<const unsigned char*>(found.first) + found.second.size ? &found
                                                                                                                     : nullptr;
  }
  unsigned char* backing(const void* p) {
    const auto* const m = memory_of(p);
    return m ? m->backing(p) : const_cast<unsigned char*>(static_cast<const unsigned char*>(p));
  }
  /// Whether the memory is there.
  bool note(const range& r, std::size_t actor, const detail::vector_clock& now, const char* what, int on_device) {
    if (r.bytes == 0) return true;
    detail::access_history* history = nullptr;
    std::size_t first = 0;
    const bool is_pinned = !memory_of(r.memory);
    if (auto* const memory = memory_of(r.memory)) {
      auto* const b = memory->find(r.memory);
      first = static_cast<std::size_t>(memory->backing(r.memory) - memory->backing_of_all());
      if (!b || !b->alive || first + r.bytes > b->first + b->bytes)
        return report(std::string(what) + " uses memory of a device that is not there, or no more"), false;
      if (on_device >= 0 && memory != &devices_[static_cast<std::size_t>(on_device)]->memory)
        report(std::string(what) + " uses the memory of another device");
      if (on_device == by_host) return report(std::string(what) + " touches the memory of a device"), false;
      history = &b->history;
    } else if (auto* const p = pinned_at(r.memory)) {
      first = static_cast<std::size_t>(static_cast<const unsigned char*>(r.memory) - p->second.bytes.get());
      if (first + r.bytes > p->second.size) return report(std::string(what) + " goes over the end of pinned memory"), false;
      history = &p->second.history;
    } else {
      return report(std::string(what) + " uses memory of the host that is not pinned"), false;
    }
    // Threads hand pinned memory to each other: what one has seen the next one that enqueues knows.
    auto known = now;
    if (is_pinned && on_device != by_host) known.join(seen_);
    const auto race = history->note(
        {.first = first, .last = first + r.bytes, .writes = r.writes, .actor = actor, .step = now.of(actor), .what = what},
        known);
    if (!race.empty()) report(race);
    return true;
  }

  void touch(const range& r, const char* what) {
    hosts_.step(host);
    auto now = here().now;
    now.join(hosts_);
    note(r, host, now, what, by_host);
  }
  /// Waits until the launch queue of a stream takes one more. Before a call has any effect.
  void make_room(std::unique_lock<std::mutex>& lock, const stream_state* s) {
    while (s->queued >= habits_.launch_queue) {
      ask();
      less_to_do_.wait_for(lock, look);  // lazy, it does not hear of what others enqueue
    }
  }
  [[nodiscard]] static bool takes_place(const job& j) { return j.works || j.ends; }
  /// A call of the host that gives a stream something to do.
  void enqueue(job j, const char* what, int on_device = -1) {
    auto& to_do = devices_[static_cast<std::size_t>(j.on->device)]->to_do;
    auto& s = *j.on;
    if (s.captured) return capture(std::move(j), what, on_device);
    s.now.join(here().now);
    s.now.join(hosts_);
    s.now.step(s.actor);
    for (const auto& r : j.ranges)
      if (!note(r, s.actor, s.now, what, on_device)) j.after = {};  // it would harm the test
    ++s.issued;
    const auto place = draw({static_cast<std::uint64_t>(s.device), static_cast<std::uint64_t>(s.number), s.issued});
    j.late = static_cast<int>(place % static_cast<std::uint64_t>(habits_.most_turns_late + 1));
    j.priority = random_source(place)();
    s.queued += takes_place(j);
    longest_ = std::max(longest_, s.queued);
    to_do.push_back(std::move(j));
    if (!habits_.lazy) changed_.notify_one();
  }
  /// What uses memory in no order with other work of its graph is reported.
  void capture(job j, const char* what, int on_device) {
    auto& s = *j.on;
    auto& g = *s.captured;
    if (!j.works && !j.begins) refuse_capture(s, what);
    for (const auto& r : j.ranges) {
      if (on_device >= 0 && memory_of(r.memory) && memory_of(r.memory) != &devices_[index(on_device)]->memory)
        report(std::string(what) + " uses the memory of another device");
      const auto at = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
      for (std::size_t k = 0; k < g.jobs.size(); ++k)
        for (const auto& old : g.jobs[k].ranges)
          if ((r.writes || old.writes) && at(r.memory) < at(old.memory) + old.bytes && at(old.memory) < at(r.memory) + r.bytes &&
              !g.all_before({k}, s.tips))
            report(std::string(what) + ", captured, uses what other captured work does, in no order");
    }
    const auto number = g.jobs.size();
    g.add(std::move(j), std::exchange(s.tips, {number}));
  }
  /// A stream waits for a captured event: it is captured, too, from then on.
  int join(stream_state& s, const event_state& e) {
    if (e.captured->ended || (s.captured && s.captured != e.captured)) {
      report("a stream waits for an event that another graph has captured");
      return capture_isolation;
    }
    if (!s.captured) s.tips.clear();
    s.captured = e.captured;
    for (const auto k : e.tips)
      if (std::find(s.tips.begin(), s.tips.end(), k) == s.tips.end()) s.tips.push_back(k);
    return 0;
  }
  /// Ends the capture of a stream, and of those that have joined it.
  int end(const stream_state& s, std::shared_ptr<graph_state>& found) {
    found = s.captured;
    bool is_joined = true;
    for (auto& other : streams_) {
      if (!found || other.captured != found) continue;
      if (&other != &s) is_joined = is_joined && found->all_before(other.tips, s.tips);
      other.captured = nullptr;
    }
    if (found) found->ended = true;
    if (const int code = begin("cudaStreamEndCapture"); code != 0) return code;
    if (!found) return report("a capture ends that has not begun"), invalid_value;
    if (found->invalid) return capture_invalidated;
    if (!is_joined) return report("a capture ends before all of its streams have joined"), capture_unjoined;
    return 0;
  }
  /// Whether an executable graph of the one becomes one of the other by an update: nodes of the same kinds, behind each other as
  /// they were, each on the device where it was, and with memory of the devices where it was. Stricter than the manual: nodes are
  /// paired in the order of the calls, and a copy keeps its number of rows.
  /// Source: CUDA Runtime API, cudaGraphExecUpdate, Limitations and cudaGraphExecUpdateErrorTopologyChanged.
  [[nodiscard]] bool is_update_of(const graph_state& now, const graph_state& before) {
    if (now.jobs.size() != before.jobs.size() || now.needs != before.needs) return false;
    for (std::size_t k = 0; k < now.jobs.size(); ++k) {
      const auto &a = now.jobs[k], &b = before.jobs[k];
      if (a.kind != b.kind || a.on->device != b.on->device) return false;
      if (a.kind == node::kernel) continue;
      if (a.ranges.size() != b.ranges.size()) return false;
      for (std::size_t i = 0; i < a.ranges.size(); ++i)
        if (memory_of(a.ranges[i].memory) != memory_of(b.ranges[i].memory)) return false;
    }
    return true;
  }
  /// Kernels, copies and memsets can be captured; the fake's callers have no use for more.
  void refuse_capture(stream_state& s, const char* what) {
    s.captured->invalid = true;
    report(std::string(what) + " is captured");
  }
  /// A thread wants to see results.
  void ask() {
    if (!habits_.lazy || asked_ > 0) return;
    asked_ = 1 << (draw({done_}) % 7);  // few jobs often, and many now and then: who asks waits between two times
    changed_.notify_one();
  }

  /// Whether a job, which is the first of its stream, has taken its time.
  bool is_over(job& j) {
    const auto now = std::chrono::steady_clock::now();
    if (!j.due) {
      const double factor = 0.75 + 0.5 * static_cast<double>(j.priority % 1000) / 1000;
      const double takes_s = (j.works ? habits_.work_s : 0) + factor * habits_.copy_s_per_byte * static_cast<double>(j.copies);
      j.due = now + std::chrono::duration_cast<time_point::duration>(std::chrono::duration<double>(takes_s));
    }
    if (*j.due <= now) return true;
    next_due_ = next_due_ ? std::min(*next_due_, *j.due) : *j.due;
    return false;
  }
  /// What can be done next, null if there is nothing: the first of a stream, or in_order of a device, whose event has come.
  [[nodiscard]] std::pair<device*, std::size_t> choose() {
    while (true) {
      std::vector<std::pair<device*, std::size_t>> ready;
      bool is_late = false, moved = false;
      next_due_.reset();
      for (auto& d : devices_) {
        std::vector<const stream_state*> seen;
        for (std::size_t k = 0; k < d->to_do.size() && !(habits_.in_order && k > 0); ++k) {
          auto& j = d->to_do[k];
          if (std::find(seen.begin(), seen.end(), j.on) != seen.end()) continue;
          seen.push_back(j.on);
          if (j.awaited && j.awaited->done < j.awaited_record) continue;
          if (j.late > 0)
            is_late = true, --j.late;
          else if ((!j.works || is_over(j)) && (!j.ends || j.ends(moved)))
            ready.emplace_back(d.get(), k);
        }
      }
      const auto first = std::max_element(ready.begin(), ready.end(), [](const auto& a, const auto& b) {
        return a.first->to_do[a.second].priority < b.first->to_do[b.second].priority;
      });
      if (first != ready.end()) return *first;
      if (!is_late && !moved) return {nullptr, 0};
    }
  }

  void serve() {
    std::unique_lock lock(guard_);
    while (true) {
      const bool rests =
          (habits_.lazy && asked_ == 0 && !ends_) || (habits_.stops_after >= 0 && done_ >= index(habits_.stops_after));
      auto [d, k] = rests ? std::pair<device*, std::size_t>(nullptr, 0) : choose();
      if (!d) {
        asked_ = 0;
        if (next_due_ && !rests) {
          changed_.wait_until(lock, *next_due_);
          continue;
        }
        if (ends_) return;
        changed_.wait(lock);
        continue;
      }
      job j = std::move(d->to_do[k]);
      d->to_do.erase(d->to_do.begin() + static_cast<std::ptrdiff_t>(k));
      if (j.after) j.after();
      ++j.on->done;
      j.on->queued -= takes_place(j);
      ++done_;
      asked_ = std::max(asked_ - 1, 0);
      less_to_do_.notify_all();
      if (draw({done_}) % 4 == 0) {  // others may call in between
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
  }
  static constexpr int by_host = -2;

  /// Of the calling thread. What a new one has seen, its maker has: the first.
  thread_state& here() {
    const auto id = std::this_thread::get_id();
    const auto found = threads_.find(id);
    if (found != threads_.end()) return found->second;
    thread_state made;
    if (!threads_.empty()) made = threads_.at(first_);
    if (threads_.empty()) first_ = id;
    made.device = 0;
    return threads_[id] = made;
  }

  habits habits_;
  std::mutex guard_;
  std::condition_variable changed_, less_to_do_;
  std::vector<std::unique_ptr<device>> devices_;
  std::deque<stream_state> streams_;
  std::deque<event_state> events_;
  std::deque<pool_state> pools_;
  std::deque<std::shared_ptr<graph_state>> graphs_;
  std::map<const void*, pinned_block> pinned_;
  std::map<void*, shared_block> shared_;  ///< of cudaMalloc
  std::uint64_t allocations_ = 0, captures_ = 0;
  std::vector<std::unique_ptr<unsigned char[]>> freed_;
  std::map<std::thread::id, thread_state> threads_;
  std::thread::id first_ = {};  ///< thread
  static constexpr std::size_t host = 0;
  detail::vector_clock seen_;   ///< of devices, by all threads together
  detail::vector_clock hosts_;  ///< of all threads: they are ordered by what they share, which is ThreadSanitizer's to check
  std::size_t actors_ = 1, longest_ = 0;
  std::map<std::string, std::pair<int, int>> failures_;  ///< code, and successes before
  std::map<std::string, std::size_t> calls_;
  std::vector<std::string> reports_;
  std::uint64_t done_ = 0;                   ///< jobs
  std::optional<time_point> next_due_ = {};  ///< of those that choose() has seen
  int asked_ = 0;                            ///< how much a lazy machine does before it rests
  bool ends_ = false;
  std::thread worker_;
};

}  // namespace hetsched::cuda_check
