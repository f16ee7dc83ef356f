// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/least_period.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/parallel_pipelines/detail/layer_homes.hpp>

namespace hetsched::detail {

/// What stages take at the end of an iteration besides their updates: at least so much for the reduction of their gradients with
/// those of another pipeline, whichever that is.
class end_table {
 public:
  end_table(const any_cost_model& costs, const interop_problem& problem) : row_(as_size(problem.layers + 1)) {
    const auto& all = problem.placements;
    const auto sync = [&](int first, int last, const placement& a, const placement& b) {
      const placement holders[]{a, b};
      return costs.gradient_sync(layer_range{first, last}, holders).seconds;
    };
    // Of many placements, those on the largest submeshes: most ports work at once there.
    constexpr std::size_t few = 64;
    const auto may_partner = [&](const interop_placement& p, const interop_placement& q) {
      return all.size() <= few || &p == &q || q.devices == at(problem.devices, q.subcluster);
    };
    // Adds a row of sums: with the best partner for the whole model. Returns what that takes.
    const auto add_row = [&](std::vector<double>& sums, const interop_placement& p, auto may) {
      double least = infinity;
      const placement* partner = nullptr;
      for (const auto& q : all) {
        if (!may_partner(p, q) || !may(q)) continue;
        const double s = sync(0, problem.layers, p.where, q.where);
        if (s < least) {
          least = s;
          partner = &q.where;
        }
      }
      sums.push_back(0);
      if (!(least > 0 && least < infinity)) {
        sums.resize(sums.size() + row_ - 1, 0.0);
        return least;
      }
      const auto of = [&](int first, int last) { return sync(first, last, p.where, *partner); };
      // A constant per call is left out: it counts once per group of layers, whose number is not known.
      double base = problem.layers > 1 ? std::clamp(of(0, 1) + of(1, 2) - of(0, 2), 0.0, of(0, 1)) : 0;
      std::vector<double> layers;
      for (int l = 0; l < problem.layers; ++l) layers.push_back(std::max(0.0, of(l, l + 1) - base));
      leave_out_copies(layers, least - base, costs.copies(p.where));
      for (const double layer : layers) sums.push_back(sums.back() + layer);
      return least;
    };
    for (const auto& p : all) {
      // Devices of both are others. Of many placements, smaller ones that would have room are not among the partners.
      const int devices = at(problem.devices, p.subcluster), left = all.size() <= few ? devices - p.devices : devices;
      const double least = add_row(sums_, p, [&](const auto& q) { return q.subcluster != p.subcluster || q.devices <= left; });
      any_ = any_ || least > 0;
      add_row(apart_, p, [&](const auto& q) { return q.subcluster != p.subcluster; });
      for (auto q = all.begin(); alone_ && q != all.end(); ++q)
        alone_ = !may_partner(p, *q) || !(sync(0, problem.layers, p.where, q->where) < infinity);
    }
  }

  /// The same for sets of pipelines that hold layers in these places: gradients of layers that are apart leave their subcluster.
  [[nodiscard]] end_table in(const layer_homes& homes) const {
    auto found = *this;
    for (std::size_t row = 0; row < sums_.size(); row += row_)
      for (std::size_t l = 1; l < row_; ++l) {
        double own = sums_[row + l] - sums_[row + l - 1];
        if (homes.of[l - 1] == layer_homes::apart) own = std::max(own, apart_[row + l] - apart_[row + l - 1]);
        found.sums_[row + l] = found.sums_[row + l - 1] + own;
      }
    return found;
  }

  /// Whether reductions between pipelines take any time.
  [[nodiscard]] bool any() const { return any_; }
  /// Whether no two pipelines can add up their gradients.
  [[nodiscard]] bool alone() const { return alone_; }
  [[nodiscard]] double reduction(int p, int first, int last) const {
    const double* row = sums_.data() + as_size(p) * row_;
    return row[last] - row[first];
  }

