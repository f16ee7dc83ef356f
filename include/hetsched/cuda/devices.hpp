// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/buffer_test.cpp.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/detail/pinned_pool.hpp>
#include <hetsched/cuda/queue.hpp>

namespace hetsched {

struct cuda_options {
  std::size_t limit_bytes = 0;  ///< of a device's memory in buffers; 0: what the device has
  std::size_t records = 64;     ///< how far the host may be ahead of a queue, in records: about one per action
  bool times = true;            ///< whether computations are timed by events; else the calls that enqueue them
  double deadline_s = 60;       ///< how long the host waits for a queue that makes no progress
};

namespace detail {

/// Keeps it for good, without memory for that.
inline void never_end(std::shared_ptr<const void> owner) noexcept {
  using kept = std::shared_ptr<const void>;
  alignas(kept) std::byte place[sizeof(kept)];
  ::new (static_cast<void*>(place)) kept(std::move(owner));
}

}  // namespace detail

/// What a trainer brings along, for cuda_devices to use in place of what these would make: its own allocator, its own streams.
/// What is empty they make. Several threads may call these at a time.
template <cuda_api Api>
struct cuda_adoption {
  using stream_type = typename Api::stream;
  /// Memory of a device, to be used behind what has been enqueued on the stream. null, or an exception: there is none now; then
  /// the library waits for what it still uses, and asks once more.
  std::function<void*(std::size_t bytes, int device, stream_type)> allocate = {};
  /// Takes it back, with the stream that it was allocated with: what is enqueued there from now on may use it. Other streams have
  /// done with it, which may be some time after a buffer's end. Does not throw.
  std::function<void(void*, std::size_t bytes, int device, stream_type)> free = {};
  /// The stream for a queue of the device, of the name: as errors have it, such as "rank 0's computations". Several queues may
  /// have one; it outlives the cuda_devices. null: one is made. CUDA's default stream, whose handle is null, cannot be brought
  /// along, but cudaStreamLegacy and streams of one's own can.
  std::function<stream_type(int device, const std::string& name)> stream = {};
};

/// What the buffers of a device have.
struct cuda_memory_use {
  std::size_t now_bytes = 0;
  std::size_t most_bytes = 0;  ///< since the beginning
  std::uint64_t allocations = 0;
};

namespace detail {

/// The memory of work that is captured: graphs use the same whenever they are launched, so it stays until this ends. What is
/// freed during the capture may serve again in it, behind what uses it on other queues; what comes back otherwise serves again
/// in the next capture, whose graph takes the place of this one's.
template <cuda_api Api>
class captured_memory {
 public:
  explicit captured_memory(const cuda_queue<Api>& q) : q_(q) {}
  captured_memory(const captured_memory&) = delete;
  captured_memory& operator=(const captured_memory&) = delete;
  ~captured_memory() {
    try {
      let_go();
      settle();
      for (const auto& [memory, b] : all_) q_.devices().forget_captured(q_, memory, b.bytes);
    } catch (const std::exception&) {
      // The device has failed, and the next call says so.
    }
    q_.devices().disown_captured(q_, *this);
  }

