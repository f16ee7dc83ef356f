// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/rented_path_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/planners/interop_dp/problem.hpp>
#include <hetsched/planners/parallel_pipelines/column.hpp>

namespace hetsched::detail {

/// What devices cost a pipeline, by subcluster.
struct device_prices {
  std::vector<double> rent;  // per second of a period
  std::vector<double> fee;   // once
};

/// The cheapest pipeline of a range of periods if devices cost rent: a shortest path over layers and classes of placements, which
/// knows of memory only that one microbatch in flight must fit, and of devices only their price. So it is a lower bound on what
/// the real ones cost.
template <class Table>
class rented_path {
 public:
  rented_path(const interop_problem& problem, const Table& table, const end_table& ends)
      : problem_(problem), table_(table), ends_(ends), row_(at(problem.layers + 1)), classes_(at(problem.classes())) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) open_.push_back(static_cast<int>(p));
    nearest_.resize(open_.size() * row_);
    near_low_.resize(nearest_.size());
    ends_of_.resize(row_);
    windows_.resize(Table::additive ? 4 * open_.size() * row_ : 0);
    rows_.resize(open_.size());
    way_.resize(at(problem.kinds) * classes_ * classes_);
    one_way_.resize(way_.size());
    cost_.resize(row_ * classes_);
    entry_.resize(row_ * classes_);
    by_.resize(row_ * classes_);
    from_.resize(row_ * classes_);
  }

  /// The least of latency + what the stage that holds layer `critical` adds at the end + the price of the devices, over pipelines
  /// of which no stage and no transfer takes longer than `high`; infinity if there is none. What a stage adds is its update (and
  /// reduction, if these count) less the way of a gradient from it to the first stage: any layer gives a bound, the layer of the
  /// stage that is done last the best. A stage pays rent for its own time or `low`, whichever is longer: no more than for a
  /// period from low to high. O(layers * (classes^2 + placements)) for additive costs; times the length of a stage for others.
  [[nodiscard]] double solve(double low, double high, const device_prices& prices, bool reductions, int critical = 0) {
    const auto layers = at(problem_.layers), last_early = at(critical);
    low_ = low;
    measure(low, high);
    for (std::size_t j = 0; j < open_.size(); ++j) {
      const auto& placed = placement_of(j);
      const auto k = at(placed.subcluster);
      rows_[j] = {nearest_.data() + j * row_, near_low_.data() + j * row_, prices.rent[k] * placed.devices,
                  prices.fee[k] * placed.devices, at(placed.transfer_class)};
      if constexpr (Table::additive) begin(j, 0);
    }
    looked_at_ += work();
    std::fill(cost_.begin(), cost_.end(), infinity);
    for (std::size_t e = 1; e <= layers; ++e) {
      double* cost = cost_.data() + e * classes_;
      step* by = by_.data() + e * classes_;
      const auto try_stage = [&](std::size_t j, std::size_t first, double seconds) {
        auto& least = cost[rows_[j].own_class];
        if (!(seconds < least)) return;
        least = seconds;
        by[rows_[j].own_class] = {static_cast<int>(j), static_cast<int>(first)};
      };
      for (std::size_t j = 0; j < open_.size(); ++j) {
        auto& r = rows_[j];
        const int p = open_[j], end = static_cast<int>(e);
        // What the stages that may end here, from different first layers on, cost besides the time of their layers.
        const auto at_end = [&](std::size_t first) {
          if (first > last_early || e <= last_early) return 0.0;
          const int a = static_cast<int>(first);
          return ends_.updates()(p, a, end) + (reductions ? ends_.reduction(p, a, end) : 0.0);
        };
        if constexpr (Table::additive) {
          const auto* prefix = table_.prefix(p);
          // Before the critical layer backwards do not count: gradients that are on their way hide them.
          const auto sum = [&](std::size_t layer) { return e <= last_early ? prefix[layer].forward : prefix[layer].time; };
          const auto entry = [&](std::size_t first) { return first == 0 ? 0.0 : entry_[first * classes_ + r.own_class]; };
          // At the critical layer windows begin anew: what stages over it add has the form f(end) - f(first).
          if (e == last_early + 1) begin(j, 0);
          const bool over = e > last_early;
          const auto added = [&](std::size_t first) {
            return over && first <= last_early ? at_end_up_to(p, first, reductions) : 0.0;
          };
          auto& windows = r.windows;
          for (; r.pushed < e; ++r.pushed)
            windows[over && r.pushed <= last_early ? 2 : 0].push(r.pushed, entry(r.pushed) - sum(r.pushed) - added(r.pushed));
          for (; r.handed_on < at(r.near_low[e]); ++r.handed_on)
            windows[over && r.handed_on <= last_early ? 3 : 1].push(
                r.handed_on, entry(r.handed_on) - sum(r.handed_on) - prefix[r.handed_on].time * r.rent - added(r.handed_on));
          for (std::size_t w = 0; w < windows.size(); ++w) {
            auto& own = windows[w];
            own.drop_before(at((w % 2 == 0 ? r.near_low : r.nearest)[e]));
            if (own.empty()) continue;
            const double rent = w % 2 == 0 ? low_ * r.rent : prefix[e].time * r.rent;
            try_stage(j, own.best().first,
                      own.best().key + sum(e) + rent + r.fee + (w >= 2 ? at_end_up_to(p, e, reductions) + fixed_at_end(p) : 0.0));
          }
        } else {
          for (auto a = at(r.nearest[e]); a < e; ++a) {
            const int first = static_cast<int>(a);
            const double t = table_.time(p, first, end);
            if (!(t <= high)) continue;
            const double counted = e <= last_early ? table_.forward(p, first, end) : t;
            try_stage(
                j, a,
                (a == 0 ? 0.0 : entry_[a * classes_ + r.own_class]) + counted + std::max(low_, t) * r.rent + r.fee + at_end(a));
          }
        }
      }
      if (e == layers) break;
      // Into the next stage, by its class.
      double* entry = entry_.data() + e * classes_;
      int* from = from_.data() + e * classes_;
      std::fill(entry, entry + classes_, infinity);
      const double* way =
          (e <= last_early ? one_way_ : way_).data() + at(problem_.kind_before(static_cast<int>(e))) * classes_ * classes_;
      for (std::size_t a = 0; a < classes_; ++a, way += classes_) {
        if (!(cost[a] < infinity)) continue;
        for (std::size_t b = 0; b < classes_; ++b)
          if (const double c = cost[a] + way[b]; c < entry[b]) {
            entry[b] = c;
            from[b] = static_cast<int>(a);
          }
      }
    }
    const double* last = cost_.data() + layers * classes_;
    best_ = static_cast<std::size_t>(std::min_element(last, last + classes_) - last);
    return last[best_] * (1 - 1e-12);  // a bound in spite of rounding
  }

  /// The stages of the last answer. Requires: it was finite.
  [[nodiscard]] std::vector<interop_stage> stages() const {
    std::vector<interop_stage> found;
    auto e = at(problem_.layers);
    for (auto c = best_;;) {
      const auto& s = by_[e * classes_ + c];
      found.push_back({open_[at(s.open)], {s.first, static_cast<int>(e)}});
      e = at(s.first);
      if (e == 0) break;
      c = at(from_[e * classes_ + at(placement_of(at(s.open)).transfer_class)]);
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

  /// The devices of the last answer, by subcluster. Requires: it was finite.
  [[nodiscard]] std::vector<int> devices() const {
    std::vector<int> used(problem_.devices.size());
    auto e = at(problem_.layers);
    for (auto c = best_; e > 0;) {
      const auto& s = by_[e * classes_ + c];
      const auto& placed = placement_of(at(s.open));
      used[at(placed.subcluster)] += placed.devices;
      e = at(s.first);
      if (e > 0) c = at(from_[e * classes_ + at(placed.transfer_class)]);
    }
    return used;
  }

  /// The least cost at the last period of all layers before `first`, the way to a stage of this class included.
  [[nodiscard]] double before(int first, int to_class) const {
    return first == 0 ? 0 : entry_[at(first) * classes_ + at(to_class)];
  }

  /// Ends of stages that one solution looks at.
  [[nodiscard]] std::int64_t work() const { return problem_.layers * static_cast<std::int64_t>(open_.size() + classes_); }

  /// Ends of stages looked at so far.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  // A sliding-window minimum over first layers.
  class window {
   public:
    struct start {
      double key;
      std::size_t first;
    };
    void clear(start* room) {
      room_ = room;
      head_ = size_ = 0;
    }
    void push(std::size_t first, double key) {
      if (!(key < infinity)) return;
      while (size_ > head_ && room_[size_ - 1].key >= key) --size_;
      room_[size_++] = {key, first};
    }
    void drop_before(std::size_t first) {
      while (head_ < size_ && room_[head_].first < first) ++head_;
    }
    [[nodiscard]] bool empty() const { return head_ == size_; }
    [[nodiscard]] const start& best() const { return room_[head_]; }

   private:
    start* room_ = nullptr;
    std::size_t head_ = 0, size_ = 0;
  };
  struct row {
    const int *nearest = nullptr, *near_low = nullptr;
    double rent = 0, fee = 0;
    std::size_t own_class = 0;
    std::size_t pushed = 0, handed_on = 0;  // first layers that are in windows
    std::array<window, 4> windows = {};  // stages no longer than the shortest period, and longer; over the critical layer: those
  };
  struct step {
    int open = 0, first = 0;
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] const interop_placement& placement_of(std::size_t j) const { return problem_.placements[at(open_[j])]; }

  // Windows without any first layer, from `first` on.
  void begin(std::size_t j, std::size_t first) {
    auto& r = rows_[j];
    r.pushed = r.handed_on = first;
    for (std::size_t w = 0; w < r.windows.size(); ++w) r.windows[w].clear(windows_.data() + (4 * j + w) * row_);
  }

  // What a stage adds at the end is fixed_at_end + at_end_up_to(last) - at_end_up_to(first).
  [[nodiscard]] double fixed_at_end(int p) const { return ends_.updates()(p, 0, 0); }
  [[nodiscard]] double at_end_up_to(int p, std::size_t layer, bool reductions) const {
    const int l = static_cast<int>(layer);
    return ends_.updates()(p, 0, l) - ends_.updates()(p, 0, 0) + (reductions ? ends_.reduction(p, 0, l) : 0.0);
  }

  // The first layer of the longest stage that takes at most `period` and ends before each layer; that layer itself if there is
  // none.
  void measure(std::size_t j, double period, int* nearest) {
    table_.furthest(open_[j], period, placement_of(j).capacity, 1, ends_of_.data());
    nearest[0] = 0;
    for (int e = 1, a = 0; e <= problem_.layers; nearest[e++] = a)
      while (a < e && ends_of_[at(a)] < e) ++a;
  }

  void measure(double low, double period) {
    for (std::size_t j = 0; j < open_.size(); ++j) {
      measure(j, period, nearest_.data() + j * row_);
      if (Table::additive) measure(j, low, near_low_.data() + j * row_);
    }
    for (std::size_t a = 0; a < classes_; ++a)
      for (std::size_t b = 0; b < classes_; ++b)
        for (int kind = 0; kind < problem_.kinds; ++kind) {
          double least = infinity, one_way = infinity;
          for (const auto* price : {problem_.transfer(static_cast<int>(a), static_cast<int>(b)),
                                    problem_.near_transfer(static_cast<int>(a), static_cast<int>(b))})
            if (price[kind].occupied <= period) {
              least = std::min(least, price[kind].round_trip);
              one_way = std::min(one_way, price[kind].round_trip - price[kind].slower_way);
            }
          way_[(at(kind) * classes_ + a) * classes_ + b] = least;
          one_way_[(at(kind) * classes_ + a) * classes_ + b] = one_way;
        }
  }

  const interop_problem& problem_;
  const Table& table_;
  const end_table& ends_;
  std::size_t row_, classes_;
  std::vector<int> open_;      // placements
  std::vector<int> nearest_;   // [open][layer]
  std::vector<int> near_low_;  // the same for the shortest period
  std::vector<int> ends_of_;
  std::vector<typename window::start> windows_;
  double low_ = 0;
  std::vector<row> rows_;
  std::vector<double> way_, one_way_;  // [kind][from][to], at the period of the last call
  std::vector<double> cost_;           // [layer][class of the last stage before it]
  std::vector<double> entry_;          // [layer][class of the next stage]
  std::vector<step> by_;
  std::vector<int> from_;
  std::size_t best_ = 0;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
