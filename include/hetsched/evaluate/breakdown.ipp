// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/breakdown.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate.hpp>

namespace hetsched {

HETSCHED_INLINE cluster with_free_links(cluster c) {
  const hetsched::link free{.latency_s = 0, .bandwidth = infinity};
  for (auto& s : c.subclusters) s.intra_node = s.inter_node = free;
  for (auto& l : c.links) {
    l.link = free;
    l.bandwidth_back = 0;
  }
  return c;
}

HETSCHED_INLINE breakdown break_down(const cluster& hardware, const evaluation& whole, const evaluation& alone) {
  const auto& lines = whole.plan.pipelines;
  detail::expect_count(static_cast<std::int64_t>(lines.size()), "pipelines of the plan");
  detail::expect_size(alone.plan.pipelines.size(), lines.size(), "the plan on free links", "a pipeline for each of the plan's");
  for (std::size_t l = 0; l < lines.size(); ++l)
    detail::expect_size(alone.plan.pipelines[l].stages.size(), lines[l].stages.size(), "a pipeline on free links",
                        "a stage for each of the plan's");
  detail::require_evaluated(whole.plan, hardware);
  breakdown parts;
  double most_s = -1;
  for (std::size_t l = 0; l < lines.size(); ++l)
    for (std::size_t i = 0; i < lines[l].stages.size(); ++i) {
      const auto& s = lines[l].stages[i];
      const double work_s = lines[l].microbatches * s.cost.total_s() + s.update_s;
      if (work_s <= most_s) continue;
      most_s = work_s;
      parts.pipeline = static_cast<int>(l);
      parts.stage = static_cast<int>(i);
    }
  auto unhindered = whole.plan;
  for (auto& line : unhindered.pipelines)
    for (auto& b : line.boundaries) b = {};
  const auto free = detail::evaluate_priced(hardware, std::move(unhindered), {});
  const double whole_s = whole.plan.predicted.iteration_s, free_s = free ? free->plan.predicted.iteration_s : whole_s;

  const auto l = as_size(parts.pipeline), i = as_size(parts.stage);
  const auto &busiest = lines[l].stages[i], &by_itself = alone.plan.pipelines[l].stages[i];
  double reduction_s = 0;
  for (const auto& g : whole.plan.gradient_sync)
    if (g.layers.first < busiest.layers.last && g.layers.last > busiest.layers.first) reduction_s += g.seconds;
  for (const auto& c : lines[l].copy_sync)
    for (const int layer : {c.owner, c.layer})
      if (layer >= busiest.layers.first && layer < busiest.layers.last) reduction_s += c.seconds;
  parts.compute_s = lines[l].microbatches * by_itself.cost.total_s();
  parts.collective_s = lines[l].microbatches * busiest.cost.total_s() - parts.compute_s;
  parts.optimizer_s = by_itself.update_s;
  parts.gradient_reduction_s = busiest.update_s - by_itself.update_s + reduction_s;
  parts.transfer_s = std::max(0.0, whole_s - free_s);
  parts.bubble_s = whole_s - parts.transfer_s - most_s - reduction_s;
  if (parts.bubble_s < tolerance::rounding * whole_s) parts.bubble_s = 0;  // rounding
  return parts;
}

}  // namespace hetsched