  [[nodiscard]] void* allocate(std::size_t bytes) {
    {
      const std::lock_guard lock(guard_);
      const auto fits = [&](const freed& b) { return b.bytes == bytes; };
      const auto own = [&](const freed& b) {
        return fits(b) &&
               std::all_of(b.uses.begin(), b.uses.end(), [&](const auto& m) { return !m.stream() || m.stream() == q_.own(); });
      };
      // What other queues use, such as that of a transfer, serves again only where younger blocks lie idle, too: not to hold up
      // work behind a transfer that has just set out.
      constexpr std::ptrdiff_t younger = 2;
      auto same = std::find_if(idle_.begin(), idle_.end(), own);
      if (same == idle_.end() && std::count_if(idle_.begin(), idle_.end(), fits) > younger)
        same = std::find_if(idle_.begin(), idle_.end(), fits);
      if (same != idle_.end()) {
        const auto found = std::move(*same);
        idle_.erase(same);
        for (const auto& m : found.uses) q_.wait(m);
        return found.memory;
      }
      if (const auto spare = spare_.find(bytes); spare != spare_.end()) {
        void* const found = spare_.extract(spare).mapped();
        all_.at(found).capture = captures_;
        return found;
      }
    }
    auto* const made = q_.devices().allocate_captured(q_, bytes, *this);
    const std::lock_guard lock(guard_);
    all_.emplace(made, block{bytes, captures_});
    return made;
  }
  /// Whether it was from here; then it may serve again.
  [[nodiscard]] bool reuse(void* memory, std::size_t bytes, const std::vector<cuda_moment<Api>>& uses) {
    const std::lock_guard lock(guard_);
    const auto found = all_.find(memory);
    if (found == all_.end()) return false;
    if (found->second.capture == captures_)
      idle_.push_back({memory, bytes, uses});
    else
      returned_.push_back(memory);
    return true;
  }
  /// From here, freed outside of this capture.
  void put_back(void* memory) {
    const std::lock_guard lock(guard_);
    returned_.push_back(memory);
  }
  /// Memory from before the capture, to be freed behind it. What is captured has no use for it.
  void free_later(void* memory, std::size_t bytes, std::vector<cuda_moment<Api>> uses) {
    std::erase_if(uses, [](const auto& m) { return m.point() >= captured_point; });
    const std::lock_guard lock(guard_);
    later_.push_back({memory, bytes, std::move(uses)});
  }
  /// Behind a capture that has failed: the memory stays until the pool ends, as whoever has it may not know.
  void abandon() {
    q_.devices().disown_captured(q_, *this);
    const std::lock_guard lock(guard_);
    all_.clear(), idle_.clear(), returned_.clear(), spare_.clear();
  }
  /// Until this ends, or another capture begins.
  void keep(std::shared_ptr<const void> owner) {
    const std::lock_guard lock(guard_);
    kept_.push_back(std::move(owner));
  }
  /// Behind the capture.
  void settle() {
    for (auto& f : std::exchange(later_, {})) q_.devices().free(q_, f.memory, f.bytes, f.uses);
  }
  /// Before another capture. It makes the same choices as the first one did, and so a graph of the same form: what lies idle is
  /// behind all that was launched, and nothing has to wait for it.
  /// Throws: cuda_error.
  void restart() {
    let_go();
    const std::lock_guard lock(guard_);
    for (const auto& f : std::exchange(idle_, {})) returned_.push_back(f.memory);
    for (void* m : std::exchange(returned_, {})) spare_.emplace(all_.at(m).bytes, m);
    ++captures_;
  }

 private:
  struct block {
    std::size_t bytes;
    int capture;  ///< in which it was given out last
  };
  struct freed {
    void* memory;
    std::size_t bytes;
    std::vector<cuda_moment<Api>> uses;
  };
  /// What is kept stays behind what was launched last, and no longer.
  void let_go() {
    for (auto& owner : std::exchange(kept_, {})) q_.devices().keep(q_, std::move(owner), {});
  }
  cuda_queue<Api> q_;
  std::mutex guard_;  ///< other threads free what they got from the queue
  std::map<void*, block> all_;
  std::vector<freed> idle_, later_;
  std::vector<void*> returned_;              ///< that are nobody's any more, but the graph's
  std::multimap<std::size_t, void*> spare_;  ///< by bytes: of earlier captures
  int captures_ = 0;
  std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace detail

/// The GPUs of this process with their memory pools, queues, and pinned memory. A device is used from the first queue on. The
/// calling threads' current devices stay what they were, unless those were never used (cuda_device_scope). Outlives whatever was
/// made by it.
template <cuda_api Api>
class cuda_devices {
  using stream_type = detail::cuda_stream<Api>;

 public:
  /// Throws: cuda_error where there is no GPU; input_error for an allocator of which one half is missing.
  explicit cuda_devices(Api api = {}, cuda_options options = {}, cuda_adoption<Api> adopted = {})
      : api_(std::move(api)), options_(options), adopted_(std::move(adopted)), pinned_(api_) {
    if (!adopted_.allocate != !adopted_.free)
      throw input_error(std::string("cuda_adoption has no ") + (adopted_.free ? "allocate" : "free") + ", but the other half");
    int count = 0;
    detail::require_cuda(api_, api_.device_count(count), "cudaGetDeviceCount", "this process", -1);
    pools_.resize(as_size(count));
    while (lookouts_.size() < pools_.size()) lookouts_.push_back(std::make_unique<detail::cuda_lookout>());
    shared_.resize(pools_.size() * pools_.size());
  }
  cuda_devices(const cuda_devices&) = delete;
  cuda_devices& operator=(const cuda_devices&) = delete;
  ~cuda_devices() {
    if (held_.empty()) return;
    for (const auto& s : streams_) (void)api_.synchronize(s.stream());
    try {
      end_held();
    } catch (const std::exception&) {
      // A device has failed, or what was adopted throws: nobody is left to be told.
    }
  }

