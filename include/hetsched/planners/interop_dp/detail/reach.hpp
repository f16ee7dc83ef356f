// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <vector>

#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>

namespace hetsched::detail {

/// For one period, how many layers the devices that are left can still hold: an upper bound, from time, transfers that keep the
/// period, and memory at the fewest microbatches in flight. Suffixes that leave more layers than that lead nowhere.
class reach {
 public:
  /// `fewest`: in flight on any stage but the last of the pipeline, at least.
  reach(const interop_problem& problem, const stage_prices& table, const std::vector<route_phase>& route, int fewest,
        bool use_all)
      : problem_(problem),
        table_(table),
        route_(route),
        fewest_(fewest),
        use_all_(use_all),
        placements_of_(problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) placements_of_[at(problem.placements[p].subcluster)].push_back(static_cast<int>(p));
    furthest_.resize(2 * problem.placements.size() * row_size());
    cuts_.resize(problem.devices.size() * problem.devices.size() * row_size());
    fastest_.resize(cuts_.size(), infinity);
    const auto pairs = problem.devices.size() * problem.devices.size();
    std::vector<double> of_kind(pairs * at(problem.kinds), infinity);  // [from][to][kind]
    for (int from = 0; from < problem.classes(); ++from)
      for (int to = 0; to < problem.classes(); ++to) {
        const auto a = at(problem.class_subcluster[at(from)]), b = at(problem.class_subcluster[at(to)]);
        double* least = of_kind.data() + (a * problem.devices.size() + b) * at(problem.kinds);
        for (const auto* price : {problem.transfer(from, to), problem.near_transfer(from, to)})
          for (int kind = 0; kind < problem.kinds; ++kind) least[kind] = std::min(least[kind], price[kind].occupied);
      }
    for (std::size_t pair = 0; pair < pairs; ++pair)
      for (int cut = 1; cut < problem.layers; ++cut)
        fastest_[pair * row_size() + at(cut)] = of_kind[pair * at(problem.kinds) + at(problem.kind_before(cut))];
    before_.resize(route.size());
    staying_.resize(route.size());
  }

  /// Placements of a subcluster that the search looks at.
  [[nodiscard]] const std::vector<int>& placements_of(int subcluster) const { return placements_of_[at(subcluster)]; }

  /// Where a stage of placement p that starts at `first` or before ends at the most, with one microbatch in flight.
  [[nodiscard]] int furthest(int p, int first) const { return row(p, 0)[first]; }

  /// The most layers that stages put before a suffix can hold, if it is in that phase and uses so many devices; -1: there is no
  /// way on.
  [[nodiscard]] int before(int phase, int used) const { return before_[at(phase)][at(used)]; }

  /// The same for stages in the phase's own subcluster alone.
  [[nodiscard]] int before_without_leaving(int phase, int used) const { return staying_[at(phase)][at(used)]; }

  /// O(P L + K^2 L + sum over phases of devices * placements).
  void measure(double period, const std::vector<double>& capacity) {
    for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
      const int i = static_cast<int>(p);
      table_.furthest(i, period, capacity[p], 1, row(i, 0));
      if (fewest_ > 1) table_.furthest(i, period, capacity[p], fewest_, row(i, 1));
    }
    measure_cuts(period);
    std::vector<int> after_exit(route_.size(), -1);  // as before_, once the suffix has left its subcluster
    for (int ph = static_cast<int>(route_.size()) - 1; ph >= 0; --ph) {
      const auto& phase = route_[at(ph)];
      const int all = problem_.devices[at(phase.subcluster)];
      auto& up = before_[at(ph)];
      auto& stay = staying_[at(ph)];
      up.assign(at(all + 1), -1);
      stay.assign(at(all + 1), -1);
      for (int used = all; used >= 0; --used) {
        const bool may_leave = used > 0 && (!use_all_ || used == all);
        stay[at(used)] = may_leave && phase.may_end ? 0 : -1;
        int most = may_leave ? std::max(stay[at(used)], after_exit[at(ph)]) : -1;
        for (const int p : placements_of_[at(phase.subcluster)]) {
          const int next = used + problem_.placements[at(p)].devices;
          if (next > all) continue;
          const auto end = [&](int start) {
            if (start < 0) return -1;
            const int layer = row(p, fewest_ > 1)[start];
            return used > 0 ? cut_below(phase.subcluster, phase.subcluster)[layer] : layer;
          };
          most = std::max(most, end(up[at(next)]));
          stay[at(used)] = std::max(stay[at(used)], end(stay[at(next)]));
        }
        up[at(used)] = most;
      }
      if (up[0] < 0) continue;
      for (const int from : phase.from)
        after_exit[at(from)] = std::max(after_exit[at(from)], cut_below(phase.subcluster, route_[at(from)].subcluster)[up[0]]);
    }
  }

  /// False only if no plan keeps the period last measured.
  [[nodiscard]] bool whole_model() const {
    for (std::size_t ph = 0; ph < route_.size(); ++ph)
      if (route_[ph].may_start)
        for (const int p : placements_of_[at(route_[ph].subcluster)]) {
          const int covered = before_[ph][at(problem_.placements[at(p)].devices)];
          if (covered >= 0 && furthest(p, covered) == problem_.layers) return true;
        }
    return false;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::size_t row_size() const { return at(problem_.layers + 1); }
  [[nodiscard]] int* row(int p, int kind) { return furthest_.data() + at(2 * p + kind) * row_size(); }
  [[nodiscard]] const int* row(int p, int kind) const { return furthest_.data() + at(2 * p + kind) * row_size(); }

  // Highest cut at or below each layer over which transfers from one subcluster to another keep the period; -1: none.
  [[nodiscard]] int* cut_below(int from, int to) {
    return cuts_.data() + (at(from) * problem_.devices.size() + at(to)) * row_size();
  }

  void measure_cuts(double period) {
    for (std::size_t i = 0; i < cuts_.size(); ++i) cuts_[i] = fastest_[i] <= period ? static_cast<int>(i % row_size()) : -1;
    for (auto below = cuts_.begin(); below != cuts_.end(); below += problem_.layers + 1)
      for (int cut = 1; cut <= problem_.layers; ++cut) below[cut] = std::max(below[cut], below[cut - 1]);
  }

  const interop_problem& problem_;
  const stage_prices& table_;
  const std::vector<route_phase>& route_;
  int fewest_;
  bool use_all_;
  std::vector<std::vector<int>> placements_of_;
  std::vector<int> furthest_;              // [placement][in flight: 1, fewest][first layer]
  std::vector<int> cuts_;                  // [from][to][layer]
  std::vector<double> fastest_;            // the same: the least time that it is occupied, whatever the placements
  std::vector<std::vector<int>> before_;   // [phase][devices used]
  std::vector<std::vector<int>> staying_;  // the same without another subcluster
};

}  // namespace hetsched::detail
