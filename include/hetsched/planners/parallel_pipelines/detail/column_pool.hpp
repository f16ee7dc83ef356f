// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/cost_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>

namespace hetsched::detail {

/// Columns that sets are made of, and their packings into a cluster: all columns, or those whose devices together cost no more
/// than a rate, or those that visit the subclusters alike.
class column_pool {
 public:
  column_pool(std::vector<int> devices, int microbatches) : devices_(std::move(devices)), microbatches_(microbatches) {}

  [[nodiscard]] const std::vector<pipeline_column>& columns() const { return columns_; }

  /// Adds a column if it fits into the cluster and is not known yet.
  void add(pipeline_column c) {
    for (std::size_t k = 0; k < devices_.size(); ++k)
      if (c.devices[k] > devices_[k]) return;
    const auto known = [&](const pipeline_column& other) {
      return other.period == c.period && other.latency == c.latency && other.stages == c.stages;
    };
    if (std::none_of(columns_.begin(), columns_.end(), known)) columns_.push_back(std::move(c));
  }

  /// What sets are made of from now on. `prices`: of devices, by subcluster, of which a set may cost `rate`; `visits`: of its
  /// columns; none: any.
  void restrict_to(std::vector<double> prices, double rate, std::vector<subcluster_visit> visits) {
    prices_ = std::move(prices);
    rate_ = rate;
    visits_ = std::move(visits);
  }

  /// A packing of columns by a deadline.
  struct column_packing : packing {
    std::vector<std::size_t> columns;  // of each item
  };

  /// With whole microbatches; only the best column of each number of devices counts.
  [[nodiscard]] column_packing whole_packing_at(double seconds) const {
    auto found = eligible();
    for (std::size_t i = 0; i < found.items.size(); ++i)
      found.items[i].value =
          static_cast<double>(static_cast<std::int64_t>(columns_[found.columns[i]].microbatches_by(seconds) + tolerance::sums));
    for (std::size_t i = 0; i < found.items.size(); ++i)
      for (std::size_t j = 0; j < i && found.items[i].value > 0; ++j)
        if (found.items[i].takes == found.items[j].takes)
          (found.items[i].value > found.items[j].value ? found.items[j] : found.items[i]).value = 0;
    return found;
  }

  /// The deadline by which fractions of columns do all microbatches, infinity if none do; and the prices of the devices, and of
  /// the rate if that is limited, in microbatches.
  struct relaxed_set {
    double seconds = infinity;
    std::vector<double> prices;
  };
  /// O(1) packings: see when_it_holds.
  [[nodiscard]] relaxed_set relaxed() const {
    auto given = eligible();
    if (given.items.empty()) return {};
    const auto at = [&](double seconds) {
      for (std::size_t i = 0; i < given.items.size(); ++i)
        given.items[i].value = columns_[given.columns[i]].microbatches_by(seconds);
      return solve_relaxed(given);
    };
    double alone = infinity;  // one column does all by then
    std::vector<double> periods;
    for (const auto i : given.columns) {
      alone = std::min(alone, columns_[i].iteration_s(microbatches_));
      periods.push_back(columns_[i].period);
    }
    auto found = when_it_holds(microbatches_, alone, periods, at);
    return {found.seconds, std::move(found.solved.prices)};
  }

 private:
  // Those that sets may be made of, without a value.
  [[nodiscard]] column_packing eligible() const {
    column_packing found;
    found.room.assign(devices_.begin(), devices_.end());
    if (rate_ < infinity) found.room.push_back(rate_);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const auto& c = columns_[i];
      if (!visits_.empty() && c.visits != visits_) continue;
      packing::item item{0, {c.devices.begin(), c.devices.end()}};
      if (rate_ < infinity) {
        double rate = 0;
        for (std::size_t k = 0; k < prices_.size(); ++k) rate += prices_[k] * c.devices[k];
        if (rate > rate_ * (1 + tolerance::sums)) continue;
        item.takes.push_back(rate);
      }
      found.items.push_back(std::move(item));
      found.columns.push_back(i);
    }
    return found;
  }

  std::vector<int> devices_;
  int microbatches_;
  std::vector<pipeline_column> columns_;
  std::vector<double> prices_;
  double rate_ = infinity;
  std::vector<subcluster_visit> visits_;
};

}  // namespace hetsched::detail