  [[nodiscard]] int count() const { return static_cast<int>(pools_.size()); }
  [[nodiscard]] const Api& api() const { return api_; }
  [[nodiscard]] const cuda_options& options() const { return options_; }

  /// A queue for as long as this lives; `name`: of its work, in errors; `urgent`: its kernels go before those of others, where
  /// its runtime has such streams (cuda_priority_api) and none was brought along.
  /// Throws: input_error for a device that is not there; cuda_error.
  [[nodiscard]] cuda_queue<Api> make_queue(int device, const std::string& name, bool urgent = false) {
    if (device < 0 || device >= count())
      throw input_error("there is no device " + std::to_string(device) + " among " + std::to_string(count()));
    const auto brought = adopted_.stream ? adopted_.stream(device, name) : typename Api::stream{};
    const std::lock_guard lock(guard_);
    use(device);
    auto& free = at(pools_, device)->idle_streams;
    const auto fits = [&](const stream_type* s) {
      if (brought != typename Api::stream{}) return s->is_adopted() && s->stream() == brought;
      return !s->is_adopted() && s->is_urgent() == urgent;
    };
    const auto found = std::find_if(free.rbegin(), free.rend(), fits);
    if (found == free.rend()) return {*this, make_stream(device, name, brought, urgent)};
    auto* const own = *found;
    free.erase(std::next(found).base());
    own->rename(name);
    return {*this, *own};
  }
  /// The same, or the host's where device is -1, for as long as anyone has the result: then others get its stream, behind whose
  /// work theirs is enqueued. So trainings that come and go do not gather streams.
  [[nodiscard]] std::shared_ptr<const cuda_queue<Api>> lend_queue(int device, const std::string& name, bool urgent = false) {
    if (device < 0) return std::make_shared<const cuda_queue<Api>>(*this);
    return {new cuda_queue<Api>(make_queue(device, name, urgent)), [this](const cuda_queue<Api>* q) {
              const std::lock_guard lock(guard_);
              at(pools_, q->device())->idle_streams.push_back(q->own());
              delete q;
            }};
  }
  /// Whether copies between two devices, of which queues were made, reach the other's memory. Of an adopted allocator's that is
  /// not known: no.
  [[nodiscard]] bool share(int device, int peer) const {
    const std::lock_guard lock(guard_);
    return device == peer || at(shared_, device * count() + peer) != 0;
  }

  /// `look` is called again and again, by threads that wait for a queue of this device and by one of this object's own, and may
  /// end what queues wait for: a thread whose call of CUDA waits in a full launch queue can end nothing. It waits for no thread
  /// that may wait for a queue. `who` asks for it; an empty function: no more, and none is under way.
  void keep_looking(int device, const void* who, std::function<void()> look) {
    if (!at(lookouts_, device)->set(who, std::move(look))) return;
    const std::lock_guard lock(guard_);
    if (!watchdog_.joinable()) watchdog_ = std::jthread([this](const std::stop_token& ends) { watch(ends); });
  }

  [[nodiscard]] cuda_memory_use memory(int device) const {
    const std::lock_guard lock(guard_);
    const auto& p = at(pools_, device);
    if (!p) return {};
    const std::lock_guard lock_of_pool(p->guard);
    return p->use;
  }
  /// Pinned memory in use or kept.
  [[nodiscard]] std::size_t pinned_bytes() const { return pinned_.bytes(); }

