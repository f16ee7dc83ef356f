// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/best_cuts_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>

namespace hetsched::detail {

/// Cuts a model into stages whose placements are settled, in their order: for some periods from the shortest on, the cuts of the
/// least latency; of these, the column of the shortest iteration. A shortest path over stages and layers with sliding windows.
/// It guides a search: transfers count at their cheapest, and memory by the warm-ups that stages of a full period would have.
class best_cuts {
 public:
  /// Requires: table.additive().
  best_cuts(const interop_problem& problem, const stage_prices& table, const end_table& ends, const warmup_algebra& algebra)
      : problem_(problem), table_(table), ends_(ends), algebra_(algebra), row_(as_size(problem.layers + 1)) {}

  /// The column for so many microbatches; none if there is none shorter than `enough` seconds, or none was found in memory.
  /// Complexity: O(stages * layers) for each of some ten periods.
  [[nodiscard]] std::optional<pipeline_column> solve(std::span<const int> placements, int microbatches, bool reductions,
                                                     double enough) {
    const auto count = placements.size();
    if (count == 0 || count > as_size(problem_.layers)) return std::nullopt;
    settle(placements, microbatches);
    std::optional<pipeline_column> best;
    const double shortest = shortest_period(placements, enough / microbatches);
    for (const double longer : {1.0, 1.004, 1.012, 1.03, 1.06, 1.1, 1.18, 1.3}) {
      const double period = shortest * longer;
      const double least = best ? std::min(enough, best->iteration_s(microbatches)) : enough;
      if (!((microbatches - 1) * period + fastest_latency_ < least)) break;
      const double latency = shortest_path(placements, period);
      if (!(latency + (microbatches - 1) * shortest < least)) continue;
      auto found = column_of(problem_, table_, ends_, algebra_, stages_of(placements), microbatches, reductions);
      if (found && found->iteration_s(microbatches) < least) best = std::move(found);
    }
    return best;
  }

  /// Ends of stages looked at so far.
  [[nodiscard]] std::int64_t looked_at() const { return looked_at_; }

 private:
  // Microbatches in flight on each stage, about, and the latency that no cuts are below.
  void settle(std::span<const int> placements, int microbatches) {
    const auto count = placements.size();
    in_flight_.resize(count);
    double flying = 0;
    for (std::size_t i = count; i-- > 0;) {
      const auto& placed = at(problem_.placements, placements[i]);
      const bool crosses = i + 1 < count && at(problem_.placements, placements[i + 1]).subcluster != placed.subcluster;
      flying += crosses ? 2 : 1;
      in_flight_[i] = std::min(flying, static_cast<double>(microbatches));
    }
    fastest_latency_ = 0;
    // Layers are not alike: each at its fastest.
    for (int l = 0; l < problem_.layers; ++l) {
      double least = infinity;
      for (const int p : placements) least = std::min(least, table_.time(p, l, l + 1));
      fastest_latency_ += least;
    }
  }

  // How far a stage that begins at `first` may reach within a period and its memory.
  [[nodiscard]] int furthest(std::span<const int> placements, std::size_t i, int first, int last, double period) const {
    const int p = placements[i];
    const double room = at(problem_.placements, p).capacity;
    while (last < problem_.layers && table_.time(p, first, last + 1) <= period &&
           table_.memory(p, first, last + 1, in_flight_[i]) <= room)
      ++last;
    return last;
  }

  // Whether stages of this period hold all layers, each as many as it can.
  [[nodiscard]] bool holds_all(std::span<const int> placements, double period) const {
    int first = 0;
    for (std::size_t i = 0; i < placements.size() && first < problem_.layers; ++i) {
      const int last = furthest(placements, i, first, first, period);
      if (last == first) return false;
      first = last;
    }
    return first == problem_.layers;
  }

  [[nodiscard]] double shortest_period(std::span<const int> placements, double most) {
    double low = 0, high = 0;
    for (const int p : placements) high = std::max(high, table_.time(p, 0, problem_.layers));
    high = std::min(high, most);
    looked_at_ += problem_.layers * most_halvings;
    if (!holds_all(placements, high)) return infinity;
    for (int i = 0; i < most_halvings && high - low > 1e-3 * high; ++i) {
      const double middle = (low + high) / 2;
      (holds_all(placements, middle) ? high : low) = middle;
    }
    return high;
  }

  // The least latency of stages no longer than a period; infinity if there is none. Stages from i on hold the layers from some
  // layer on: best_[i][layer].
  [[nodiscard]] double shortest_path(std::span<const int> placements, double period) {
    const auto count = placements.size();
    const int layers = problem_.layers;
    best_.assign((count + 1) * row_, infinity);
    next_.assign(count * row_, -1);
    best_[count * row_ + as_size(layers)] = 0;
    looked_at_ += static_cast<std::int64_t>(count) * layers;
    window_.resize(row_);
    for (std::size_t i = count; i-- > 0;) {
      const int p = placements[i];
      const double* behind = best_.data() + (i + 1) * row_;
      // Lasts of stages in rising order of what they cost, by falling layer.
      std::size_t head = 0, size = 0;
      const auto way = [&](int cut) {
        if (i + 1 == count) return 0.0;
        const int from = at(problem_.placements, p).transfer_class;
        const int to = at(problem_.placements, placements[i + 1]).transfer_class;
        const int kind = problem_.kind_before(cut);
        const auto &apart = problem_.transfer(from, to)[kind], &near = problem_.near_transfer(from, to)[kind];
        return std::min(apart.occupied, near.occupied) <= period ? std::min(apart.round_trip, near.round_trip) : infinity;
      };
      reach_.resize(row_);
      for (int first = 0, last = 0; first < layers; ++first) {
        last = furthest(placements, i, first, std::max(first, last), period);
        at(reach_, first) = last;
      }
      for (int first = layers - 1; first >= static_cast<int>(i); --first) {
        const int last = first + 1;
        if (const double rest = behind[last]; rest < infinity) {
          const double cost = table_.time(p, 0, last) + rest + (last < layers ? way(last) : 0.0);
          while (size > head && window_[size - 1].first >= cost) --size;
          if (cost < infinity) window_[size++] = {cost, last};
        }
        while (head < size && window_[head].second > at(reach_, first)) ++head;
        if (head == size) continue;
        best_[i * row_ + as_size(first)] = window_[head].first - table_.time(p, 0, first);
        next_[i * row_ + as_size(first)] = window_[head].second;
      }
    }
    return best_[0];
  }

  [[nodiscard]] std::vector<interop_stage> stages_of(std::span<const int> placements) const {
    std::vector<interop_stage> stages;
    int first = 0;
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const int last = next_[i * row_ + as_size(first)];
      stages.push_back({placements[i], {first, last}});
      first = last;
    }
    return stages;
  }

  static constexpr int most_halvings = 20;

  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  const warmup_algebra& algebra_;
  std::size_t row_;
  double fastest_latency_ = 0;
  std::vector<double> in_flight_;  // by stage
  std::vector<double> best_;       // [stage][first layer]
  std::vector<int> next_, reach_;  // where the stage ends then, and may end at the most
  std::vector<std::pair<double, int>> window_;
  std::int64_t looked_at_ = 0;
};

}  // namespace hetsched::detail
