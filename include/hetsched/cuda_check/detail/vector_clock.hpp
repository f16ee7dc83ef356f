// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/machine_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hetsched::detail {

/// What has happened before: of every actor (a stream, a thread) how many steps.
class vector_clock {
 public:
  [[nodiscard]] std::uint32_t of(std::size_t actor) const { return actor < steps_.size() ? steps_[actor] : 0; }
  void step(std::size_t actor) {
    if (actor >= steps_.size()) steps_.resize(actor + 1);
    ++steps_[actor];
  }
  void join(const vector_clock& other) {
    if (steps_.size() < other.steps_.size()) steps_.resize(other.steps_.size());
    for (std::size_t k = 0; k < other.steps_.size(); ++k) steps_[k] = std::max(steps_[k], other.steps_[k]);
  }

 private:
  std::vector<std::uint32_t> steps_;
};

/// Who has read and written a block of memory, as far as that can still be raced with.
class access_history {
 public:
  struct access {
    std::size_t first = 0, last = 0;  ///< bytes [first, last)
    bool writes = false;
    std::size_t actor = 0;
    std::uint32_t step = 0;
    const char* what = "";
  };

  /// Notes an access at time `now`. Returns what it races with, "" if nothing.
  std::string note(const access& a, const vector_clock& now) {
    std::string race;
    std::erase_if(accesses_, [&](const access& old) {
      if (old.last <= a.first || a.last <= old.first) return false;
      const bool before = old.step <= now.of(old.actor);
      if (!before && (old.writes || a.writes))
        race = std::string(a.what) + (a.writes ? " writes" : " reads") + " what " + old.what +
               (old.writes ? " writes" : " reads") + ", in no order";
      // What is covered and comes before is raced with by whoever races with this one.
      return before && a.first <= old.first && old.last <= a.last && (a.writes || (!old.writes && old.actor == a.actor));
    });
    accesses_.push_back(a);
    return race;
  }

 private:
  std::vector<access> accesses_;
};

}  // namespace hetsched::detail