  /// Memory for a buffer, to be used behind what has been enqueued on q; on a host's queue, pinned memory.
  /// Throws: cuda_error where there is not enough, or the limit is reached.
  [[nodiscard]] void* allocate(const cuda_queue<Api>& q, std::size_t bytes) {
    if (q.on_host()) {
      const auto current = any_in_use();
      return pinned_.allocate(bytes);
    }
    if (auto* const captured = q.own()->capturing()) return captured->allocate(bytes);
    return allocate_on(q, bytes, q.stream());
  }
  /// The same for work of q that is captured; to be used behind what this has enqueued elsewhere.
  [[nodiscard]] void* allocate_captured(const cuda_queue<Api>& q, std::size_t bytes, detail::captured_memory<Api>& owner) {
    auto& p = *at(pools_, q.device());
    {
      const std::lock_guard lock(guard_);
      if (!p.allocates) p.allocates = &make_stream(q.device(), "memory of CUDA graphs");
    }
    auto* const made = allocate_on(q, bytes, p.allocates->stream());  // which may let owners go, and these free what is captured
    {
      const std::lock_guard lock(p.captured_guard);
      p.has_captured = true;
      p.captured.insert_or_assign(made, &owner);
    }
    const std::lock_guard lock(p.allocates_guard);
    p.allocates->finish();  // a graph cannot wait for it; it is made once
    return made;
  }
  /// What is captured memory stays it, but nobody's who is told what comes back.
  void disown_captured(const cuda_queue<Api>& q, const detail::captured_memory<Api>& owner) {
    auto& p = *at(pools_, q.device());
    const std::lock_guard lock(p.captured_guard);
    for (auto& [memory, of] : p.captured)
      if (of == &owner) of = nullptr;
  }
  /// Frees it behind what is on q.
  void forget_captured(const cuda_queue<Api>& q, void* memory, std::size_t bytes) {
    auto& p = *at(pools_, q.device());
    {
      const std::lock_guard lock(p.captured_guard);
      p.captured.erase(memory);
    }
    count_free(p, bytes);
    if (adopted_.free) return give_back(q.device(), memory, bytes, *p.allocates, {q.record()});
    q.own()->require(api_.free(memory, q.stream()), "cudaFreeAsync");
  }

 private:
  /// Behind these moments; what has been enqueued on the stream need not have ended.
  void give_back(int device, void* memory, std::size_t bytes, const stream_type& of, std::vector<cuda_moment<Api>> uses) {
    std::erase_if(uses, [&](const auto& m) { return m.stream() == &of; });
    hold({.uses = std::move(uses), .end = [=, this, s = of.stream()] { adopted_.free(memory, bytes, device, s); }});
  }
  [[nodiscard]] void* adopted_memory(std::size_t bytes, int device, typename Api::stream stream) {
    end_held();
    for (const bool again : {false, true}) {
      try {
        if (void* const made = adopted_.allocate(bytes, device, stream)) return made;
      } catch (...) {
        if (again) throw;
      }
      if (!again) wait_for_held();
    }
    throw detail::failure_of(api_, "an adopted allocator", "a buffer of " + std::to_string(bytes) + " bytes", device, 2,
                             "it has none");
  }
  [[nodiscard]] void* allocate_on(const cuda_queue<Api>& q, std::size_t bytes, typename Api::stream stream) {
    auto& p = *at(pools_, q.device());
    {
      const std::lock_guard lock(p.guard);
      if (options_.limit_bytes > 0 && p.use.now_bytes + bytes > options_.limit_bytes)
        throw detail::failure_of(
            api_, "cudaMallocFromPoolAsync", "a buffer of " + std::to_string(bytes) + " bytes", q.device(), 2,
            std::to_string(p.use.now_bytes) + " bytes of the limit of " + std::to_string(options_.limit_bytes) + " are in use");
      p.use.now_bytes += bytes;
      p.use.most_bytes = std::max(p.use.most_bytes, p.use.now_bytes);
      ++p.use.allocations;
    }
    void* made = nullptr;
    if (adopted_.allocate) try {
        return adopted_memory(bytes, q.device(), stream);
      } catch (...) {
        count_free(p, bytes);
        throw;
      }
    if (const int code = api_.allocate(made, bytes, p.memory, stream); code != 0) {
      count_free(p, bytes);
      detail::require_cuda(api_, code, "cudaMallocFromPoolAsync", "a buffer of " + std::to_string(bytes) + " bytes", q.device());
    }
    return made;
  }

