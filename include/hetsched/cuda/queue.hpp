// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

template <cuda_api Api>
class cuda_devices;

namespace detail {

template <cuda_api Api>
class captured_memory;

/// Of moments inside of captured work, from this one on: only queues that are captured with theirs can wait for them, until the
/// capture ends.
inline constexpr std::uint64_t captured_point = std::uint64_t{1} << 63;

/// What may end that for which queues of a device wait: see cuda_devices::keep_looking.
class cuda_lookout {
 public:
  /// An empty function: no more of `who`, and none is under way.
  /// Returns whether anyone asks.
  bool set(const void* who, std::function<void()> look) {
    const std::lock_guard lock(guard_);
    std::erase_if(asked_, [&](const auto& a) { return a.first == who; });
    if (look) asked_.emplace_back(who, std::move(look));
    any_ = !asked_.empty();
    return any_;
  }
  [[nodiscard]] bool any() const { return any_; }
  void look() {
    const std::lock_guard lock(guard_);
    for (const auto& [who, call] : asked_) call();
  }

 private:
  std::mutex guard_;
  std::vector<std::pair<const void*, std::function<void()>>> asked_;
  std::atomic<bool> any_ = false;
};

/// A stream with the events that mark points of its order. Event k % size marks the k-th record; it is used again only when that
/// has been reached, so the host is never more than `size` records ahead of the stream.
template <cuda_api Api>
class cuda_stream {
 public:
  /// `name`: in errors; `deadline_s`: how long the host waits for a point after the one before it; `lookout`: see
  /// cuda_devices::keep_looking; `adopted`: a stream of someone else's, which outlives this; null: one is made;
  /// `urgent`: before others, where it is made and its runtime has such streams.
  /// Throws: cuda_error; then nothing is left of it.
  cuda_stream(Api api, int device, std::string name, std::size_t records, double deadline_s, cuda_lookout* lookout = nullptr,
              typename Api::stream adopted = {}, bool urgent = false)
      : cuda_stream(std::move(api), device, std::move(name), deadline_s, lookout) {
    const auto current = make_current();
    stream_ = adopted;
    is_adopted_ = adopted != typename Api::stream{};
    is_urgent_ = urgent && !is_adopted_;
    if (!is_adopted_) create();
    is_made_ = true;
    events_.reserve(records);
    while (events_.size() < records) {
      typename Api::event made{};
      require(api_.create_event(made), "cudaEventCreateWithFlags");
      events_.push_back(made);
    }
  }
  cuda_stream(const cuda_stream&) = delete;
  cuda_stream& operator=(const cuda_stream&) = delete;
  ~cuda_stream() {
    if (!is_made_) return;
    (void)api_.synchronize(stream_);
    forget_captured();
    for (auto& e : events_) (void)api_.destroy_event(e);
    if (!is_adopted_) (void)api_.destroy_stream(stream_);
  }

  [[nodiscard]] const Api& api() const { return api_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] typename Api::stream stream() const { return stream_; }
  [[nodiscard]] bool is_adopted() const { return is_adopted_; }
  [[nodiscard]] bool is_urgent() const { return is_urgent_; }
  /// For the next one that uses it. Requires: nobody does.
  void rename(const std::string& name) { name_ = name; }

  /// Records the next point; waits until one is free.
  [[nodiscard]] std::uint64_t record() {
    if (capturing_) return record_captured();
    const auto next = recorded_.load(std::memory_order_relaxed) + 1;
    if (next > events_.size()) wait_for(next - events_.size());
    require(api_.record(event_of(next), stream_), "cudaEventRecord");
    recorded_.store(next, std::memory_order_release);
    return next;
  }
  /// What is enqueued from now on begins behind a point of another stream. Points of that stream that were waited for already
  /// cost nothing.
  void wait(const cuda_stream& other, std::uint64_t point) {
    if (&other == this) return;
    if (point >= captured_point) return wait_captured(other, point);
    auto seen = std::find_if(seen_.begin(), seen_.end(), [&](const auto& s) { return s.first == &other; });
    if (seen == seen_.end()) seen = seen_.insert(seen, {&other, 0});
    if (seen->second >= point) return;
    if (capturing_ && together_ && other.reached(point)) return;
    if (capturing_) refuse_captured("waits for work of " + other.name_);
    // If the event marks a later point by now, that has been enqueued already: waiting for it ends, too.
    require(api_.wait(stream_, other.event_of(point)), "cudaStreamWaitEvent");
    seen->second = point;
  }
  [[nodiscard]] bool reached(std::uint64_t point) const {
    if (point >= captured_point) refuse_captured("is asked for by the host");
    const bool is_past = recorded_.load(std::memory_order_acquire) >= point + events_.size();  // its event is in use again
    return is_ready(event_of(point)) || is_past;
  }
  /// Holds up the host until a point has been reached.
  /// Throws: cuda_error where the device has failed, or comes to no further point in time.
  void wait_for(std::uint64_t point) const {
    if (point >= captured_point) refuse_captured("is waited for by the host");
    if (reached(point)) return;
    const auto last = recorded_.load(std::memory_order_acquire);
    for (auto p = last > events_.size() ? last - events_.size() + 1 : 1; p <= point; ++p)
      for (const auto until = deadline_in(deadline_s_); !reached(p); pass_time())
        if (std::chrono::steady_clock::now() >= until)
          throw failure_of(api_, "cudaEventQuery", name_, device_, cuda_not_ready,
                           "no progress for " + std::to_string(deadline_s_) + " s");
  }
  void finish() {
    if (capturing_) refuse_captured("is waited for by the host");
    // A call that waits could not be ended where a peer is lost.
    if (lookout_ && lookout_->any()) wait_for(record());
    require(api_.synchronize(stream_), "cudaStreamSynchronize");
  }

