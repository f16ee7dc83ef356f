// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_exact_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/warmup_algebra.hpp>

namespace hetsched::detail {

/// For one period: the least latency sum(t + 2c), with what updates add to it, over pipelines that have one placement in each
/// subcluster, whose stages take at most the period and fit into memory. Suffixes of the model grow from the last layer to the
/// first, one set of visited subclusters after the other; in a subcluster, one stage of its placement after the other. A suffix
/// has the least latency and the least end of its updates, which may be of different pipelines, and one good pipeline. A stage
/// holds the fewest microbatches in flight that any warm-up rule keeps the period with, its latency to the end over the period.
/// So the answer is a lower bound, and exact wherever the good pipeline is worth as much.
/// Complexity: O(2^K L (P S W + C^2)) for K subclusters, L layers, P placements of up to S stages of up to W layers, and C
/// transfer classes.
class uniform_path {
 public:
  uniform_path(const interop_problem& problem, const stage_prices& table, warmup_algebra algebra, int microbatches, bool use_all)
      : problem_(problem),
        table_(table),
        updates_(table.updates()),
        algebra_(algebra),
        microbatches_(microbatches),
        use_all_(use_all),
        layers_(as_size(problem.layers)),
        sets_(std::size_t{1} << problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) open_.push_back(static_cast<int>(p));
    const auto classes = as_size(problem.classes());
    ways_.resize(classes * classes * as_size(problem.kinds));
  }

  /// What solve() keeps for these: a pipeline for each set of subclusters, class and layer.
  [[nodiscard]] static double states(const interop_problem& problem) {
    return std::ldexp(1.0, static_cast<int>(problem.devices.size())) * problem.classes() * (problem.layers + 1);
  }

  struct answer {
    bool complete = true;  ///< else go_on has ended it, and `end` tells nothing
    double end = infinity;
    std::vector<interop_stage> stages;
  };

  /// A bound on the end, and a pipeline that comes near it, or no stages; infinity if all are above `enough`. go_on is asked now
  /// and then.
  [[nodiscard]] answer solve(double period, double enough, function_ref<bool()> go_on) {
    period_ = std::min(period, std::numeric_limits<double>::max());
    enough_ = enough;
    measure_ways();
    const auto classes = as_size(problem_.classes());
    exits_.assign(sets_ * classes * (layers_ + 1), {});
    entries_.assign(classes * (layers_ + 1), {});
    for (std::size_t set = 1; set < sets_; ++set)
      for (std::size_t k = 0; k < problem_.devices.size(); ++k)
        if (set >> k & 1u) {
          if (!go_on()) return {.complete = false, .end = 0, .stages = {}};
          grow(set, k);
        }
    answer found;
    place good;
    for (std::size_t set = use_all_ ? sets_ - 1 : 1; set < sets_; ++set)
      for (std::size_t c = 0; c < classes; ++c) {
        const auto& e = exit_of(set, c, 0);
        found.end = std::min(found.end, e.end);
        if (e.own_end < good.end) good = {set, c, e.own_end};
      }
    if (good.end < infinity) found.stages = stages_of(good);
    return found;
  }

  /// Ends of stages looked at so far.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  // Pipelines from a layer on: the least latency and the least end of any, bounds both; and a good one's.
  struct worth {
    double latency = infinity, end = infinity;
    double own_latency = infinity, own_end = infinity;
    warmup_state warmup = {};    // of the good one's first stage
    transfer_price before = {};  // of its way there, if it is added
  };
  // Of those whose first stage is of a class, a good one, which begins with `stages` of a placement.
  struct exit : worth {
    int placement = -1, stages = 0;
  };
  // With the way to them, of which updates see the gradients only. `from`: the good one's transfer class; -1: the model ends.
  struct entry : worth {
    int from = -1;
  };
  // Of stages of one placement. `cut`: where the good one's first stage ends.
  struct cell : worth {
    int cut = 0;
  };
  struct place {
    std::size_t set = 0, of_class = 0;
    double end = infinity;
  };

  [[nodiscard]] exit& exit_of(std::size_t set, std::size_t of_class, std::size_t layer) {
    return exits_[(set * as_size(problem_.classes()) + of_class) * (layers_ + 1) + layer];
  }

