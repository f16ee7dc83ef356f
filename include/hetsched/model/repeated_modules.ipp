// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/repeated_modules.hpp>

namespace hetsched::detail {

// Equal sub-sequences have equal fingerprints: polynomials modulo two primes below 2^31. Unequal ones collide with a chance
// of
// n^2 / 2^62; that would give a module whose occurrences differ, on which nobody relies.
class fingerprints {
 public:
  explicit fingerprints(std::span<const int> tokens) : sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
    powers_[0] = {1, 1};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<std::uint64_t>(tokens[i]) + 1;
      for (std::size_t k = 0; k < 2; ++k) {
        sums_[i + 1][k] = (sums_[i][k] * base[k] + token) % prime[k];
        powers_[i + 1][k] = powers_[i][k] * base[k] % prime[k];
      }
    }
  }

  [[nodiscard]] std::uint64_t operator()(int first, int length) const {
    const auto f = as_size(first), n = as_size(length);
    std::uint64_t part[2];
    for (std::size_t k = 0; k < 2; ++k)
      part[k] = (sums_[f + n][k] + prime[k] - sums_[f][k] * powers_[n][k] % prime[k]) % prime[k];
    return part[0] << 32 | part[1];
  }

 private:
  static constexpr std::uint64_t prime[2] = {2147483647, 2147483629};
  static constexpr std::uint64_t base[2] = {1000003, 972663749};
  struct residues {
    std::uint64_t value[2] = {0, 0};
    std::uint64_t& operator[](std::size_t k) { return value[k]; }
    const std::uint64_t& operator[](std::size_t k) const { return value[k]; }
  };
  std::vector<residues> sums_, powers_;
};

// How many of the ascending starts a left-to-right choice without overlap takes, which is as many as any; calls take(start).
template <class Starts, class Take>
int without_overlap(const Starts& starts, int length, Take take) {
  int count = 0, free_from = 0;
  for (const int s : starts) {
    if (count > 0 && s < free_from) continue;
    take(s);
    free_from = s + length;
    ++count;
  }
  return count;
}

