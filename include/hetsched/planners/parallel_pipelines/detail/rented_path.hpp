// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/rented_path_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>

namespace hetsched::detail {

/// What devices cost a pipeline, by subcluster.
struct device_prices {
  std::vector<double> rent;  // per second of a period
  std::vector<double> fee;   // once
};

/// A layer whose stage may be the one that is done last, and how much that stage's end counts.
struct critical_layer {
  int layer = 0;
  double share = 1;
};

/// The cheapest pipeline of a range of periods if devices cost rent: a shortest path over layers and classes of placements, which
/// knows of memory only that one microbatch in flight must fit, and of devices only their price. So it is a lower bound on what
/// the real ones cost.
class rented_path {
 public:
  rented_path(const interop_problem& problem, const stage_prices& table, const end_table& ends)
      : problem_(problem), table_(table), ends_(ends), row_(as_size(problem.layers + 1)), classes_(as_size(problem.classes())) {
    ends_of_.resize(row_);
    open_placements();
    rows_.resize(open_.size());
    add_up_ends();
    segment_.resize(row_);
    cost_.resize(row_ * classes_);
    entry_.resize(row_ * classes_);
    by_.resize(row_ * classes_);
  }

  /// The least of latency + what the stages that hold critical layers add at the end, by their shares + the price of the devices,
  /// over pipelines of which no stage and no transfer takes longer than `high`; infinity if there is none. What a stage adds is
  /// its update (and reduction, if these count) less the way of a gradient from it to the first stage: the most that a stage adds
  /// is no less than any mean of them. A stage pays rent for its own time or `low`, whichever is longer: no more than for a
  /// period from low to high. `homes`: where layers may be. Requires: critical layers in order, with shares that add up to 1.
  /// O(layers * (classes^2 + placements) * critical layers) for additive costs; times the length of a stage for others.
  [[nodiscard]] double solve(double low, double high, const device_prices& prices, bool reductions,
                             std::span<const critical_layer> critical, const layer_homes& homes = {}) {
    const auto layers = as_size(problem_.layers);
    low_ = low;
    divide(critical);
    measure(low, high);
    if (!homes.of.empty()) close(homes);
    for (std::size_t j = 0; j < open_.size(); ++j) {
      const auto& placed = placement_of(j);
      const auto k = as_size(placed.subcluster);
      rows_[j] = {nearest_ + j * row_, near_low_ + j * row_, prices.rent[k] * placed.devices, prices.fee[k] * placed.devices,
                  as_size(placed.transfer_class)};
      if (table_.additive()) begin(j, 0);
    }
    looked_at_ += work();
    std::fill(cost_.begin(), cost_.end(), infinity);
    for (std::size_t e = 1; e <= layers; ++e) {
      for (std::size_t j = 0; j < open_.size(); ++j)
        table_.additive() ? end_sums(j, e, reductions) : end_stages(j, e, high, reductions);
      if (e == layers) break;
      // Into the next stage, by its class.
      const double* cost = cost_.data() + e * classes_;
      double* entry = entry_.data() + e * classes_;
      std::fill(entry, entry + classes_, infinity);
      const double* way = ways_at(e);
      for (std::size_t a = 0; a < classes_; ++a, way += classes_) {
        if (!(cost[a] < infinity)) continue;
        const double before = cost[a];
        for (std::size_t b = 0; b < classes_; ++b) entry[b] = std::min(entry[b], before + way[b]);
      }
    }
    const double* last = cost_.data() + layers * classes_;
    best_ = as_size(std::min_element(last, last + classes_) - last);
    return last[best_] * (1 - tolerance::rounding);  // a bound in spite of rounding
  }

