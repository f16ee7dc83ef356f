// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/taper.hpp>

namespace hetsched {

namespace detail {

/// Cuts of layers for stages in a row, each on devices that are known: what stages take, and the cuts of the least bound.
class taper_search {
 public:
  /// microbatches: the fewest that best() is asked for. Stages of which that many take longer than the bound of the pipeline's
  /// own cuts are in no better pipeline, and are left out.
  taper_search(price_book& book, const pipeline_plan& own, double microbatches)
      : layers_(as_size(book.layers())), stages_(own.stages.size()) {
    const auto& hardware = book.hardware();
    std::vector<int> places;
    for (const auto& s : own.stages) places.push_back(book.find(s.where()));
    way_.assign(stages_ * (layers_ + 1), 0);
    for (std::size_t i = 0; i + 1 < stages_; ++i) {
      const auto &here = own.stages[i], &next = own.stages[i + 1];
      const auto near = proximity_of(here.devices, next.devices, subcluster_of(hardware, here.where().mesh).devices_per_node);
      for (std::size_t cut = 1; cut < layers_; ++cut)
        way_[i * (layers_ + 1) + cut] = book.transfer(static_cast<int>(cut) - 1, places[i], places[i + 1], near).round_trip_s();
    }
    for (std::size_t i = 0; i < stages_; ++i) {
      const auto layers = own.stages[i].layers;
      own_.push_back({as_size(layers.last), book.stage(places[i], layers).total_s()});
    }
    const double longest = bound_of_own(microbatches) / microbatches;
    for (std::size_t i = 0; i < stages_; ++i) {
      const auto& here = book[places[i]];
      const auto memory = subcluster_of(hardware, here.where.mesh).device.memory_bytes;
      // The warm-up that 1F1B needs at the least.
      const auto in_flight = static_cast<double>(std::min(own.microbatches, static_cast<int>(stages_ - i)));
      for (std::size_t first = 0; first < layers_; ++first) {
        rows_.push_back(time_.size());
        stage_cost sum;
        for (auto last = first + 1; first >= i && last + (stages_ - i - 1) <= layers_; ++last) {
          if (book.additive())
            sum += book.layers_on(places[i])[last - 1];
          else
            sum = book.stage(places[i], {static_cast<int>(first), static_cast<int>(last)});
          const double t = sum.total_s();
          auto held = sum;
          if (book.additive()) drop_copies(held, {static_cast<int>(first), static_cast<int>(last)}, here.copies);
          if (memory_of(held, here.overheads, in_flight).total() > memory || t > longest) break;
          time_.push_back(t);
        }
      }
    }
    rows_.push_back(time_.size());
  }

  /// The cuts of the least bound for so many microbatches; none if memory is short, also for the pipeline's own.
  [[nodiscard]] std::optional<std::vector<layer_range>> best(double microbatches) const {
    double low = 0, high = bound_of_own(microbatches) * (1 + tolerance::rounding);
    auto found = cuts(microbatches, high);
    while (found && high - low > 1e-7 * high) {
      const double middle = (low + high) / 2;
      if (auto better = cuts(microbatches, middle)) {
        found = std::move(better);
        high = middle;
      } else {
        low = middle;
      }
    }
    return found;
  }

 private:
  struct own_stage {
    std::size_t last;
    double seconds;
  };

  [[nodiscard]] double bound_of_own(double microbatches) const {
    double before = 0, bound = 0;
    for (std::size_t i = 0; i < stages_; ++i) {
      bound = std::max(bound, before + microbatches * own_[i].seconds);
      before += own_[i].seconds + way_[i * (layers_ + 1) + own_[i].last];
    }
    return bound;
  }

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
        const auto at = i * layers_ + first;
        for (auto k = rows_[at]; k < rows_[at + 1] && before + microbatches * time_[k] <= limit; ++k) {
          const auto last = first + 1 + k - rows_[at];
          const double seconds = before + time_[k] + way_[i * row + last];
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
  std::vector<double> time_;       // forward and backward, of stages by their ends
  std::vector<std::size_t> rows_;  // [stage][first layer]: where they begin in time_
  std::vector<double> way_;        // [stage][end], there and back
  std::vector<own_stage> own_;
};

}  // namespace detail

HETSCHED_INLINE std::vector<pipeline_plan> tapered(price_book& book, const pipeline_plan& own, std::span<const double> hastes) {
  std::vector<pipeline_plan> found(hastes.size(), own);
  for (const auto& s : own.stages)
    if (s.devices.size() != 1) return found;
  if (hastes.empty()) return found;
  const detail::taper_search search(book, own, own.microbatches * *std::min_element(hastes.begin(), hastes.end()));
  for (std::size_t h = 0; h < hastes.size(); ++h) {
    const auto cuts = search.best(hastes[h] * own.microbatches);
    if (!cuts || std::equal(cuts->begin(), cuts->end(), own.stages.begin(),
                            [](layer_range cut, const stage_plan& s) { return cut == s.layers; }))
      continue;
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
