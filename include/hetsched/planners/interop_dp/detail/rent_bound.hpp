// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>

namespace hetsched::detail {

/// Lower bounds on what the layers before a suffix add to its latency to make the objective sum(t + 2c) + (M - 1) * period.
/// Let every device of subcluster k cost rent_k per second, such that all devices together cost M - 1. A stage takes at most the
/// period, so (M - 1) * period is at least the rent of the stages' devices over the stages' times, and the objective at least the
/// sum over layers of time * (1 + rent of the devices). This holds for any rents; the best are the dual prices of device time.
class rent_bound {
 public:
  /// Where go_on, asked now and then, returns false, it ends, and its bounds are none.
  rent_bound(const interop_problem& problem, const stage_prices& table, const std::vector<route_phase>& route, int microbatches,
             function_ref<bool()> go_on = {})
      : problem_(problem), table_(table), route_(route), steady_(microbatches - 1), rent_(problem.devices.size(), 0.0) {
    group_placements();
    fastest_before_ = priced_before({});
    if (steady_ > 0) choose_rents(go_on);
    const auto entries = cheapest_entries();
    for (const auto& phase : route) {
      if (go_on && !go_on()) return;
      priced_before_.push_back(priced_before(phase.done));
      entry_.push_back(cheapest_entry(entries, phase));
    }
    objective_ = priced_before({}).back();
  }

  /// The least cost, rents included, of all layers before each one.
  [[nodiscard]] std::vector<double> cost_before() const { return priced_before({}); }

  /// Placements on which the whole model costs, rents included, at most `slack` times the least in their subcluster, and the
  /// cheapest one of each transfer class.
  [[nodiscard]] std::vector<int> competitive(double slack) const {
    std::vector<double> least(problem_.devices.size(), infinity), of_class(as_size(problem_.classes()), infinity);
    const auto each = [&](auto body) {
      for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
        const auto& placed = problem_.placements[p];
        if (placed.dominated) continue;
        const auto k = as_size(placed.subcluster);
        body(static_cast<int>(p), table_.time(static_cast<int>(p), 0, problem_.layers) * (1 + rent_[k] * placed.devices),
             least[k], at(of_class, placed.transfer_class));
      }
    };
    each([](int, double cost, double& a, double& b) {
      a = std::min(a, cost);
      b = std::min(b, cost);
    });
    std::vector<int> found;
    each([&](int p, double cost, double a, double b) {
      if (cost <= slack * a || cost <= b) found.push_back(p);
    });
    return found;
  }

  /// No plan has a smaller latency.
  [[nodiscard]] double latency() const { return fastest_before_.back(); }

  /// No plan has a smaller objective, whatever its period.
  [[nodiscard]] double objective() const { return objective_; }

  /// Which suffixes, by latency and first layer, can still become plans within a budget.
  struct filter {
    const double* fastest = nullptr;
    const double* priced = nullptr;
    double steady = 0;  // (M - 1) * period
    double rent = 0;    // of the devices that the layers before the suffix cannot use
    double budget = 0;
    int held = 0;      // layers that the suffix's subcluster can still hold
    double entry = 0;  // both ways over the cheapest link into it: what more layers cost at least
    /// The largest latency of a suffix from layer `first` on that can.
    [[nodiscard]] double latency_limit(int first) const {
      const auto i = as_size(first);
      return budget - std::max(fastest[i] + steady, priced[i] + rent) - (first > held ? entry : 0);
    }
  };

  /// The filter for suffixes that are in a phase and use so many devices of its subcluster, which can hold `held` layers more,
  /// for periods of at least `period`.
  [[nodiscard]] filter before(int phase, int used, int held, double period, double budget) const {
    const auto i = as_size(phase);
    double rent = at(rent_, route_[i].subcluster) * used;
    for (const int k : route_[i].done) rent += at(rent_, k) * at(problem_.devices, k);
    return {fastest_before_.data(), priced_before_[i].data(), steady_ * period, rent * period, budget, held, entry_[i]};
  }

 private:
  // Placements on as many devices of a subcluster, and the least time of each layer on any of them.
  struct group {
    int subcluster = 0, devices = 0;
    std::vector<int> placements;
    std::vector<double> fastest;  // of additive costs
  };

  // Placements come by subcluster and number of devices.
  void group_placements() {
    for (std::size_t i = 0; i < problem_.placements.size(); ++i) {
      const auto& placed = problem_.placements[i];
      if (placed.dominated) continue;
      if (groups_.empty() || groups_.back().subcluster != placed.subcluster || groups_.back().devices != placed.devices)
        groups_.push_back({placed.subcluster, placed.devices, {}, {}});
      auto& own = groups_.back();
      const int p = static_cast<int>(i);
      own.placements.push_back(p);
      if (!table_.additive()) continue;
      own.fastest.resize(as_size(problem_.layers), infinity);
      for (int l = 0; l < problem_.layers; ++l) at(own.fastest, l) = std::min(at(own.fastest, l), table_.time(p, l, l + 1));
    }
  }