 public:
  /// Frees what was allocated on q, behind these moments. Nobody waits; the queue itself does only where it has done the last.
  void free(const cuda_queue<Api>& q, void* memory, std::size_t bytes, const std::vector<cuda_moment<Api>>& uses) {
    if (q.on_host()) return pinned_.free(memory, bytes, uses);
    auto& p = *at(pools_, q.device());
    {
      const std::lock_guard no_capture(q.own()->capture_guard());
      auto* const capturing = q.own()->capturing();
      if (capturing && capturing->reuse(memory, bytes, uses)) return;
      if (goes_back_to_graph(p, memory)) return;
      if (capturing) return capturing->free_later(memory, bytes, uses);
      count_free(p, bytes);
      if (!adopted_.free) free_behind(p, q, memory, uses);
    }
    adopted_.free ? give_back(q.device(), memory, bytes, *q.own(), uses) : end_held();
  }
  /// Keeps whose memory it is until what has been enqueued on q has ended, and these moments are reached. Where nobody can say
  /// when that is, for good: it may be in use.
  /// Throws: cuda_error, and std::bad_alloc.
  void keep(const cuda_queue<Api>& q, std::shared_ptr<const void> owner, std::vector<cuda_moment<Api>> uses) {
    held until;
    try {
      until.uses = std::move(uses);
      until.owner = owner;
      if (!q.on_host()) {
        const std::lock_guard no_capture(q.own()->capture_guard());
        if (auto* const capturing = q.own()->capturing()) return capturing->keep(owner);
        const auto current = q.make_current();
        q.own()->require(api_.create_event(until.event.emplace()), "cudaEventCreateWithFlags");
        q.own()->require(api_.record(*until.event, q.stream()), "cudaEventRecord");
      }
      hold(std::move(until));
    } catch (...) {
      detail::never_end(std::move(owner));
      throw;
    }
  }

 private:
  struct pool {
    /// `is_own`: else it is an adopted allocator's.
    /// Throws: cuda_error.
    pool(const Api& of, int device, bool is_own) : api(of), has_memory(is_own) {
      if (has_memory) detail::require_cuda(api, api.create_pool(device, memory), "cudaMemPoolCreate", "buffers", device);
    }
    pool(const pool&) = delete;
    pool& operator=(const pool&) = delete;
    ~pool() {
      if (has_memory) (void)api.destroy_pool(memory);
    }

    Api api;
    bool has_memory;
    mutable std::mutex guard;
    typename Api::pool memory{};
    stream_type* frees = nullptr;            ///< waits so that no queue has to
    stream_type* allocates = nullptr;        ///< for work that is captured; null: none was yet
    std::vector<stream_type*> idle_streams;  ///< that were lent
    std::mutex allocates_guard;              ///< the stream is of one thread at a time
    std::atomic<bool> has_captured = false;
    std::mutex captured_guard;
    std::map<void*, detail::captured_memory<Api>*> captured;  ///< memory of graphs, and whose it is; null: of one that has failed
    cuda_memory_use use;
  };

  void free_behind(pool& p, const cuda_queue<Api>& q, void* memory, const std::vector<cuda_moment<Api>>& uses) {
    if (std::all_of(uses.begin(), uses.end(), [&](const auto& m) { return !m.stream() || m.stream() == q.own(); })) {
      q.own()->require(api_.free(memory, q.stream()), "cudaFreeAsync");
      return;
    }
    const std::lock_guard lock(p.guard);
    for (const auto& m : uses)
      if (m.stream()) p.frees->wait(*m.stream(), m.point());
    p.frees->require(api_.free(memory, p.frees->stream()), "cudaFreeAsync");
  }

  /// What ends when nobody uses it any more.
  struct held {
    std::vector<cuda_moment<Api>> uses;
    std::function<void()> end = {};                 ///< may be empty
    std::shared_ptr<const void> owner = {};         ///< is let go then, too
    std::optional<typename Api::event> event = {};  ///< as `uses`