  /// From here on the work is captured, and its buffers are those of `memory`. `together`: with other streams, which join.
  /// Returns the code of the call, as end_capture.
  [[nodiscard]] int begin_capture(captured_memory<Api>& memory, bool together = false) {
    const std::lock_guard lock(capture_guard_);
    const int code = api_.begin_capture(stream_);
    if (code == 0) start(memory, together ? this : nullptr);
    return code;
  }
  /// The same, in the capture of a stream that is captured together with others.
  /// Throws: cuda_error.
  void join_capture(captured_memory<Api>& memory, cuda_stream& first) {
    const auto begin = first.record();
    const std::lock_guard lock(capture_guard_);
    start(memory, &first);
    wait(first, begin);
  }
  /// Of a stream that has joined, or was to: its work ends before the capture does.
  /// Throws: cuda_error; it has left all the same.
  void leave_capture() {
    std::uint64_t end = 0;
    std::exception_ptr failure;
    try {
      if (capturing_) end = record();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(capture_guard_);
    auto* const first = std::exchange(together_, nullptr);
    capturing_ = nullptr;
    if (failure) std::rethrow_exception(failure);
    if (end >= captured_point) first->require(api_.wait(first->stream_, event_of_captured(end)), "cudaStreamWaitEvent");
  }
  /// Behind leave_capture of all others.
  template <class Graph>
  [[nodiscard]] int end_capture(Graph& made) {
    const std::lock_guard lock(capture_guard_);
    capturing_ = nullptr;
    together_ = nullptr;
    return api_.end_capture(stream_, made);
  }
  /// The same, where what was captured takes the place of a graph's work.
  template <class Graph>
  [[nodiscard]] int end_update(Graph& changed, bool& updated) {
    const std::lock_guard lock(capture_guard_);
    capturing_ = nullptr;
    together_ = nullptr;
    return api_.end_update(stream_, changed, updated);
  }
  /// For the thread that uses the stream; for others while they hold capture_guard().
  [[nodiscard]] captured_memory<Api>* capturing() const { return capturing_; }
  /// No capture begins or ends while it is held: other threads free on the stream what they got from here.
  [[nodiscard]] std::mutex& capture_guard() { return capture_guard_; }

  /// Throws: cuda_error unless the code is 0.
  void require(int code, const char* call) const { require_cuda(api_, code, call, name_, device_); }

  /// The stream's device is the calling thread's current one while the result lives.
  [[nodiscard]] cuda_device_scope<Api> make_current() const { return {api_, device_, name_}; }

 private:
  void create() {
    if constexpr (cuda_priority_api<Api>)
      if (is_urgent_) return require(api_.create_urgent_stream(stream_), "cudaStreamCreateWithPriority");
    require(api_.create_stream(stream_), "cudaStreamCreateWithFlags");
  }
  /// No stream yet: where a constructor that delegates to this one throws, the destructor cleans up.
  cuda_stream(Api api, int device, std::string name, double deadline_s, cuda_lookout* lookout)
      : api_(std::move(api)), device_(device), name_(std::move(name)), deadline_s_(deadline_s), lookout_(lookout) {}

  /// Throws: input_error.
  [[noreturn]] void refuse_captured(const std::string& what) const {
    throw input_error(name_ + ", captured in a CUDA graph, " + what + ": a graph is of the work of its own queues");
  }
  void start(captured_memory<Api>& memory, cuda_stream* first) {
    forget_captured();
    capturing_ = &memory;
    together_ = first;
    if (first) capture_ = first == this ? ++captures : first->capture_;
  }
  /// Points of a capture that others may wait for have an event each, as none of it is over before it ends.
  [[nodiscard]] std::uint64_t record_captured() {
    if (!together_) return captured_point;
    const auto current = make_current();
    typename Api::event made{};
    require(api_.create_event(made), "cudaEventCreateWithFlags");
    captured_.push_back(made);
    require(api_.record(made, stream_), "cudaEventRecord");
    return captured_point | capture_ << 32 | captured_.size();
  }
  void wait_captured(const cuda_stream& other, std::uint64_t point) {
    const bool is_now = together_ && other.together_ == together_ && (point & ~captured_point) >> 32 == capture_;
    if (!is_now) other.refuse_captured("is waited for by " + name_);
    require(api_.wait(stream_, other.event_of_captured(point)), "cudaStreamWaitEvent");
  }
  [[nodiscard]] typename Api::event event_of_captured(std::uint64_t point) const {
    return captured_[as_size(point & 0xffffffffu) - 1];
  }
  void forget_captured() {
    for (auto& e : std::exchange(captured_, {})) (void)api_.destroy_event(e);
  }
  void pass_time() const {
    if (lookout_ && lookout_->any()) lookout_->look();
    std::this_thread::yield();
  }
  [[nodiscard]] typename Api::event event_of(std::uint64_t point) const { return events_[point % events_.size()]; }
  [[nodiscard]] bool is_ready(typename Api::event e) const {
    const int code = api_.query(e);
    if (code != cuda_not_ready) require(code, "cudaEventQuery");
    return code == 0;
  }

  Api api_;
  int device_;
  std::string name_;
  double deadline_s_;
  bool is_made_ = false, is_adopted_ = false, is_urgent_ = false;
  cuda_lookout* lookout_;
  typename Api::stream stream_{};
  std::vector<typename Api::event> events_;
  std::atomic<std::uint64_t> recorded_{0};
  std::mutex capture_guard_;
  captured_memory<Api>* capturing_ = nullptr;
  static inline std::atomic<std::uint64_t> captures{0};
  cuda_stream* together_ = nullptr;            ///< the first of those that are captured together; null: alone
  std::uint64_t capture_ = 0;                  ///< number of the last one together
  std::vector<typename Api::event> captured_;  ///< of the points of the last capture together
  std::vector<std::pair<const cuda_stream*, std::uint64_t>> seen_;  ///< the last points that were waited for
};

}  // namespace detail

/// A point in the order of a queue; a default-constructed one has always been reached.
template <cuda_api Api>
class cuda_moment {
 public:
  cuda_moment() = default;
  cuda_moment(detail::cuda_stream<Api>* of, std::uint64_t point) : of_(of), point_(point) {}