  // Raises the rent where the cheapest layers crowd, in shrinking steps, and keeps the best bound met.
  void choose_rents(function_ref<bool()> go_on) {
    const auto count = rent_.size();
    std::vector<double> weight(count, 1.0), best, device_time;
    double best_bound = -1;
    for (int round = 0; round < 60 && (round == 0 || !go_on || go_on()); ++round) {
      double total = 0;
      for (std::size_t k = 0; k < count; ++k) total += weight[k] * problem_.devices[k];
      for (std::size_t k = 0; k < count; ++k) rent_[k] = weight[k] * steady_ / total;
      device_time.assign(count, 0.0);
      const double bound = priced_before({}, &device_time).back();
      if (bound > best_bound) {
        best_bound = bound;
        best = rent_;
      }
      double sum = 0;
      for (const double t : device_time) sum += t;
      if (count == 1 || !(sum > 0)) break;
      for (std::size_t k = 0; k < count; ++k)
        weight[k] *= std::exp((device_time[k] / sum - 1.0 / static_cast<double>(count)) / (1 + 0.25 * round));
    }
    rent_ = best;
  }

  // Both ways over the cheapest boundary between any two subclusters, [from][to]; infinity where there is none.
  [[nodiscard]] std::vector<double> cheapest_entries() const {
    const auto count = problem_.devices.size();
    std::vector<double> least(count * count, infinity);
    for (int from = 0; from < problem_.classes(); ++from)
      for (int to = 0; to < problem_.classes(); ++to) {
        auto& known = least[as_size(at(problem_.class_subcluster, from)) * count + as_size(at(problem_.class_subcluster, to))];
        const auto* price = problem_.transfer(from, to);
        for (int j = 0; j < problem_.kinds; ++j) known = std::min(known, price[j].round_trip);
      }
    return least;
  }

  // The cheapest by which the pipeline can come into the phase's subcluster; infinity if there is none.
  [[nodiscard]] double cheapest_entry(const std::vector<double>& entries, const route_phase& phase) const {
    const auto closed = flags(phase.done);
    double least = infinity;
    for (std::size_t k = 0; k < closed.size(); ++k)
      if (!closed[k] && k != as_size(phase.subcluster))
        least = std::min(least, entries[k * closed.size() + as_size(phase.subcluster)]);
    return least;
  }

  [[nodiscard]] std::vector<bool> flags(const std::vector<int>& subclusters) const {
    std::vector<bool> set(problem_.devices.size());
    for (const int k : subclusters) set[as_size(k)] = true;
    return set;
  }

  // For every i: the least sum over the layers before i of time * (1 + rent), outside the subclusters `done`. Adds up, by
  // subcluster, the share of its devices' time that the cheapest choice takes.
  [[nodiscard]] std::vector<double> priced_before(const std::vector<int>& done,
                                                  std::vector<double>* device_time = nullptr) const {
    const auto closed = flags(done);
    std::vector<double> sum(as_size(problem_.layers + 1), infinity);
    sum[0] = 0;
    for (int i = 1; i <= problem_.layers; ++i) {
      auto& least = at(sum, i);
      const group* cheapest = nullptr;
      double time = 0;
      for (const auto& g : groups_) {
        if (closed[as_size(g.subcluster)]) continue;
        const double factor = 1 + at(rent_, g.subcluster) * g.devices;
        const auto consider = [&](int first, double t) {
          const double cost = at(sum, first) + t * factor;
          if (cost >= least) return;
          least = cost;
          cheapest = &g;
          time = t;
        };
        if (table_.additive())
          consider(i - 1, at(g.fastest, i - 1));
        else
          for (const int p : g.placements)
            for (int first = 0; first < i; ++first) consider(first, table_.time(p, first, i));
      }
      if (device_time && cheapest) {
        const auto k = as_size(cheapest->subcluster);
        (*device_time)[k] += time * cheapest->devices / problem_.devices[k];
      }
    }
    for (auto& s : sum) s *= 1 - tolerance::rounding;  // a bound in spite of rounding
    return sum;
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const std::vector<route_phase>& route_;
  double steady_;  // M - 1
  std::vector<group> groups_;
  std::vector<double> rent_;
  std::vector<double> fastest_before_;
  std::vector<std::vector<double>> priced_before_;  // by phase
  std::vector<double> entry_;                       // by phase
  double objective_ = 0;
};

}  // namespace hetsched::detail