  // The least round trips that keep the period, and of them the least that can be the gradient's way.
  void measure_ways() {
    std::size_t i = 0;
    for (int from = 0; from < problem_.classes(); ++from)
      for (int to = 0; to < problem_.classes(); ++to)
        for (int kind = 0; kind < problem_.kinds; ++kind, ++i) {
          auto& least = ways_[i] = {0, infinity, infinity};
          for (const auto* price : {problem_.transfer(from, to), problem_.near_transfer(from, to)})
            if (price[kind].occupied <= period_)
              least = {std::max(least.slower_way, price[kind].slower_way), std::min(least.round_trip, price[kind].round_trip),
                       std::min(least.occupied, price[kind].occupied)};
        }
  }
  [[nodiscard]] const transfer_price& way_between(std::size_t from, std::size_t to, std::size_t cut) const {
    return ways_[(from * as_size(problem_.classes()) + to) * as_size(problem_.kinds) +
                 as_size(problem_.kind_before(static_cast<int>(cut)))];
  }

  // Of a stage with so much time to the end of the pipeline.
  [[nodiscard]] double least_in_flight(double latency) const {
    if (algebra_.by_count())
      return 1;  // it may let the period go
    else
      return std::max(1.0, std::ceil(latency / period_ * (1 - tolerance::sums)));
  }

  // Betters what is known by a suffix behind a way. Returns whether its pipeline is the good one now.
  static bool add(const worth& behind, const transfer_price& way, worth& known) {
    if (!(way.round_trip < infinity)) return false;
    const double gradient = std::max(0.0, way.round_trip - way.slower_way);
    known.latency = std::min(known.latency, behind.latency + way.round_trip);
    known.end = std::min(known.end, behind.end + gradient);
    const double latency = behind.own_latency + way.round_trip, end = behind.own_end + gradient;
    if (!(std::max(end, latency) < std::max(known.own_end, known.own_latency))) return false;
    known.own_latency = latency;
    known.own_end = end;
    known.warmup = behind.warmup;
    known.before = way;
    return true;
  }

  // What the last stage in subcluster k may be put before, by its class.
  void enter(std::size_t before, std::size_t k) {
    const auto classes = as_size(problem_.classes());
    for (std::size_t c = 0; c < classes; ++c) {
      if (problem_.class_subcluster[c] != static_cast<int>(k)) continue;
      auto* row = entries_.data() + c * (layers_ + 1);
      std::fill(row, row + layers_ + 1, entry{});
      if (before == 0) {
        row[layers_] = {{0, 0, 0, 0, {}, {}}, -1};
        continue;
      }
      for (std::size_t from = 0; from < classes; ++from) {
        if (!(before >> problem_.class_subcluster[from] & 1u)) continue;
        for (std::size_t l = 1; l < layers_; ++l) {
          const auto& behind = exit_of(before, from, l);
          if (!(behind.latency < infinity)) continue;
          if (add(behind, way_between(c, from, l), row[l])) row[l].from = static_cast<int>(from);
        }
      }
    }
  }

