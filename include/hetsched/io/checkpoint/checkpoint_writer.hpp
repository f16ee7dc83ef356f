// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/state_slice.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>

namespace hetsched {

/// Writes a rank's share of checkpoints while the training goes on: from a copy of its state, on a thread of its own. It writes
/// one at a time, so the memory that it takes is that of one copy, which it keeps. What fails is thrown by the next call that
/// waits, or asks whether it is done.
/// Example, between steps:
///   checkpoint_writer writer("state");                               // once
///   writer.begin(step, comm.rank(), trainer.state(true));            // the training may go on
///   ...
///   const double mine = writer.is_done();                            // all ranks tell; once all are done, rank 0:
///   writer.begin_commit(step, comm.ranks());
class checkpoint_writer {
 public:
  explicit checkpoint_writer(std::string folder) : folder_(std::move(folder)) {}
  checkpoint_writer(checkpoint_writer&&) = delete;
  /// Waits; what fails then is lost.
  ~checkpoint_writer() = default;

  /// Copies the slices, then writes them as write_checkpoint_part does. Waits for what is under way first.
  /// Throws: what that has thrown; input_error for slices that do not lie in their tensors.
  /// Complexity: O(bytes) before it returns.
  void begin(std::int64_t step, int part, std::span<const state_slice> slices) {
    wait();
    copy(slices);
    under_way_ = std::async(std::launch::async, [this, step, part] { write_checkpoint_part(folder_, step, part, slices_); });
  }

  /// Commits as commit_checkpoint, then prunes as prune_checkpoints if `keep` > 0. Waits for what is under way first.
  /// Requires: one rank calls it, after all have written.
  void begin_commit(std::int64_t step, int parts, std::map<std::string, std::string> info = {}, int keep = 0) {
    wait();
    under_way_ = std::async(std::launch::async, [this, step, parts, keep, notes = std::move(info)] {
      commit_checkpoint(folder_, step, parts, notes);
      if (keep > 0) prune_checkpoints(folder_, keep, step);
    });
  }

  /// Whether nothing is under way. Throws: what that has thrown.
  [[nodiscard]] bool is_done() {
    if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    wait();
    return true;
  }
  /// Returns when nothing is under way. Throws: what that has thrown.
  void wait() {
    if (under_way_.valid()) under_way_.get();
  }
  /// Of the copy.
  [[nodiscard]] std::size_t bytes() const { return copy_.size(); }

 private:
  void copy(std::span<const state_slice> slices);

  std::string folder_;
  std::vector<std::byte> copy_;
  std::vector<state_slice> slices_;  ///< of the copy
  std::future<void> under_way_;      ///< the last member: its end waits for the thread, which uses the others
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/checkpoint/checkpoint_writer.ipp>
#endif