 private:
  std::size_t row_;
  std::vector<double> sums_;   // [placement][layer]
  std::vector<double> apart_;  // the same with a partner in another subcluster
  bool any_ = false, alone_ = true;
};

/// From which layer on a pipeline is in a subcluster.
struct subcluster_visit {
  int subcluster = 0, first = 0;
  friend bool operator==(subcluster_visit, subcluster_visit) = default;
  friend auto operator<=>(subcluster_visit, subcluster_visit) = default;
};

/// A kind of pipeline, of which a plan may hold any number.
struct pipeline_column {
  std::vector<interop_stage> stages;
  /// Where each layer is. Pipelines of equal visits add up their gradients without leaving a subcluster.
  std::vector<subcluster_visit> visits;
  std::vector<int> devices;  // by subcluster
  double latency = 0;        // of one microbatch, there and back
  double period = 0;         // the least whose warm-ups fit in memory
  double end = 0;            // what updates and reductions add at least
  std::vector<int> warmups;  // at that period

  [[nodiscard]] double first_s() const { return latency + end; }
  /// Seconds of an iteration of so many microbatches.
  [[nodiscard]] double iteration_s(int microbatches) const { return first_s() + (microbatches - 1) * period; }
  /// Microbatches in an iteration of `seconds`.
  [[nodiscard]] double microbatches_by(double seconds) const {
    return seconds < first_s() ? 0 : (seconds - first_s()) / std::max(period, least_period_s) + 1;
  }
};

/// The stage that is done last, and what it adds to an iteration.
struct last_stage {
  std::size_t stage = 0;
  double end_s = 0;
};

/// Where updates, and reductions if they count, end an iteration: a stage ends before the first one by the backwards and
/// gradients in between.
[[nodiscard]] inline last_stage last_done(const end_table& ends, const stage_prices& table,
                                          const std::vector<interop_stage>& stages, const pipeline& bare, bool reductions) {
  double before = 0;
  last_stage found;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    double own = table.updates()(s.placement, s.layers.first, s.layers.last);
    if (reductions) own += ends.reduction(s.placement, s.layers.first, s.layers.last);
    if (own - before > found.end_s) found = {i, own - before};
    const int k = static_cast<int>(i);
    before += bare.compute_s(k) - table.forward(s.placement, s.layers.first, s.layers.last);
    if (k + 1 < bare.stages()) before += bare.slower_way_s(k);
  }
  return found;
}

/// The column of these stages for at most so many microbatches; none if they fit in no memory or a transfer is impossible.
[[nodiscard]] inline std::optional<pipeline_column> column_of(const interop_problem& problem, const stage_prices& table,
                                                              const end_table& ends, const warmup_algebra& algebra,
                                                              std::vector<interop_stage> stages, int microbatches,
                                                              bool reductions) {
  const auto bare = search_pipeline(problem, table, stages);
  const auto caps = warmup_caps(problem, table, stages, microbatches);
  pipeline_column found;
  for (int i = 0; i < bare.stages(); ++i) {
    if (at(caps, i) < 1) return std::nullopt;
    found.latency += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
  }
  if (!(found.latency < infinity)) return std::nullopt;
  found.period = least_period(algebra, bare, caps, infinity);
  if (!(found.period < infinity)) return std::nullopt;
  found.warmups = warmups_for(algebra, bare, found.period);
  for (std::size_t i = 0; i < caps.size(); ++i)
    if (std::min(found.warmups[i], microbatches) > caps[i]) return std::nullopt;
  found.end = last_done(ends, table, stages, bare, reductions).end_s;
  found.devices.resize(problem.devices.size());
  for (const auto& s : stages) {
    const auto& placed = at(problem.placements, s.placement);
    at(found.devices, placed.subcluster) += placed.devices;
    if (found.visits.empty() || found.visits.back().subcluster != placed.subcluster)
      found.visits.push_back({placed.subcluster, s.layers.first});
  }
  found.stages = std::move(stages);
  return found;
}

/// Hands out microbatches, each to the pipeline that is done first with one more: the least iteration by the columns' figures.
/// O(microbatches log pipelines).
[[nodiscard]] inline std::vector<int> hand_out(std::span<const pipeline_column* const> pipelines, int microbatches) {
  using next = std::pair<double, std::size_t>;
  std::priority_queue<next, std::vector<next>, std::greater<>> queue;
  for (std::size_t i = 0; i < pipelines.size(); ++i) queue.push({pipelines[i]->iteration_s(1), i});
  std::vector<int> counts(pipelines.size());
  for (int m = 0; m < microbatches; ++m) {
    const auto i = queue.top().second;
    queue.pop();
    queue.push({pipelines[i]->iteration_s(++counts[i] + 1), i});
  }
  return counts;
}

}  // namespace hetsched::detail
