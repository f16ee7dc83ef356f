// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/taper_test.cpp.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

namespace detail {

/// Cuts of layers for stages in a row, each on devices that are known: costs of all stages, and the least bound.
class taper_search {
 public:
  template <stage_cost_model Costs>
  taper_search(const cluster& hardware, const Costs& costs, const pipeline_plan& own)
      : layers_(static_cast<std::size_t>(cost_of::layer_count(costs))), stages_(own.stages.size()) {
    const auto row = layers_ + 1;
    time_.assign(stages_ * row * row, infinity);
    way_.assign(stages_ * row, 0);
    for (std::size_t i = 0; i < stages_; ++i) {
      const auto where = own.stages[i].where();
      const auto& subcluster = subcluster_of(hardware, where.mesh);
      const auto more = cost_of::overheads(costs, where);
      std::vector<stage_cost> layer;
      if constexpr (additive_cost_model<Costs>)
        for (int l = 0; l < cost_of::layer_count(costs); ++l) layer.push_back(cost_of::layer(costs, l, where));
      // The warm-up that 1F1B needs at the least.
      const auto in_flight = static_cast<double>(std::min(own.microbatches, static_cast<int>(stages_ - i)));
      for (std::size_t first = i; first < layers_; ++first) {
        stage_cost sum;
        for (auto last = first + 1; last + (stages_ - i - 1) <= layers_; ++last) {
          if constexpr (additive_cost_model<Costs>)
            sum += layer[last - 1];
          else
            sum = cost_of::stage(costs, layer_range{static_cast<int>(first), static_cast<int>(last)}, where);
          if (memory_of(sum, more, in_flight).total() > subcluster.device.memory_bytes) break;
          time_[(i * row + first) * row + last] = sum.forward_s + sum.backward_s;
        }
      }
      if (i + 1 == stages_) break;
      const auto near = proximity_of(own.stages[i].devices, own.stages[i + 1].devices, subcluster.devices_per_node);
      for (std::size_t cut = 1; cut < layers_; ++cut)
        way_[i * row + cut] =
            cost_of::transfer(costs, static_cast<int>(cut) - 1, where, own.stages[i + 1].where(), near).round_trip_s();
    }
  }

  /// The cuts of the least bound for so many microbatches; none if memory or links are short.
  [[nodiscard]] std::optional<std::vector<layer_range>> best(double microbatches) const {
    double low = 0, high = 1e-9;
    while (!cuts(microbatches, high)) {
      low = high;
      high *= 4;
      if (high > 1e12) return std::nullopt;
    }
    for (int i = 0; i < 100 && high - low > 1e-7 * high; ++i) {
      const double middle = (low + high) / 2;
      (cuts(microbatches, middle) ? high : low) = middle;
    }
    return cuts(microbatches, high);
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  // Cuts with a bound of at most `limit`: of each number of stages and layers, the way that takes the first microbatch least.
  [[nodiscard]] std::optional<std::vector<layer_range>> cuts(double microbatches, double limit) const {
    const auto row = layers_ + 1;
    std::vector<double> least((stages_ + 1) * row, infinity);
    std::vector<std::size_t> from((stages_ + 1) * row);
    least[0] = 0;
    for (std::size_t i = 0; i < stages_; ++i)
      for (auto first = i; first < layers_; ++first) {
        const double before = least[i * row + first];
        if (!(before < limit)) continue;
        const double* time = time_.data() + (i * row + first) * row;
        for (auto last = first + 1; last <= layers_ && before + microbatches * time[last] <= limit; ++last) {
          const double seconds = before + time[last] + way_[i * row + last];
          auto& known = least[(i + 1) * row + last];
          if (!(seconds < known)) continue;
          known = seconds;
          from[(i + 1) * row + last] = first;
        }
      }
    if (!(least.back() < infinity)) return std::nullopt;
    std::vector<layer_range> found(stages_);
    for (std::size_t i = stages_, last = layers_; i > 0; last = from[i * row + last], --i)
      found[i - 1] = {static_cast<int>(from[i * row + last]), static_cast<int>(last)};
    return found;
  }

  std::size_t layers_, stages_;
  std::vector<double> time_;  // [stage][first layer][end], forward and backward; infinity where memory is short
  std::vector<double> way_;   // [stage][end], there and back
};

}  // namespace detail

/// The stages' layers cut anew for schedules that may keep more microbatches in flight than 1F1B: no schedule of whole stages
/// ends before the first microbatch has been to a stage and back, and that stage has computed all M of them. The cuts are those
/// of the least such bound, max over stages of (what is before the stage, there and back, + M times its time); so stages get
/// shorter from the first to the last, and all can end together. Devices, degrees and microbatches stay; what evaluate fills in
/// is left to it. Memory is looked at for the warm-ups that 1F1B needs. Returns: a pipeline for each of `hastes`, so many times
/// which M is taken (more make stages more even); the same pipeline where a stage lies on several parts of the cluster, or
/// nothing fits. Requires: every stage has devices. O(stages * layers^2) costs, and 30 times as many steps for each.
template <stage_cost_model Costs>
[[nodiscard]] std::vector<pipeline_plan> tapered(const cluster& hardware, const Costs& costs, const pipeline_plan& own,
                                                 std::span<const double> hastes) {
  std::vector<pipeline_plan> found(hastes.size(), own);
  for (const auto& s : own.stages)
    if (s.devices.size() != 1) return found;
  const detail::taper_search search(hardware, costs, own);
  for (std::size_t h = 0; h < hastes.size(); ++h) {
    const auto cuts = search.best(hastes[h] * own.microbatches);
    if (!cuts) continue;
    for (std::size_t i = 0; i < cuts->size(); ++i) {
      found[h].stages[i].layers = (*cuts)[i];
      found[h].stages[i].warmup = 0;
    }
    found[h].boundaries.clear();
    found[h].schedule.actions.reset();
  }
  return found;
}

}  // namespace hetsched