    [[nodiscard]] bool is_idle(const Api& api) const {
      return std::all_of(uses.begin(), uses.end(), [](const auto& m) { return m.reached(); }) &&
             (!event || api.query(*event) == 0);
    }
  };
  void hold(held what) {
    std::erase_if(what.uses,
                  [](const auto& m) { return !m.stream() || m.point() >= detail::captured_point; });  // a graph's are its user's
    {
      const std::lock_guard lock(held_guard_);
      held_.push_back(std::move(what));
    }
    end_held();
  }
  /// Ends what nobody uses any more. Calls what was adopted, and lets owners go, outside its lock.
  void end_held() {
    std::vector<held> ended;
    {
      const std::lock_guard lock(held_guard_);
      if (held_.empty()) return;
      std::vector<char> is_idle;
      for (const auto& h : held_) is_idle.push_back(h.is_idle(api_));
      std::vector<held> left;
      for (std::size_t k = 0; k < held_.size(); ++k) (is_idle[k] != 0 ? ended : left).push_back(std::move(held_[k]));
      held_ = std::move(left);
    }
    for (auto& h : ended) {
      if (h.event) (void)api_.destroy_event(*h.event);
      if (h.end) h.end();
    }
  }
  void wait_for_held() {
    std::vector<cuda_moment<Api>> all;
    {
      const std::lock_guard lock(held_guard_);
      for (const auto& h : held_) all.insert(all.end(), h.uses.begin(), h.uses.end());
    }
    for (const auto& m : all)
      if (m.stream()) m.stream()->wait_for(m.point());
    // Events do not tell who is behind: they are asked.
    const auto is_left = [&] {
      const std::lock_guard lock(held_guard_);
      return std::any_of(held_.begin(), held_.end(), [&](const auto& h) { return h.event && !h.is_idle(api_); });
    };
    constexpr std::chrono::microseconds pause(50);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.deadline_s);
    while (is_left() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(pause);
    end_held();
  }

  void watch(const std::stop_token& ends) {
    constexpr std::chrono::milliseconds pause(50);
    std::mutex nobody;
    std::condition_variable_any wake;
    for (std::unique_lock lock(nobody); !wake.wait_for(lock, ends, pause, [] { return false; }) && !ends.stop_requested();)
      for (const auto& here : lookouts_) try {
          here->look();
        } catch (const std::exception&) {
          // A device has failed: the thread that uses it finds out, and says so.
        }
  }

  // Both with guard_ held.
  void use(int device) {
    auto& own = at(pools_, device);
    if (own) return;
    auto made = std::make_unique<pool>(api_, device, !adopted_.allocate);
    const auto share = [&](const pool& p, int of, int with) {
      bool shared = false;
      detail::require_cuda(api_, api_.share_pool(p.memory, of, with, shared), "cudaMemPoolSetAccess", "copies", of);
      return shared;
    };
    for (int peer = 0; peer < count() && made->has_memory; ++peer)
      if (const auto& other = at(pools_, peer)) {
        const bool there = share(*made, device, peer), back = share(*other, peer, device);
        at(shared_, device * count() + peer) = at(shared_, peer * count() + device) = there && back;
      }
    if (made->has_memory) made->frees = &make_stream(device, "what is freed");
    own = std::move(made);
  }
  stream_type& make_stream(int device, const std::string& name, typename Api::stream adopted = {}, bool urgent = false) {
    return streams_.emplace_back(api_, device, name, options_.records, options_.deadline_s, at(lookouts_, device).get(), adopted,
                                 urgent);
  }
  /// Pinned memory makes a context on the device that is current, which may be one that nobody uses.
  [[nodiscard]] cuda_device_scope<Api> any_in_use() const {
    const std::lock_guard lock(guard_);
    for (int d = 0; d < count(); ++d)
      if (at(pools_, d)) return {api_, d, "pinned memory"};
    return {};
  }
  static bool goes_back_to_graph(pool& p, void* memory) {
    if (!p.has_captured) return false;
    const std::lock_guard lock(p.captured_guard);
    const auto found = p.captured.find(memory);
    if (found == p.captured.end()) return false;
    if (found->second) found->second->put_back(memory);
    return true;
  }
  static void count_free(pool& p, std::size_t bytes) {
    const std::lock_guard lock(p.guard);
    p.use.now_bytes -= bytes;
  }

  Api api_;
  cuda_options options_;
  cuda_adoption<Api> adopted_;
  detail::pinned_pool<Api> pinned_;
  std::vector<std::unique_ptr<pool>> pools_;                     ///< by device; null: not used yet
  std::vector<std::unique_ptr<detail::cuda_lookout>> lookouts_;  ///< by device
  std::vector<char> shared_;                                     ///< by device and peer
  mutable std::mutex guard_;                                     ///< of pools_, shared_, streams_ and the start of watchdog_
  std::deque<stream_type> streams_;
  std::mutex held_guard_;
  std::vector<held> held_;
  std::jthread watchdog_;
};

}  // namespace hetsched
