// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>

namespace hetsched::detail {

/// Every pipeline of a problem so small that all can be listed, by the devices that it uses.
/// A box is a number of devices of each subcluster, counted in mixed radix.
class listed_pipelines {
 public:
  struct listed {
    std::vector<interop_stage> stages;
    double latency = 0, slowest = 0;              // the longest of forwards, backwards and transfers
    std::vector<std::pair<double, double>> busy;  // of each stage: the way there and back before it, and its own time

    /// No schedule ends so many microbatches sooner.
    [[nodiscard]] double least_s(int microbatches) const {
      double most = latency + (microbatches - 1) * slowest;
      for (const auto& [before, own] : busy) most = std::max(most, before + microbatches * own);
      return most;
    }
  };

  listed_pipelines(const interop_problem& problem, const stage_prices& table) : problem_(problem), table_(table) {
    for (const int d : problem.devices) boxes_ = std::min<std::int64_t>(boxes_ * (d + 1), std::int64_t{1} << 40);
  }

  /// Lists all. Returns false if there are more than `most`, or many more beginnings that lead nowhere.
  [[nodiscard]] bool list(std::size_t most) {
    if (more_pairs_than(most)) return false;
    most_ = most;
    by_box_.resize(as_size(boxes_));
    used_.assign(problem_.devices.size(), 0);
    listed next;
    return extend(next, 0, 0);
  }

  /// May be beyond any list.
  [[nodiscard]] std::int64_t boxes() const { return boxes_; }
  [[nodiscard]] const std::vector<listed>& of(int box) const { return at(by_box_, box); }
  [[nodiscard]] int box_of(const std::vector<int>& devices) const {
    int box = 0;
    for (std::size_t k = devices.size(); k-- > 0;) box = box * (problem_.devices[k] + 1) + devices[k];
    return box;
  }
  [[nodiscard]] std::vector<int> devices_of(int box) const {
    std::vector<int> devices;
    for (const int d : problem_.devices) {
      devices.push_back(box % (d + 1));
      box /= d + 1;
    }
    return devices;
  }

 private:
  // Whether there are more pipelines of two stages.
  [[nodiscard]] bool more_pairs_than(std::size_t most) const {
    const auto& all = problem_.placements;
    std::size_t count = 0;
    for (int cut = 1; cut < problem_.layers; ++cut) {
      const auto holding = [&](int first, int last) {
        std::vector<const interop_placement*> found;
        for (std::size_t p = 0; p < all.size(); ++p)
          if (!all[p].dominated && table_.memory(static_cast<int>(p), first, last, 1) <= all[p].capacity)
            found.push_back(&all[p]);
        return found;
      };
      const auto seconds = holding(cut, problem_.layers);
      for (const auto* a : holding(0, cut))
        for (const auto* b : seconds) {
          const int taken = a->devices + (a->subcluster == b->subcluster ? b->devices : 0);
          if (taken > at(problem_.devices, a->subcluster)) continue;
          const int kind = problem_.kind_before(cut);
          const auto &apart = problem_.transfer(a->transfer_class, b->transfer_class)[kind],
                     &near = problem_.near_transfer(a->transfer_class, b->transfer_class)[kind];
          if (std::min(apart.round_trip, near.round_trip) < infinity && ++count > most) return true;
        }
    }
    return false;
  }

  [[nodiscard]] bool extend(listed& line, int first, double before) {
    if (++beginnings_ > 20 * most_) return false;
    if (first == problem_.layers) {
      if (count_++ == most_) return false;
      at(by_box_, box_of(used_)).push_back(line);
      return true;
    }
    const int previous = line.stages.empty() ? -1 : line.stages.back().placement;
    for (std::size_t i = 0; i < problem_.placements.size(); ++i) {
      const int p = static_cast<int>(i);
      const auto& placed = problem_.placements[i];
      const auto k = as_size(placed.subcluster);
      if (placed.dominated || used_[k] + placed.devices > problem_.devices[k]) continue;
      double way = 0, slower = 0;
      if (previous >= 0) {
        const int a = at(problem_.placements, previous).transfer_class, b = placed.transfer_class;
        const int kind = problem_.kind_before(first);
        const auto &apart = problem_.transfer(a, b)[kind], &near = problem_.near_transfer(a, b)[kind];
        way = std::min(apart.round_trip, near.round_trip);
        slower = std::min(apart.occupied, near.occupied);
        if (!(way < infinity)) continue;
      }
      used_[k] += placed.devices;
      const double latency = line.latency, slowest = line.slowest;
      bool go = true;
      for (int last = first + 1; go && last <= problem_.layers; ++last) {
        if (table_.memory(p, first, last, 1) > placed.room + 16) continue;
        const double t = table_.time(p, first, last), forward = table_.forward(p, first, last);
        line.stages.push_back({p, {first, last}});
        line.busy.push_back({before + way, t});
        line.latency = latency + way + t;
        line.slowest = std::max({slowest, forward, t - forward, slower});
        go = extend(line, last, before + way + t);
        line.stages.pop_back();
        line.busy.pop_back();
      }
      line.latency = latency;
      line.slowest = slowest;
      used_[k] -= placed.devices;
      if (!go) return false;
    }
    return true;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  std::int64_t boxes_ = 1;
  std::size_t most_ = 0, count_ = 0, beginnings_ = 0;
  std::vector<std::vector<listed>> by_box_;
  std::vector<int> used_;
};

/// A pipeline of a box, and its microbatches.
struct share_of_batch {
  int box = 0, microbatches = 0;
};

/// The least time in which pipelines on a box of devices or less do so many microbatches, if they share nothing: a dynamic
/// program over boxes, whose cells start as lower bounds and are made exact where that matters.
class counted_batches {
 public:
  /// `iteration(pipeline, microbatches)`: of one pipeline alone, exactly; infinity where memory lacks.
  using judge = function_ref<double(const listed_pipelines::listed&, int)>;