  // Latencies of 1, 2, ... stages of a placement in front of its entries, and the first one's cuts: each(stages) reads them from
  // row_. Ends when no layer gains. Of cuts that are worth the same the first is kept: later stages hold less.
  template <class Each>
  void stack(int p, Each each) {
    const auto& placed = at(problem_.placements, p);
    const auto c = as_size(placed.transfer_class);
    const int most = at(problem_.devices, placed.subcluster) / placed.devices;
    const auto* entered = entries_.data() + c * (layers_ + 1);
    behind_.clear();
    for (std::size_t l = 0; l <= layers_; ++l) behind_.push_back({entered[l], 0});
    least_.assign(layers_ + 1, {});
    for (int n = 1; n <= most; ++n) {
      bool any = false, gains = false;
      row_.assign(layers_ + 1, {});
      for (std::size_t first = 0; first < layers_; ++first) {
        auto& here = row_[first];
        for (std::size_t cut = first + 1; cut <= layers_; ++cut) {
          const int a = static_cast<int>(first), b = static_cast<int>(cut);
          const double t = table_.time(p, a, b);
          ++looked_at_;
          if (t > period_) {
            if (table_.additive()) break;
            continue;
          }
          const auto& behind = behind_[cut];
          const double update = updates_(p, a, b), forward = table_.forward(p, a, b);
          const auto fits = [&](double in_flight) {
            return table_.memory(p, a, b, std::min(in_flight, static_cast<double>(microbatches_))) <= placed.capacity;
          };
          const double latency = behind.latency + t, end = std::max(latency + update, behind.end + forward);
          const double own = behind.own_latency + t, own_end = std::max(own + update, behind.own_end + forward);
          const bool better = own_end < here.own_end * (1 - tolerance::rounding);
          if (end > enough_ || !(better || latency < here.latency || end < here.end) || !fits(least_in_flight(latency))) continue;
          here.latency = std::min(here.latency, latency);
          here.end = std::min(here.end, end);
          warmup_state warmup;
          if (!better || !algebra_.extend(t, behind.before, behind.warmup, period_, warmup) || !fits(warmup.warmup)) continue;
          here.own_latency = own;
          here.own_end = own_end;
          here.warmup = warmup;
          here.cut = b;
        }
        any = any || here.latency < infinity;
        auto& least = least_[first];
        gains = gains || here.latency < least.latency || here.end < least.end || here.own_end < least.own_end;
        least.latency = std::min(least.latency, here.latency);
        least.end = std::min(least.end, here.end);
        least.own_end = std::min(least.own_end, here.own_end);
      }
      if (!any || (!gains && !use_all_)) return;
      each(n);
      for (std::size_t l = 1; l <= layers_; ++l) {
        behind_[l] = {};
        if (l == layers_ || !(row_[l].latency < infinity)) continue;
        add(row_[l], way_between(c, c, l), behind_[l]);
      }
    }
  }

  void grow(std::size_t set, std::size_t k) {
    const auto before = set & ~(std::size_t{1} << k);
    enter(before, k);
    for (const int p : open_) {
      const auto& placed = at(problem_.placements, p);
      if (placed.subcluster != static_cast<int>(k)) continue;
      if (use_all_ && problem_.devices[k] % placed.devices != 0) continue;
      stack(p, [&](int stages) {
        if (use_all_ && stages * placed.devices < problem_.devices[k]) return;
        for (std::size_t l = 0; l < layers_; ++l) {
          auto& known = exit_of(set, as_size(placed.transfer_class), l);
          if (add(row_[l], {}, known)) {
            known.placement = p;
            known.stages = stages;
          }
        }
      });
    }
  }

  // Goes through the rows of each subcluster once more, from the first layer on.
  [[nodiscard]] std::vector<interop_stage> stages_of(place from) {
    std::vector<interop_stage> stages;
    for (std::size_t layer = 0; layer < layers_;) {
      const auto chosen = exit_of(from.set, from.of_class, layer);
      const auto k = as_size(problem_.class_subcluster[from.of_class]);
      from.set &= ~(std::size_t{1} << k);
      enter(from.set, k);
      std::vector<std::vector<cell>> rows;
      stack(chosen.placement, [&](int) { rows.push_back(row_); });
      for (int n = chosen.stages; n-- > 0;) {
        const int cut = at(rows, n)[layer].cut;
        stages.push_back({chosen.placement, {static_cast<int>(layer), cut}});
        layer = as_size(cut);
      }
      if (layer < layers_) from.of_class = as_size(entries_[from.of_class * (layers_ + 1) + layer].from);
    }
    return stages;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const update_table& updates_;
  warmup_algebra algebra_;
  int microbatches_;
  bool use_all_;
  std::size_t layers_, sets_;
  std::vector<int> open_;             // placements
  std::vector<transfer_price> ways_;  // [from][to][kind of boundary], at the period of the last call
  double period_ = 0, enough_ = infinity;
  std::vector<exit> exits_;     // [set][class][layer]
  std::vector<entry> entries_;  // [class][layer]
  std::vector<cell> behind_, row_, least_;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
