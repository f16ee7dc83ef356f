// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/cost_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// What a set of pipelines is worth, from the seconds of its iteration and the devices that it uses: seconds times a rate, which
/// is the devices' money per second and sample, or 1 where the iteration counts. Where nodes are rented whole, that is the least
/// for so many devices: how they lie on the nodes is not known.
class plan_worth {
 public:
  /// Requires: a valid problem.
  plan_worth(const cluster& hardware, const planning_problem& problem)
      : money_(problem.objective == plan_objective::cost), deadline_s_(problem.deadline_s) {
    const double samples = static_cast<double>(problem.microbatches) * problem.microbatch_size;
    for (const auto& s : hardware.subclusters) {
      whole_nodes_ = whole_nodes_ || (money_ && s.price_per_node_hour);
      together_.push_back(money_ && s.price_per_node_hour ? s.devices_per_node : 1);
      price_.push_back(money_ ? *s.price_per_hour(together_.back(), 1) / 3600 / samples / together_.back() : 0);
    }
  }

  /// Whether money counts.
  [[nodiscard]] bool money() const { return money_; }
  [[nodiscard]] double deadline_s() const { return deadline_s_; }
  /// Whether some nodes are rented whole.
  [[nodiscard]] bool whole_nodes() const { return whole_nodes_; }
  /// Of one device for a second, by subcluster: of a node that is rented whole, its share.
  [[nodiscard]] const std::vector<double>& prices() const { return price_; }

  /// `devices`: by subcluster.
  [[nodiscard]] double rate(std::span<const int> devices) const {
    double sum = money_ ? 0 : 1;
    for (std::size_t k = 0; k < devices.size(); ++k)
      sum += price_[k] * ((devices[k] + together_[k] - 1) / together_[k] * together_[k]);
    return sum;
  }
  /// The objective; infinity for an iteration beyond the deadline.
  [[nodiscard]] double value(double seconds, double rate) const { return seconds > deadline_s_ ? infinity : seconds * rate; }
  /// Iterations of more seconds are worth less than `value`.
  [[nodiscard]] double seconds_for(double value, double rate) const {
    return std::min(deadline_s_, rate > 0 ? value / rate : infinity);
  }

 private:
  bool money_;
  bool whole_nodes_ = false;
  double deadline_s_;
  std::vector<int> together_;  // devices that are rented together, by subcluster
  std::vector<double> price_;
};

/// Why there is no plan where a deadline is asked for that the fastest known plan does not keep.
[[nodiscard]] inline refusal too_late(double deadline_s, double fastest_s) {
  char text[160];
  std::snprintf(text, sizeof text, "no plan was found that is done within the deadline of %.6g s; the fastest takes %.6g s",
                deadline_s, fastest_s);
  return {refusal::kind::infeasible, text};
}

}  // namespace hetsched::detail
