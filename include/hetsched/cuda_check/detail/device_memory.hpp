// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/machine_test.cpp.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include <hetsched/cuda_check/detail/vector_clock.hpp>

namespace hetsched::detail {

/// The memory of one device: addresses that the host can name but not touch, and behind each a byte that kernels and copies
/// reach by way of backing(). What was never written or is freed holds rubbish.
class device_memory {
 public:
  static constexpr std::size_t size = std::size_t{64} << 20;
  static constexpr unsigned char rubbish = 0xd7;

  device_memory() : named_(map(PROT_NONE)), held_(map(PROT_READ | PROT_WRITE)) {}
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() {
    munmap(named_, size);
    munmap(held_, size);
  }

  struct block {
    std::size_t first = 0, bytes = 0;  ///< in this memory
    bool alive = true;
    const void* freed_on = nullptr;  ///< the stream that may use it again at once
    bool freed = false;              ///< the stream has come to that
    std::size_t use = 0;             ///< how often it was allocated before
    access_history history = {};
  };

  [[nodiscard]] bool contains(const void* p) const { return p >= named_ && p < named_ + size; }
  [[nodiscard]] unsigned char* backing(const void* p) const { return held_ + (static_cast<const unsigned char*>(p) - named_); }

  [[nodiscard]] unsigned char* backing_of_all() const { return held_; }

  /// Takes memory that this stream has freed, or that is free, before any other: what is used too long is used by others.
  [[nodiscard]] void* allocate(std::size_t bytes, const void* stream) {
    const std::size_t whole = (bytes + 255) / 256 * 256;
    for (auto& [first, b] : blocks_)
      if (!b.alive && b.bytes >= whole && b.bytes <= 2 * whole && (b.freed_on == stream || b.freed)) {
        b = {.first = first, .bytes = b.bytes, .use = b.use + 1};
        return named_ + first;
      }
    if (next_ + whole > size) return nullptr;
    blocks_[next_] = {.first = next_, .bytes = whole};
    return named_ + std::exchange(next_, next_ + whole);
  }
  /// The block around an address, null if there is none.
  [[nodiscard]] block* find(const void* p) {
    const auto at = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - named_);
    auto above = blocks_.upper_bound(at);
    if (above == blocks_.begin()) return nullptr;
    block& b = std::prev(above)->second;
    return at < b.first + b.bytes ? &b : nullptr;
  }
  void fill_with_rubbish(const block& b) { std::memset(held_ + b.first, rubbish, b.bytes); }
  [[nodiscard]] std::size_t alive() const {
    std::size_t count = 0;
    for (const auto& [first, b] : blocks_) count += b.alive;
    return count;
  }

 private:
  static unsigned char* map(int protection) {
    void* const p = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<unsigned char*>(p);
  }
  unsigned char* named_;
  unsigned char* held_;
  std::size_t next_ = 0;
  std::map<std::size_t, block> blocks_;
};

}  // namespace hetsched::detail
