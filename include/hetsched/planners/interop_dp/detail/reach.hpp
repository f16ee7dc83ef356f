// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/interop_dp_test.cpp.

#include <algorithm>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/planners/interop_dp/detail/route.hpp>

namespace hetsched::detail {

/// For one period, how many layers the devices that are left can still hold: an upper bound, from time, transfers that keep the
/// period, and memory at the fewest microbatches in flight. Suffixes that leave more layers than that lead nowhere.
class reach {
 public:
  /// `fewest`: in flight on any stage but the last of the pipeline, at least.
  reach(const interop_problem& problem, const stage_prices& table, const std::vector<route_phase>& route, int fewest,
        bool use_all, function_ref<bool()> go_on = {})
      : problem_(problem),
        table_(table),
        route_(route),
        fewest_(fewest),
        use_all_(use_all),
        go_on_(go_on),
        placements_of_(problem.devices.size()) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p)
      if (!problem.placements[p].dominated) at(placements_of_, problem.placements[p].subcluster).push_back(static_cast<int>(p));
    furthest_.resize(2 * problem.placements.size() * row_size());
    cuts_.resize(problem.devices.size() * problem.devices.size() * row_size());
    fastest_.resize(cuts_.size(), infinity);
    const auto pairs = problem.devices.size() * problem.devices.size();
    std::vector<double> of_kind(pairs * as_size(problem.kinds), infinity);  // [from][to][kind]
    for (int from = 0; from < problem.classes(); ++from)
      for (int to = 0; to < problem.classes(); ++to) {
        const auto a = as_size(at(problem.class_subcluster, from)), b = as_size(at(problem.class_subcluster, to));
        double* least = of_kind.data() + (a * problem.devices.size() + b) * as_size(problem.kinds);
        for (const auto* price : {problem.transfer(from, to), problem.near_transfer(from, to)})
          for (int kind = 0; kind < problem.kinds; ++kind) least[kind] = std::min(least[kind], price[kind].occupied);
      }
    for (std::size_t pair = 0; pair < pairs; ++pair)
      for (int cut = 1; cut < problem.layers; ++cut)
        fastest_[pair * row_size() + as_size(cut)] = of_kind[pair * as_size(problem.kinds) + as_size(problem.kind_before(cut))];
    before_.resize(route.size());
    staying_.resize(route.size());
  }

  /// Placements of a subcluster that the search looks at.
  [[nodiscard]] const std::vector<int>& placements_of(int subcluster) const { return at(placements_of_, subcluster); }

  /// Where a stage of placement p that starts at `first` or before ends at the most, with one microbatch in flight.
  [[nodiscard]] int furthest(int p, int first) const { return row(p, 0)[first]; }

  /// The most layers that stages put before a suffix can hold, if it is in that phase and uses so many devices; -1: there is no
  /// way on.
  [[nodiscard]] int before(int phase, int used) const { return at(at(before_, phase), used); }

  /// The same for stages in the phase's own subcluster alone.
  [[nodiscard]] int before_without_leaving(int phase, int used) const { return at(at(staying_, phase), used); }

  /// O(P L + K^2 L + sum over phases of devices * placements). Where go_on, asked now and then, returns false, it ends: then
  /// it returns false, and what it has measured tells nothing.
  [[nodiscard]] bool measure(double period, const std::vector<double>& capacity) {
    for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
      const int i = static_cast<int>(p);
      table_.furthest(i, period, capacity[p], 1, row(i, 0));
      if (fewest_ > 1) table_.furthest(i, period, capacity[p], fewest_, row(i, 1));
    }
    measure_cuts(period);
    std::vector<int> after_exit(route_.size(), -1);  // as before_, once the suffix has left its subcluster
    for (int ph = static_cast<int>(route_.size()) - 1; ph >= 0; --ph) {
      const auto& phase = at(route_, ph);
      const int all = at(problem_.devices, phase.subcluster);
      auto& up = at(before_, ph);
      auto& stay = at(staying_, ph);
      up.assign(as_size(all + 1), -1);
      stay.assign(as_size(all + 1), -1);
      for (int used = all; used >= 0; --used) {
        if (used % 16 == 0 && go_on_ && !go_on_()) return false;
        const bool may_leave = used > 0 && (!use_all_ || used == all);
        at(stay, used) = may_leave && phase.may_end ? 0 : -1;
        int most = may_leave ? std::max(at(stay, used), at(after_exit, ph)) : -1;
        for (const int p : at(placements_of_, phase.subcluster)) {
          const int next = used + at(problem_.placements, p).devices;
          if (next > all) continue;
          const auto end = [&](int start) {
            if (start < 0) return -1;
            const int layer = row(p, fewest_ > 1)[start];
            return used > 0 ? cut_below(phase.subcluster, phase.subcluster)[layer] : layer;
          };
          most = std::max(most, end(at(up, next)));
          at(stay, used) = std::max(at(stay, used), end(at(stay, next)));
        }
        at(up, used) = most;
      }
      if (up[0] < 0) continue;
      for (const int from : phase.from)
        at(after_exit, from) = std::max(at(after_exit, from), cut_below(phase.subcluster, at(route_, from).subcluster)[up[0]]);
    }
    return true;
  }

  /// False only if no plan keeps the period last measured.
  [[nodiscard]] bool whole_model() const {
    for (std::size_t ph = 0; ph < route_.size(); ++ph)
      if (route_[ph].may_start)
        for (const int p : at(placements_of_, route_[ph].subcluster)) {
          const int covered = at(before_[ph], at(problem_.placements, p).devices);
          if (covered >= 0 && furthest(p, covered) == problem_.layers) return true;
        }
    return false;
  }

 private:
  [[nodiscard]] std::size_t row_size() const { return as_size(problem_.layers + 1); }
  [[nodiscard]] int* row(int p, int kind) { return furthest_.data() + as_size(2 * p + kind) * row_size(); }
  [[nodiscard]] const int* row(int p, int kind) const { return furthest_.data() + as_size(2 * p + kind) * row_size(); }

  // Highest cut at or below each layer over which transfers from one subcluster to another keep the period; -1: none.
  [[nodiscard]] int* cut_below(int from, int to) {
    return cuts_.data() + (as_size(from) * problem_.devices.size() + as_size(to)) * row_size();
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
  function_ref<bool()> go_on_;
  std::vector<std::vector<int>> placements_of_;
  std::vector<int> furthest_;              // [placement][in flight: 1, fewest][first layer]
  std::vector<int> cuts_;                  // [from][to][layer]
  std::vector<double> fastest_;            // the same: the least time that it is occupied, whatever the placements
  std::vector<std::vector<int>> before_;   // [phase][devices used]
  std::vector<std::vector<int>> staying_;  // the same without another subcluster
};

}  // namespace hetsched::detail
