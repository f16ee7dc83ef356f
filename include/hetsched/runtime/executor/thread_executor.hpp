// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hetsched {

/// Runs independent parts of a search on `threads` host threads, the caller's among them; for interop_options::parallel.
/// Threads live for one call only. The first exception that a part throws is rethrown when all have ended.
class thread_executor {
 public:
  explicit thread_executor(int threads) : threads_(threads) {}

  void operator()(int count, const std::function<void(int)>& body) const {
    std::atomic<int> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto work = [&] {
      for (int i; (i = next++) < count;) try {
          body(i);
        } catch (...) {
          const std::lock_guard lock(guard);
          if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::jthread> helpers;
    for (int t = 1; t < threads_ && t < count; ++t) helpers.emplace_back(work);
    work();
    helpers.clear();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  int threads_;
};

}  // namespace hetsched