  /// Throws: cuda_error where the device has failed.
  [[nodiscard]] bool reached() const { return !of_ || of_->reached(point_); }
  [[nodiscard]] detail::cuda_stream<Api>* stream() const { return of_; }
  [[nodiscard]] std::uint64_t point() const { return point_; }

 private:
  detail::cuda_stream<Api>* of_ = nullptr;
  std::uint64_t point_ = 0;
};

/// A device_queue that is a stream of a GPU or, as chosen at run time, the host: one type for the ranks of a pipeline on both. A
/// handle; queues live as long as the cuda_devices that made them. One thread at a time uses a queue; others may ask whether its
/// moments have been reached, or let queues of their own wait for them.
/// Layers ask on_host(): there they work at once, on tensors in pinned memory. On a device they enqueue on stream().
template <cuda_api Api>
class cuda_queue {
 public:
  using moment = cuda_moment<Api>;

  /// Of nothing, and equal to the host's in all else.
  cuda_queue() = default;
  /// Of the host.
  explicit cuda_queue(cuda_devices<Api>& all) : all_(&all) {}
  cuda_queue(cuda_devices<Api>& all, detail::cuda_stream<Api>& own) : all_(&all), own_(&own) {}

  [[nodiscard]] bool on_host() const { return own_ == nullptr; }
  [[nodiscard]] int device() const { return own_ ? own_->device() : -1; }
  [[nodiscard]] cuda_devices<Api>& devices() const { return *all_; }
  /// Requires: not on_host().
  [[nodiscard]] typename Api::stream stream() const { return own_->stream(); }
  [[nodiscard]] const Api& api() const { return own_->api(); }
  [[nodiscard]] detail::cuda_stream<Api>* own() const { return own_; }

  /// See device_queue.
  [[nodiscard]] moment record() const { return own_ ? moment(own_, own_->record()) : moment(); }
  void wait(const moment& m) const {
    if (!m.stream()) return;
    own_ ? own_->wait(*m.stream(), m.point()) : m.stream()->wait_for(m.point());
  }
  void finish() const {
    if (own_) own_->finish();
  }

  /// The queue's device is the calling thread's current one while the result lives; the host's queue changes nothing.
  [[nodiscard]] cuda_device_scope<Api> make_current() const { return own_ ? own_->make_current() : cuda_device_scope<Api>(); }

  friend bool operator==(const cuda_queue& a, const cuda_queue& b) { return a.own_ == b.own_; }

 private:
  cuda_devices<Api>* all_ = nullptr;
  detail::cuda_stream<Api>* own_ = nullptr;
};

}  // namespace hetsched
