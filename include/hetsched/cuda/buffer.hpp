// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// Owns memory of a GPU or pinned memory of the host, or is a view of someone else's; knows at run time which, when what was
/// written there is ready, and who still reads it. What tensors of CUDA layers are made of. Work of the queue that it was made on
/// needs no marks. Whoever uses it on several queues puts the work between begin_read and end_read, or begin_write and end_write;
/// then it can be read, written, handed to other threads and destroyed at any time: all that waits for the others' work is
/// queues.
template <cuda_api Api>
class cuda_buffer {
  using queue = cuda_queue<Api>;
  using moment = cuda_moment<Api>;

 public:
  cuda_buffer() = default;
  /// Of any value; to be used behind what has been enqueued on `home`.
  /// Throws: cuda_error where there is not enough memory.
  cuda_buffer(const queue& home, std::size_t bytes)
      : home_(home), data_(bytes == 0 ? nullptr : home.devices().allocate(home, bytes)), bytes_(bytes) {}
  /// Memory that is someone else's, such as a part of an arena, of home's device (pinned, if that is the host), as if it had been
  /// made on `home`. `owner` is kept until nobody uses it any more; null: whoever has it waits for that himself.
  [[nodiscard]] static cuda_buffer view(const queue& home, void* memory, std::size_t bytes,
                                        std::shared_ptr<const void> owner = {}) {
    cuda_buffer made;
    made.home_ = home;
    made.data_ = bytes == 0 ? nullptr : memory;
    made.bytes_ = bytes;
    made.owner_ = std::move(owner);
    made.is_view_ = true;
    return made;
  }
  cuda_buffer(cuda_buffer&& other) noexcept { swap(other); }
  cuda_buffer& operator=(cuda_buffer&& other) noexcept {
    cuda_buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~cuda_buffer() {
    if (!data_ || (is_view_ && !owner_)) return;
    try {
      reads_.push_back(written_);
      if (is_view_)
        home_.devices().keep(home_, std::move(owner_), std::move(reads_));
      else
        home_.devices().free(home_, data_, bytes_, reads_);
    } catch (const std::exception&) {
      // The device has failed, and the next call says so; or there is no memory to say who uses this, which is not freed then.
      detail::never_end(std::move(owner_));
    }
  }
  void swap(cuda_buffer& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(written_, other.written_);
    std::swap(writes_, other.writes_);
    std::swap(reads_, other.reads_);
    std::swap(owner_, other.owner_);
    std::swap(is_view_, other.is_view_);
  }
  friend void swap(cuda_buffer& a, cuda_buffer& b) noexcept { a.swap(b); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int device() const { return data_ ? home_.device() : -1; }  ///< -1: the host
  [[nodiscard]] memory_space space() const { return device() < 0 ? memory_space::pinned : memory_space::device; }

  /// What is enqueued on q from now on finds what was written. A queue of the host waits.
  void begin_read(const queue& q) const { q.wait(written_); }
  /// Nobody writes before `end`, a moment of q.
  void end_read(const queue& q, const moment& end) const {
    if (q.on_host()) return;
    const auto own = std::find_if(reads_.begin(), reads_.end(), [&](const moment& m) { return m.stream() == end.stream(); });
    if (own != reads_.end())
      *own = end;
    else
      reads_.push_back(end);
  }
  /// What is enqueued on q from now on begins behind all that reads or writes here.
  void begin_write(const queue& q) {
    q.wait(written_);
    for (const auto& m : reads_) q.wait(m);
  }
  /// What is here is ready at `end`, a moment of q.
  void end_write(const queue&, const moment& end) {
    written_ = end;
    ++writes_;
    reads_.clear();
  }
  /// How often end_write has been called.
  [[nodiscard]] std::uint64_t writes() const { return writes_; }
  /// Says that the host reads or writes it now, to an Api that asks for that.
  void host_access(bool writes) const {
    if constexpr (requires(const Api& api) { api.host_access(data_, bytes_, writes); })
      if (data_) home_.devices().api().host_access(data_, bytes_, writes);
  }
  /// Whether what was written is there.
  [[nodiscard]] bool is_ready() const { return written_.reached(); }
  /// Whether nobody uses it any more.
  [[nodiscard]] bool is_idle() const {
    return is_ready() && std::all_of(reads_.begin(), reads_.end(), [](const moment& m) { return m.reached(); });
  }

 private:
  queue home_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  moment written_;
  std::uint64_t writes_ = 0;
  mutable std::vector<moment> reads_;  ///< the last of each queue
  std::shared_ptr<const void> owner_;
  bool is_view_ = false;
};

}  // namespace hetsched