  counted_batches(const listed_pipelines& pipelines, int microbatches)
      : pipelines_(pipelines), microbatches_(microbatches), cells_(row() * as_size(pipelines.boxes())) {
    for (int box = 0; box < pipelines.boxes(); ++box)
      for (int m = 1; m <= microbatches; ++m) {
        auto& c = cells_[index(box, m)];
        for (const auto& line : pipelines.of(box)) c.least = std::min(c.least, line.least_s(m));
      }
    solve();
  }

  /// The least time, exactly; infinity if there is none. `go_on` false ends it: then it is a lower bound.
  [[nodiscard]] double exact(int box, judge iteration, function_ref<bool()> go_on) {
    for (;;) {
      const double now = least(box, microbatches_);
      if (!(now < infinity)) return now;
      bool known = true;
      for (const auto& share : split(box, microbatches_)) {
        auto& c = cells_[index(share.box, share.microbatches)];
        if (c.exact) continue;
        known = false;
        make_exact(c, share, iteration);
      }
      if (known || (go_on && !go_on())) return now;
      solve();
    }
  }

  [[nodiscard]] double least(int box, int microbatches) const {
    return microbatches == 0 ? 0 : best_[index(box, microbatches)].seconds;
  }

  /// The pipelines of the least time.
  [[nodiscard]] std::vector<share_of_batch> split(int box, int microbatches) const {
    std::vector<share_of_batch> shares;
    while (microbatches > 0) {
      const auto& b = best_[index(box, microbatches)];
      if (b.of.microbatches == 0) break;
      shares.push_back(b.of);
      box = b.rest;
      microbatches -= b.of.microbatches;
    }
    return shares;
  }

  /// Which pipeline of the box is the best for these microbatches.
  /// Requires: an exact cell.
  [[nodiscard]] const std::vector<interop_stage>& stages(share_of_batch share) const {
    return pipelines_.of(share.box)[cells_[index(share.box, share.microbatches)].which].stages;
  }

  /// The devices left of a box when another, which fits in it, is taken.
  [[nodiscard]] int rest_of(int box, int taken) const {
    auto devices = pipelines_.devices_of(box);
    const auto less = pipelines_.devices_of(taken);
    for (std::size_t k = 0; k < devices.size(); ++k) devices[k] -= less[k];
    return pipelines_.box_of(devices);
  }

 private:
  struct cell {
    double least = infinity;  // of one pipeline that uses the box whole
    std::size_t which = 0;
    bool exact = false;
  };
  struct best {
    double seconds = infinity;
    share_of_batch of;
    int rest = 0;
  };

  [[nodiscard]] std::size_t row() const { return as_size(microbatches_); }
  [[nodiscard]] std::size_t index(int box, int m) const { return as_size(box) * row() + as_size(m - 1); }

  void make_exact(cell& c, share_of_batch share, judge iteration) {
    const auto& lines = pipelines_.of(share.box);
    std::vector<std::pair<double, std::size_t>> by_bound;
    for (std::size_t i = 0; i < lines.size(); ++i) by_bound.push_back({lines[i].least_s(share.microbatches), i});
    std::sort(by_bound.begin(), by_bound.end());
    c.least = infinity;
    c.exact = true;
    for (const auto& [bound, i] : by_bound) {
      if (bound * (1 - tolerance::rounding) >= c.least) break;
      const double s = iteration(lines[i], share.microbatches);
      if (s >= c.least) continue;
      c.least = s;
      c.which = i;
    }
  }

  // Boxes inside others come before them.
  void solve() {
    best_.assign(cells_.size(), {});
    for (int box = 1; box < pipelines_.boxes(); ++box) {
      const auto devices = pipelines_.devices_of(box);
      for (int part = 1; part <= box; ++part) {
        const auto taken = pipelines_.devices_of(part);
        if (!std::equal(taken.begin(), taken.end(), devices.begin(), [](int a, int b) { return a <= b; })) continue;
        const int rest = rest_of(box, part);
        for (int own = 1; own <= microbatches_; ++own) {
          const double first = cells_[index(part, own)].least;
          if (!(first < infinity)) continue;
          for (int m = own; m <= microbatches_; ++m) {
            auto& b = best_[index(box, m)];
            const double s = std::max(first, least(rest, m - own));
            if (s < b.seconds) b = {s, {part, own}, rest};
          }
        }
      }
    }
  }

  const listed_pipelines& pipelines_;
  int microbatches_;
  std::vector<cell> cells_;
  std::vector<best> best_;
};

}  // namespace hetsched::detail
