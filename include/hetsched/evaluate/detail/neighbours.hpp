// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/robust_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched::detail {

/// Moves so many layers from stage i + 1 to stage i; back, if below 0.
inline void move_layers(pipeline_plan& line, std::size_t i, int layers) {
  line.stages[i].layers.last += layers;
  line.stages[i + 1].layers.first += layers;
}

/// Calls next(plan) with every plan that differs from an evaluated one by a layer that has gone to a neighbouring stage or across
/// one, by up to two microbatches more or less in the warm-ups of the first stages, or by a microbatch that another pipeline
/// does, until it returns true; returns whether it has.
template <class Next>
[[nodiscard]] bool any_neighbour(const plan& p, Next&& next) {
  const auto by_warmups = [](const pipeline_plan& line) { return !line.schedule.actions && has_warmups(line.schedule.name); };
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    for (std::size_t i = 0; i + 1 < line.stages.size(); ++i)
      for (const int layers : {-1, 1})
        for (const int beyond : {0, -1, 1}) {
          if (beyond != 0 && i + 2 == line.stages.size()) continue;
          auto other = p;
          auto& changed = other.pipelines[l];
          move_layers(changed, i, layers);
          if (beyond != 0) move_layers(changed, i + 1, beyond);
          const auto has_layers = [](const auto& s) { return s.layers.size() > 0; };
          if (!std::all_of(changed.stages.begin(), changed.stages.end(), has_layers)) continue;
          if (next(std::move(other))) return true;
        }
    for (std::size_t i = 0; by_warmups(line) && i < line.stages.size(); ++i)
      for (const int more : {-1, 1, -2, 2}) {
        const int least = i + 1 < line.stages.size() ? line.stages[i + 1].warmup : 1;
        if (line.stages[i].warmup + more < least || line.stages[0].warmup + more > line.microbatches) continue;
        auto other = p;
        for (std::size_t k = 0; k <= i; ++k) other.pipelines[l].stages[k].warmup += more;
        if (next(std::move(other))) return true;
      }
    for (std::size_t k = 0; k < p.pipelines.size(); ++k) {
      const auto& to = p.pipelines[k];
      if (k == l || line.microbatches == 1 || line.schedule.actions || to.schedule.actions ||
          line.microbatch_size != to.microbatch_size)
        continue;
      auto other = p;
      ++other.pipelines[k].microbatches;
      const int left = --other.pipelines[l].microbatches;
      for (auto& s : other.pipelines[l].stages) s.warmup = std::min(s.warmup, left);
      if (next(std::move(other))) return true;
    }
  }
  return false;
}

}  // namespace hetsched::detail
