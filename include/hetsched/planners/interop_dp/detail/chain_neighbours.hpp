// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/chain_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// Stages in a row on one subcluster with one placement.
struct chain_part {
  int subcluster = 0;
  int stages = 0;      ///< 0: not decided
  int placement = -1;  ///< of each; -1: not decided
  friend constexpr bool operator==(const chain_part&, const chain_part&) = default;
};

/// Visits the neighbours of a chain of parts, in which the parts of a subcluster follow each other.
template <class Visit>
class chain_neighbours {
 public:
  chain_neighbours(const interop_problem& problem, const std::vector<chain_part>& from, bool use_all, Visit visit)
      : problem_(problem), from_(from), use_all_(use_all), visit_(std::move(visit)), parts_(from) {}

  /// One stage more or less, of one part or of two against each other; another placement, on as many devices; two subclusters
  /// exchanged; a part left out; a subcluster put in.
  void run() {
    for (std::size_t i = 0; i < from_.size(); ++i) {
      resize(i);
      replace(i, from_[i].stages * width(from_[i].placement), from_[i].stages);
      parts_ = from_;
      if (from_.size() == 1) continue;
      parts_.erase(place(i));
      offer();
      parts_ = from_;
    }
    exchange_subclusters();
    put_in_subclusters();
  }

  /// The first or the last stages of a part get another placement: one stage, or as many as keep the devices, in place of one;
  /// and two parts of a subcluster are exchanged.
  void run_unlike() {
    for (std::size_t i = 0; i < from_.size(); ++i) {
      if (i > 0 && from_[i - 1].subcluster == from_[i].subcluster) {
        std::swap(parts_[i - 1], parts_[i]);
        offer();
        parts_ = from_;
      }
      if (from_[i].stages < 2) continue;
      for (const std::size_t after : {std::size_t{0}, std::size_t{1}}) {
        parts_ = from_;
        --parts_[i].stages;
        parts_.insert(place(i + after), chain_part{.subcluster = from_[i].subcluster});
        replace(i + after, width(from_[i].placement), 1);
      }
      parts_ = from_;
    }
  }

 private:
  [[nodiscard]] int width(int placement) const { return at(problem_.placements, placement).devices; }
  [[nodiscard]] auto place(std::size_t i) { return parts_.begin() + static_cast<std::ptrdiff_t>(i); }

  // Chains that take more devices than there are, or fewer where all are to be used, are none; nor those in which a subcluster
  // returns, or that have a part in two.
  void offer() {
    taken_.assign(problem_.devices.size(), 0);
    int stages = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& p = parts_[i];
      auto& taken = at(taken_, p.subcluster);
      const bool follows = i > 0 && parts_[i - 1].subcluster == p.subcluster;
      if (p.stages < 1 || (taken > 0 && !follows) || (follows && parts_[i - 1].placement == p.placement)) return;
      taken += p.stages * width(p.placement);
      stages += p.stages;
    }
    for (std::size_t k = 0; k < taken_.size(); ++k)
      if (taken_[k] > problem_.devices[k] || (use_all_ && taken_[k] < problem_.devices[k])) return;
    if (stages <= problem_.layers) visit_(std::as_const(parts_));
  }

  void resize(std::size_t i) {
    for (const int more : {1, -1}) {
      parts_[i].stages += more;
      offer();
      for (std::size_t j = 0; j < from_.size(); ++j) {
        if (j == i) continue;
        parts_[j].stages -= more;
        offer();
        parts_[j].stages += more;
      }
      parts_[i].stages -= more;
    }
  }

  // The part with each placement of its subcluster, on about as many devices, on all that others leave, and in as many stages.
  void replace(std::size_t i, int devices, int stages) {
    const int k = parts_[i].subcluster;
    int left = at(problem_.devices, k);
    for (std::size_t j = 0; j < parts_.size(); ++j)
      if (j != i && parts_[j].subcluster == k) left -= parts_[j].stages * width(parts_[j].placement);
    for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
      const auto& placed = problem_.placements[p];
      if (placed.subcluster != k || placed.dominated) continue;
      parts_[i].placement = static_cast<int>(p);
      int before = 0, earlier = 0;
      for (const int n : {(devices + placed.devices / 2) / placed.devices, left / placed.devices, stages}) {
        if (n < 1 || n == before || n == earlier) continue;
        earlier = std::exchange(before, n);
        parts_[i].stages = n;
        if (parts_ != from_) offer();
      }
    }
  }

  // Where the parts of each subcluster begin, and the end.
  [[nodiscard]] std::vector<std::size_t> subclusters() const {
    std::vector<std::size_t> begins;
    for (std::size_t i = 0; i < from_.size(); ++i)
      if (i == 0 || from_[i - 1].subcluster != from_[i].subcluster) begins.push_back(i);
    begins.push_back(from_.size());
    return begins;
  }

  void exchange_subclusters() {
    const auto begins = subclusters();
    for (std::size_t a = 0; a + 1 < begins.size(); ++a)
      for (std::size_t b = a + 1; b + 1 < begins.size(); ++b) {
        parts_.clear();
        const auto add = [&](std::size_t first, std::size_t last) {
          for (; first < last; ++first) parts_.push_back(from_[first]);
        };
        add(0, begins[a]);
        add(begins[b], begins[b + 1]);
        add(begins[a + 1], begins[b]);
        add(begins[a], begins[a + 1]);
        add(begins[b + 1], from_.size());
        offer();
      }
    parts_ = from_;
  }

  void put_in_subclusters() {
    const auto begins = subclusters();
    for (int k = 0; k < static_cast<int>(problem_.devices.size()); ++k) {
      if (std::any_of(from_.begin(), from_.end(), [&](const auto& p) { return p.subcluster == k; })) continue;
      for (const auto i : begins) {
        parts_ = from_;
        parts_.insert(place(i), chain_part{.subcluster = k});
        replace(i, at(problem_.devices, k) / 2, 1);
      }
    }
    parts_ = from_;
  }

  const interop_problem& problem_;
  const std::vector<chain_part>& from_;
  bool use_all_;
  Visit visit_;
  std::vector<chain_part> parts_;
  std::vector<int> taken_;
};

/// Calls visit(parts) for chains of parts that differ little from these. `unlike`: also for those with unlike stages in one
/// subcluster.
/// Requires: the parts of a subcluster follow each other.
/// Complexity: O(N (N + P)) calls for N parts and P placements.
template <class Visit>
void for_each_neighbour(const interop_problem& problem, const std::vector<chain_part>& from, bool use_all, bool unlike,
                        Visit visit) {
  chain_neighbours<Visit> all(problem, from, use_all, std::move(visit));
  all.run();
  if (unlike) all.run_unlike();
}

}  // namespace hetsched::detail
