// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/buffer_test.cpp.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/queue.hpp>

namespace hetsched::detail {

/// Pinned host memory in blocks of powers of two, each pinned once and used again: pinning waits for the devices. Any thread may
/// use it.
template <cuda_api Api>
class pinned_pool {
 public:
  explicit pinned_pool(Api api) : api_(std::move(api)) {}
  pinned_pool(const pinned_pool&) = delete;
  pinned_pool& operator=(const pinned_pool&) = delete;
  ~pinned_pool() {
    for (void* const p : all_)
      if (p) (void)api_.free_pinned(p);
  }

  /// Throws: cuda_error where there is no more.
  [[nodiscard]] void* allocate(std::size_t bytes) {
    const auto k = class_of(bytes);
    std::unique_lock lock(guard_);
    // Each block that is free now is asked for once, without the lock: others may allocate and free meanwhile.
    for (auto left = free_[k].size(); left > 0 && !free_[k].empty(); --left) {
      auto oldest = std::move(free_[k].front());
      free_[k].pop_front();
      lock.unlock();
      const bool idle = std::all_of(oldest.uses.begin(), oldest.uses.end(), [](const auto& m) { return m.reached(); });
      if (idle) {
        if constexpr (requires { api_.taken_again(oldest.memory); }) api_.taken_again(oldest.memory);
        return oldest.memory;
      }
      lock.lock();
      free_[k].push_back(std::move(oldest));
    }
    const auto number = all_.size();
    all_.push_back(nullptr);
    lock.unlock();
    const auto size = std::size_t{1} << k;
    void* made = nullptr;
    require_cuda(api_, api_.allocate_pinned(made, size), "cudaHostAlloc", std::to_string(size) + " bytes of pinned memory", -1);
    lock.lock();
    all_[number] = made;
    pinned_bytes_ += size;
    return made;
  }
  /// Gives back what bytes were allocated for; it is used again when these moments have been reached.
  void free(void* memory, std::size_t bytes, std::vector<cuda_moment<Api>> uses) {
    const std::lock_guard lock(guard_);
    free_[class_of(bytes)].push_back({memory, std::move(uses)});
  }
  [[nodiscard]] std::size_t bytes() const {
    const std::lock_guard lock(guard_);
    return pinned_bytes_;
  }

 private:
  struct block {
    void* memory;
    std::vector<cuda_moment<Api>> uses;
  };
  /// The power of two.
  static std::size_t class_of(std::size_t bytes) { return as_size(std::bit_width(std::max<std::size_t>(bytes, 64) - 1)); }

  Api api_;
  mutable std::mutex guard_;
  std::array<std::deque<block>, 64> free_;  ///< by size, the longest free first
  std::vector<void*> all_;                  ///< null: it could not be pinned
  std::size_t pinned_bytes_ = 0;
};

}  // namespace hetsched::detail