  /// The stages of the last answer. Requires: it was finite.
  [[nodiscard]] std::vector<interop_stage> stages() const {
    std::vector<interop_stage> found;
    auto e = as_size(problem_.layers);
    for (auto c = best_;;) {
      const auto& s = by_[e * classes_ + c];
      found.push_back({at(open_, s.open), {s.first, static_cast<int>(e)}});
      e = as_size(s.first);
      if (e == 0) break;
      c = class_before(e, as_size(placement_of(as_size(s.open)).transfer_class));
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

  /// The devices of the last answer, by subcluster. Requires: it was finite.
  [[nodiscard]] std::vector<int> devices() const {
    std::vector<int> used(problem_.devices.size());
    auto e = as_size(problem_.layers);
    for (auto c = best_; e > 0;) {
      const auto& s = by_[e * classes_ + c];
      const auto& placed = placement_of(as_size(s.open));
      at(used, placed.subcluster) += placed.devices;
      e = as_size(s.first);
      if (e > 0) c = class_before(e, as_size(placed.transfer_class));
    }
    return used;
  }

  /// The least cost at the last period of all layers before `first`, the way to a stage of this class included.
  [[nodiscard]] double before(int first, int to_class) const {
    return first == 0 ? 0 : entry_[as_size(first) * classes_ + as_size(to_class)];
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
  };
  struct step {
    int open = 0, first = 0;
  };

  // The least cost so far of stages of placement j from layer `first` to `e`.
  void try_stage(std::size_t j, std::size_t first, std::size_t e, double seconds) {
    const auto cell = e * classes_ + rows_[j].own_class;
    if (!(seconds < cost_[cell])) return;
    cost_[cell] = seconds;
    by_[cell] = {static_cast<int>(j), static_cast<int>(first)};
  }
  [[nodiscard]] double entry(std::size_t j, std::size_t first) const {
    return first == 0 ? 0.0 : entry_[first * classes_ + rows_[j].own_class];
  }

  // Stages of placement j that end at layer e, where they cost the sum of their layers: over windows of first layers.
  void end_sums(std::size_t j, std::size_t e, bool reductions) {
    auto& r = rows_[j];
    const int p = open_[j];
    const auto own = as_size(segment_[e]);
    const double late = share_[own];  // of critical layers before this end
    const auto* prefix = table_.prefix(p);
    // Before critical layers backwards do not count: gradients that are on their way hide them.
    const auto sum = [&](std::size_t layer) {
      return prefix[layer].forward + late * (prefix[layer].time - prefix[layer].forward);
    };
    // Behind a critical layer windows begin anew: what stages over it add has the form f(end) - f(first).
    if (segment_[e] != segment_[e - 1]) begin(j, e);
    const auto push = [&](std::size_t first, bool longer) {
      const auto of = as_size(segment_[first]);
      double key = entry(j, first) - sum(first) - (longer ? prefix[first].time * r.rent : 0.0);
      if (of != own) key -= (late - share_[of]) * at_end_up_to(j, first, reductions);
      window_of(j, of, longer).push(first, key);
    };
    for (; r.pushed < e; ++r.pushed) push(r.pushed, false);
    for (; r.handed_on < as_size(r.near_low[e]); ++r.handed_on) push(r.handed_on, true);
    const double up_to_here = own > 0 ? at_end_up_to(j, e, reductions) + fixed_at_end(p) : 0.0;
    for (const bool longer : {false, true}) {
      const auto earliest = as_size((longer ? r.nearest : r.near_low)[e]);
      const auto earliest_of = as_size(segment_[earliest]);
      window_of(j, earliest_of, longer).drop_before(earliest);  // those behind begin later
      for (auto of = earliest_of; of <= own; ++of) {
        const auto& starts = window_of(j, of, longer);
        if (starts.empty()) continue;
        const double rent = longer ? prefix[e].time * r.rent : low_ * r.rent;
        try_stage(j, starts.best().first, e, starts.best().key + sum(e) + rent + r.fee + (late - share_[of]) * up_to_here);
      }
    }
  }

  // The same, one by one, where they are no sums.
  void end_stages(std::size_t j, std::size_t e, double high, bool reductions) {
    const auto& r = rows_[j];
    const int p = open_[j], end = static_cast<int>(e);
    const double late = share_[as_size(segment_[e])];
    for (auto a = as_size(r.nearest[e]); a < e; ++a) {
      const int first = static_cast<int>(a);
      const double t = table_.time(p, first, end);
      if (!(t <= high)) continue;
      const double forward = table_.forward(p, first, end), inside = late - at(share_, segment_[a]);
      const double added =
          inside > 0 ? table_.updates()(p, first, end) + (reductions ? ends_.reduction(p, first, end) : 0.0) : 0.0;
      try_stage(j, a, e, entry(j, a) + forward + late * (t - forward) + std::max(low_, t) * r.rent + r.fee + inside * added);
    }
  }

  [[nodiscard]] const interop_placement& placement_of(std::size_t j) const { return at(problem_.placements, open_[j]); }

  // Lets stages begin no sooner than behind the last layer that their subcluster may not hold.
  void close(const layer_homes& homes) {
    own_nearest_.assign(nearest_, nearest_ + open_.size() * row_);
    own_near_low_.assign(near_low_, near_low_ + open_.size() * row_);
    for (std::size_t j = 0; j < open_.size(); ++j) {
      int first = 0;
      for (std::size_t e = 1; e < row_; ++e) {
        if (!homes.allow(static_cast<int>(e) - 1, placement_of(j).subcluster)) first = static_cast<int>(e);
        for (auto* all : {&own_nearest_, &own_near_low_}) {
          auto& own = (*all)[j * row_ + e];
          own = std::max(own, first);
        }
      }
    }
    nearest_ = own_nearest_.data();
    near_low_ = own_near_low_.data();
  }

  // Those that may be the cheapest. Only one microbatch in flight must fit, so most ways of saving memory drop out.
  void open_placements() {
    const auto count = problem_.placements.size();
    std::vector<int> alone(count * row_);  // ends of the longest stages in memory, by placement and first layer
    for (std::size_t p = 0; p < count; ++p)
      table_.furthest(static_cast<int>(p), infinity, problem_.placements[p].capacity, 1, alone.data() + p * row_);
    // What a stage adds at the end counts no more than its backward, and that no more than its forward.
    const auto no_worse = [&](int a, int b) {
      const auto &one = at(problem_.placements, a), &other = at(problem_.placements, b);
      if (one.transfer_class != other.transfer_class || one.subcluster != other.subcluster || one.devices > other.devices)
        return false;
      const double fixed = std::max(0.0, fixed_at_end(a) - fixed_at_end(b));
      for (int l = 0; l < problem_.layers; ++l) {
        const double forward = table_.forward(b, l, l + 1) - table_.forward(a, l, l + 1);
        const double time = table_.time(b, l, l + 1) - table_.time(a, l, l + 1);
        const double update = table_.updates()(b, l, l + 1) - fixed_at_end(b) - table_.updates()(a, l, l + 1) + fixed_at_end(a);
        const double reduction = ends_.reduction(b, l, l + 1) - ends_.reduction(a, l, l + 1);
        if (forward < 0 || time < forward || time + update + std::min(0.0, reduction) < fixed ||
            alone[as_size(a) * row_ + as_size(l)] < alone[as_size(b) * row_ + as_size(l)])
          return false;
      }
      return true;
    };
    for (int p = 0; p < static_cast<int>(count); ++p) {
      bool open = !at(problem_.placements, p).dominated;
      for (int q = 0; q < static_cast<int>(count) && open && table_.additive(); ++q)
        open = q == p || at(problem_.placements, q).dominated || !no_worse(q, p) || (q > p && no_worse(p, q));
      if (open) open_.push_back(p);
    }
  }

  // Segments of layers between critical ones, and the shares before the end of each.
  void divide(std::span<const critical_layer> critical) {
    share_.assign(1, 0.0);
    for (const auto& c : critical) share_.push_back(share_.back() + c.share);
    for (std::size_t e = 0, s = 0; e < row_; ++e) {
      while (s < critical.size() && as_size(critical[s].layer) < e) ++s;
      segment_[e] = static_cast<int>(s);
    }
    if (table_.additive()) {
      windows_.resize(open_.size() * share_.size() * 2);
      room_.resize(windows_.size() * row_);
    }
  }

  // What transfers before layer `e` cost, [from][to].
  [[nodiscard]] const double* ways_at(std::size_t e) const {
    return way_.data() + (as_size(segment_[e]) * as_size(problem_.kinds) + as_size(problem_.kind_before(static_cast<int>(e)))) *
                             classes_ * classes_;
  }

  // From which class the cheapest way to a stage of class `to` comes.
  [[nodiscard]] std::size_t class_before(std::size_t e, std::size_t to) const {
    const double* way = ways_at(e) + to;
    std::size_t from = 0;
    while (cost_[e * classes_ + from] + way[from * classes_] != entry_[e * classes_ + to]) ++from;
    return from;
  }

  // First layers in a segment, of stages no longer than the shortest period, and of longer ones.
  [[nodiscard]] window& window_of(std::size_t j, std::size_t segment, bool longer) {
    return windows_[(j * share_.size() + segment) * 2 + (longer ? 1 : 0)];
  }

  // Windows without any first layer, for stages that end at `e` or later.
  void begin(std::size_t j, std::size_t e) {
    auto& r = rows_[j];
    r.pushed = as_size(r.near_low[e]);
    r.handed_on = as_size(r.nearest[e]);
    const auto all = 2 * share_.size();
    for (std::size_t w = j * all; w < (j + 1) * all; ++w) windows_[w].clear(room_.data() + w * row_);
  }

  // What a stage adds at the end is fixed_at_end + at_end_up_to(last) - at_end_up_to(first).
  [[nodiscard]] double fixed_at_end(int p) const { return table_.updates()(p, 0, 0); }
  [[nodiscard]] double at_end_up_to(std::size_t j, std::size_t layer, bool reductions) const {
    return up_to_[(j * row_ + layer) * 2 + (reductions ? 1 : 0)];
  }
  void add_up_ends() {
    if (!table_.additive()) return;
    up_to_.reserve(open_.size() * row_ * 2);
    for (const int p : open_)
      for (int l = 0; l <= problem_.layers; ++l) {
        const double updates = table_.updates()(p, 0, l) - fixed_at_end(p);
        up_to_.push_back(updates);
        up_to_.push_back(updates + ends_.reduction(p, 0, l));
      }
  }

  // Of each placement and layer: the first layer of the longest stage that takes at most `period` and ends before that layer; the
  // layer itself if there is none.
  [[nodiscard]] const int* first_layers(double period) {
    auto& found = known_[period];
    if (!found.empty()) return found.data();
    found.resize(open_.size() * row_);
    for (std::size_t j = 0; j < open_.size(); ++j) {
      table_.furthest(open_[j], period, placement_of(j).capacity, 1, ends_of_.data());
      int* first = found.data() + j * row_;
      first[0] = 0;
      for (int e = 1, a = 0; e <= problem_.layers; first[e++] = a)
        while (a < e && at(ends_of_, a) < e) ++a;
    }
    return found.data();
  }

  void measure(double low, double period) {
    // Ranges of periods meet, and are looked at more than once.
    constexpr std::size_t most = 4'000'000;
    if (known_.size() * open_.size() * row_ > most) known_.clear();
    nearest_ = first_layers(period);
    near_low_ = table_.additive() ? first_layers(low) : nearest_;
    const auto square = classes_ * classes_;
    way_.assign(share_.size() * as_size(problem_.kinds) * square, infinity);
    for (std::size_t a = 0; a < classes_; ++a)
      for (std::size_t b = 0; b < classes_; ++b)
        for (const auto* price : {problem_.transfer(static_cast<int>(a), static_cast<int>(b)),
                                  problem_.near_transfer(static_cast<int>(a), static_cast<int>(b))})
          for (std::size_t kind = 0; kind < as_size(problem_.kinds); ++kind) {
            if (!(price[kind].occupied <= period)) continue;
            for (std::size_t s = 0; s < share_.size(); ++s) {
              auto& least = way_[(s * as_size(problem_.kinds) + kind) * square + a * classes_ + b];
              least = std::min(least, price[kind].round_trip - (1 - share_[s]) * price[kind].slower_way);
            }
          }
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  std::size_t row_, classes_;
  std::vector<int> open_;                               // placements
  std::map<double, std::vector<int>> known_;            // first layers by period, [open][layer]
  const int *nearest_ = nullptr, *near_low_ = nullptr;  // for the longest and the shortest period
  std::vector<double> up_to_;                           // see at_end_up_to: [open][layer][reductions]
  std::vector<int> ends_of_;
  std::vector<int> own_nearest_, own_near_low_;  // where some layers may not be held everywhere
  std::vector<int> segment_;                     // of a stage's end or start: how many critical layers lie before it
  std::vector<double> share_;                    // of critical layers before the end, by segment
  std::vector<window> windows_;
  std::vector<window::start> room_;
  double low_ = 0;
  std::vector<row> rows_;
  std::vector<double> way_;    // [segment][kind][from][to], at the period of the last call
  std::vector<double> cost_;   // [layer][class of the last stage before it]
  std::vector<double> entry_;  // [layer][class of the next stage]
  std::vector<step> by_;
  std::size_t best_ = 0;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
