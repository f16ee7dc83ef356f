// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>
#include <hetsched/planners/parallel_pipelines/detail/candidates.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column_pool.hpp>

namespace hetsched::detail {

/// Packs whole columns of a pool into the cluster, such that they do all microbatches early, and has such sets judged. A set is
/// judged once.
class whole_sets {
 public:
  /// `devices`: of the cluster, by subcluster. The pool may grow between calls.
  whole_sets(column_pool& pool, plan_candidates& found, const std::vector<int>& devices, int microbatches,
             function_ref<bool()> go_on)
      : pool_(pool), found_(found), devices_(devices), microbatches_(microbatches), go_on_(go_on) {}

  /// Sets that cost no more than `rate` and may be done within `longest_s`: of any columns, as long as their reductions leave
  /// hope, and of columns of equal visits, so that no gradient leaves its subcluster: those whose copies are the fastest.
  void pack(double rate, double longest_s) {
    using visits = std::vector<subcluster_visit>;
    std::map<visits, double> fastest;
    for (const auto& c : pool_.columns()) {
      auto& least = fastest.try_emplace(c.visits, infinity).first->second;
      least = std::min(least, copies_s(c, rate));
    }
    std::vector<std::pair<double, visits>> kinds;
    for (const auto& [where, seconds] : fastest) kinds.push_back({seconds, where});
    std::sort(kinds.begin(), kinds.end());
    if (mixed_in_vain_ < most_in_vain && kinds.size() > 1) {
      pool_.restrict_to(found_.worth().prices(), rate, {});
      earliest(longest_s);
    }
    for (std::size_t i = 0; i < std::min<std::size_t>(kinds.size(), 6) && go_on_(); ++i) {
      pool_.restrict_to(found_.worth().prices(), rate, kinds[i].second);
      earliest(longest_s);
    }
  }

  /// Copies of a single column each, of those whose copies are the fastest.
  void copy_columns() {
    std::vector<std::pair<double, std::size_t>> guesses;
    for (std::size_t i = 0; i < pool_.columns().size(); ++i) guesses.push_back({copies_s(pool_.columns()[i], infinity), i});
    std::sort(guesses.begin(), guesses.end());
    for (std::size_t i = 0; i < std::min<std::size_t>(guesses.size(), 8) && guesses[i].first < found_.best_s() && go_on_(); ++i) {
      const auto copies = as_size(copies_of(pool_.columns()[guesses[i].second], infinity));
      judge(std::vector<std::size_t>(copies, guesses[i].second));
    }
  }

 private:
  // How often a column fits into the cluster and costs no more than `rate`; at the most once per microbatch.
  [[nodiscard]] int copies_of(const pipeline_column& c, double rate) const {
    int fits = microbatches_;
    for (std::size_t k = 0; k < devices_.size(); ++k)
      if (c.devices[k] > 0) fits = std::min(fits, devices_[k] / c.devices[k]);
    const double own = found_.worth().rate(c.devices);
    return rate < infinity ? std::min(fits, static_cast<int>(std::min(1e9, rate / own * (1 + tolerance::sums)))) : fits;
  }
  [[nodiscard]] double copies_s(const pipeline_column& c, double rate) const {
    const int fits = copies_of(c, rate);
    return fits < 1 ? infinity : c.iteration_s((microbatches_ + fits - 1) / fits);
  }

  // The least deadline by which whole columns of what the pool is restricted to do all microbatches, by bisection.
  void earliest(double longest_s) {
    const auto relaxed = pool_.relaxed();
    double low = relaxed.seconds, high = low * 1.001;
    if (!(low < infinity && low > 0)) return;
    std::vector<std::size_t> last;  // columns
    const auto reach = [&](double seconds) {
      const auto given = pool_.whole_packing_at(seconds);
      const auto packed = solve_whole(given, relaxed.prices, microbatches_, most_steps);
      if (packed.value < microbatches_) return false;
      last.clear();
      for (std::size_t i = 0; i < packed.counts.size(); ++i) last.insert(last.end(), as_size(packed.counts[i]), given.columns[i]);
      return true;
    };
    const double limit = std::min(longest_s, low * 1e3);
    while (!reach(high)) {
      low = high;
      high *= high < 1.2 * relaxed.seconds ? 1.02 : 1.5;
      if (high > limit) return;
    }
    judge(last);
    for (int i = 0; i < 10 && high > low * 1.0005 && go_on_(); ++i) {
      const double middle = (low + high) / 2;
      if (reach(middle)) {
        high = middle;
        judge(last);
      } else {
        low = middle;
      }
    }
  }

  void judge(const std::vector<std::size_t>& which) {
    if (which.empty() || !judged_.insert(which).second) return;
    std::vector<const pipeline_column*> set;
    for (const auto i : which) set.push_back(&pool_.columns()[i]);
    const auto counts = hand_out(set, microbatches_);
    std::vector<plan_candidates::line> lines;
    double expected_s = 0;
    bool mixed = false;
    for (std::size_t i = 0; i < set.size(); ++i) {
      if (counts[i] == 0) continue;
      lines.push_back({&set[i]->stages, counts[i]});
      expected_s = std::max(expected_s, set[i]->iteration_s(counts[i]));
      mixed = mixed || set[i]->visits != set.front()->visits;
    }
    const double seconds = found_.consider(lines);
    if (mixed) mixed_in_vain_ = seconds > 1.3 * expected_s ? mixed_in_vain_ + 1 : 0;
  }

  static constexpr std::int64_t most_steps = 20'000;
  static constexpr int most_in_vain = 3;

  column_pool& pool_;
  plan_candidates& found_;
  const std::vector<int>& devices_;
  int microbatches_;
  function_ref<bool()> go_on_;
  std::set<std::vector<std::size_t>> judged_;  // by columns of the pool
  int mixed_in_vain_ = 0;  // sets of columns of several visits, one after the other, whose reductions took too long
};

}  // namespace hetsched::detail
