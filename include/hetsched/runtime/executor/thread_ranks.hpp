// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace hetsched {

namespace detail {

/// The text of an exception.
[[nodiscard]] std::string text_of(const std::exception_ptr& failure);

[[nodiscard]] bool is_communication_error(const std::exception_ptr& failure);

}  // namespace detail

/// Calls body(Communicator&) on a thread per rank, with a copy of that rank's end; `ends[r]`: rank r's, of one communicator.
/// A rank that throws aborts the communicator, so that nobody waits for it.
/// Throws: when all have ended, the root cause: what the lowest rank threw that is no communication_error, else what the
/// lowest rank threw.
template <class Communicator, class Body>
void run_on_threads(std::vector<Communicator> ends, Body&& body) {
  std::vector<std::exception_ptr> failures(ends.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ends.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          Communicator own = ends[r];
          body(own);
        } catch (...) {
          failures[r] = std::current_exception();
          ends[r].abort("rank " + std::to_string(r) + " failed: " + detail::text_of(failures[r]));
        }
      });
  }
  for (const bool root : {true, false})
    for (const auto& f : failures)
      if (f && (!root || !detail::is_communication_error(f))) std::rethrow_exception(f);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/thread_ranks.ipp>
#endif