// The search. A window is a shortest candidate: from one intensive operator to the least-th one at or after it. Every candidate
// holds a window that is at least as frequent, so the most frequent windows are found first and then made longer.
class module_search {
 public:
  module_search(const operator_sequence& given, int least)
      : sequence_(given), least_(least), print_(given.tokens), segments_{{0, given.size()}} {
    for (int i = 0; i < given.size(); ++i)
      if (at(given.intensive, i) != 0) intensive_.push_back(i);
    if (static_cast<int>(intensive_.size()) < least_) return;
    alive_.assign(intensive_.size() - as_size(least_) + 1, 1);
    for (int w = 0; w < static_cast<int>(alive_.size()); ++w) candidates_.emplace_back(print_(start_of(w), window_length(w)), w);
    std::sort(candidates_.begin(), candidates_.end());
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (i == 0 || candidates_[i].first != candidates_[i - 1].first) groups_.emplace_back();
      groups_.back().push_back(candidates_[i].second);
    }
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) queue(rank_of(g));
  }

  [[nodiscard]] std::vector<repeated_module> run() {
    std::vector<repeated_module> found;
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      const auto top = queue_.back();
      queue_.pop_back();
      // Counts only fall and first windows only move right: what was queued is a bound.
      if (const auto now = rank_of(top.second); now != top) {
        queue(now);
        continue;
      }
      auto module = longest(top.second, count_of(top));
      for (const int s : module.starts) take(s, module.length);
      found.push_back(std::move(module));
      queue(rank_of(top.second));
    }
    return found;
  }

 private:
  // A group's place in the queue: its count, then how far left its first window stands, then its number.
  using rank = std::pair<std::uint64_t, int>;

  [[nodiscard]] static int count_of(const rank& r) { return static_cast<int>(r.first >> 32); }

  [[nodiscard]] int start_of(int window) const { return at(intensive_, window); }
  [[nodiscard]] int window_length(int window) const { return start_of(window + least_ - 1) + 1 - start_of(window); }
  [[nodiscard]] std::vector<int>& windows_of(int group) { return at(groups_, group); }

  rank rank_of(int group) {
    auto& windows = windows_of(group);
    std::erase_if(windows, [&](int w) { return at(alive_, w) == 0; });
    if (windows.empty()) return {0, group};
    starts_.clear();
    for (const int w : windows) starts_.push_back(start_of(w));
    const int count = without_overlap(starts_, window_length(windows.front()), [](int) {});
    return {static_cast<std::uint64_t>(count) << 32 | (0xffffffffu - static_cast<std::uint32_t>(starts_.front())), group};
  }

  void queue(const rank& r) {
    if (count_of(r) < 2) return;
    queue_.push_back(r);
    std::push_heap(queue_.begin(), queue_.end());
  }

  // The longest sub-sequence around a window that is as frequent. Longer ones are no more frequent: doubling, then bisection.
  repeated_module longest(int group, int count) {
    repeated_module best;
    const auto grow = [&](int length) {
      auto found = around(group, count, length);
      const bool frequent = !found.starts.empty();
      if (frequent) best = std::move(found);
      return frequent;
    };
    int length = window_length(windows_of(group).front()), step = 1;
    grow(length);
    for (; grow(length + step); step *= 2) length += step;
    while (step > 1) {
      step /= 2;
      if (grow(length + step)) length += step;
    }
    return best;
  }

  // Of the sub-sequences of this length around a window that are as frequent: the one whose ends cross the fewest bytes, then the
  // rightmost, so that what follows a product stays with it; without starts if there is none.
  repeated_module around(int group, int count, int length) {
    candidates_.clear();
    const auto& windows = windows_of(group);
    const int window = window_length(windows.front());
    int next = 0;
    for (const int w : windows) {
      const auto& [first, last] = *std::prev(segments_.upper_bound(start_of(w)));
      next = std::max(next, std::max(first, start_of(w) + window - length));
      for (const int end = std::min(start_of(w), last - length); next <= end; ++next)
        candidates_.emplace_back(print_(next, length), next);
    }
    std::sort(candidates_.begin(), candidates_.end());
    repeated_module best{.length = length, .starts = {}};
    bytes_t fewest = 0;
    for (std::size_t i = 0, end = 0; i < candidates_.size(); i = end) {
      starts_.clear();
      for (; end < candidates_.size() && candidates_[end].first == candidates_[i].first; ++end)
        starts_.push_back(candidates_[end].second);
      if (static_cast<int>(starts_.size()) < count) continue;
      bytes_t bytes = 0;
      chosen_.clear();
      without_overlap(starts_, length, [&](int s) {
        bytes = checked_add(bytes, checked_add(cut(s), cut(s + length)));
        chosen_.push_back(s);
      });
      if (static_cast<int>(chosen_.size()) < count) continue;
      if (best.starts.empty() || bytes < fewest || (bytes == fewest && chosen_.front() > best.starts.front())) {
        best.starts = chosen_;
        fewest = bytes;
      }
    }
    return best;
  }

  [[nodiscard]] bytes_t cut(int before) const { return at(sequence_.cut_bytes, before); }

  // Splits the segment around an occurrence, and ends the windows that reach into it.
  void take(int first, int length) {
    const auto segment = std::prev(segments_.upper_bound(first));
    const int end = segment->second;
    segment->second = first;
    if (first + length < end) segments_.emplace(first + length, end);
    if (segment->first == first) segments_.erase(segment);
    const auto inside = static_cast<int>(std::lower_bound(intensive_.begin(), intensive_.end(), first) - intensive_.begin());
    for (int w = std::max(0, inside - least_ + 1); w < static_cast<int>(alive_.size()) && start_of(w) < first + length; ++w)
      at(alive_, w) = 0;
  }

  const operator_sequence& sequence_;
  int least_;
  fingerprints print_;
  std::map<int, int> segments_;           // what is no module yet: first to last
  std::vector<int> intensive_;            // positions
  std::vector<char> alive_;               // by window, which is named by its first intensive operator
  std::vector<std::vector<int>> groups_;  // equal windows
  std::vector<rank> queue_;               // a heap
  std::vector<int> starts_, chosen_;
  std::vector<std::pair<std::uint64_t, int>> candidates_;
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<repeated_module> find_repeated_modules(const operator_sequence& sequence, int least) {
  HETSCHED_EXPECTS(sequence.intensive.size() == sequence.tokens.size() &&
                   sequence.cut_bytes.size() == sequence.tokens.size() + 1);
  if (least < 1) throw input_error("a repeated module must have at least 1 compute-intensive operator");
  return detail::module_search(sequence, least).run();
}

}  // namespace hetsched
