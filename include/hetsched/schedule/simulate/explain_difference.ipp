// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>
#include <hetsched/schedule/simulate/explain_difference.hpp>

namespace hetsched::detail {

/// A measured iteration as what has to be before what, so that it can be played again with other times. Work is in the measured
/// order of its rank, and transfers in that of their way.
class replay {
 public:
  explicit replay(const timeline& measured);

  /// The makespan where work and transfers take as long as predicted, or as measured.
  [[nodiscard]] double makespan_s(const timeline& predicted, bool measured_work, bool measured_transfers,
                                  bool measured_gaps) const;

 private:
  using key_type = std::tuple<bool, int, int, int>;  ///< of a gradient?, direction, boundary or stage that makes it, microbatch
  using work_key_type = std::tuple<int, action_kind, int, int, int>;
  struct node {
    work_key_type key;
    key_type tensor{};
    double start_s = 0, end_s = 0, gap_s = 0, took_s = 0;
    std::vector<std::size_t> after;
  };

  static work_key_type work_key(const timed_action& a) {
    return {a.rank, a.what.kind, a.what.direction, a.what.stage, a.what.microbatch};
  }
  static key_type tensor_of(const action& a) { return {makes_gradient(a.kind), a.direction, a.stage, a.microbatch}; }
  /// When all that is before a node has ended; 0: nothing is.
  template <class End>
  static double ready_s(const node& n, const End& end_s) {
    double latest_s = 0;
    for (std::size_t k = 0; k < n.after.size(); ++k)
      latest_s = k == 0 ? end_s(n.after[k]) : std::max(latest_s, end_s(n.after[k]));
    return latest_s;
  }
  void sort();

  std::vector<node> nodes_;
  std::size_t works_ = 0;           ///< the first so many nodes
  std::vector<std::size_t> order_;  ///< all of them, each behind what is before it
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE difference_parts explain_difference(const timeline& predicted, const timeline& measured) {
  const auto both = compare_timelines(predicted, measured);
  const detail::replay again(from_departure(measured));
  const auto departing = from_departure(predicted);  // of both, a transfer begins when the one before it has arrived
  const double as_predicted_s = again.makespan_s(departing, false, false, false),
               work_s = again.makespan_s(departing, true, false, false), moved_s = again.makespan_s(departing, true, true, false);
  return {.compute_s = work_s - as_predicted_s,
          .transport_s = moved_s - work_s,
          .host_s = both.measured.makespan_s - moved_s,
          .wait_s = as_predicted_s - both.predicted.makespan_s};
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE replay::replay(const timeline& measured) {
  std::map<key_type, std::size_t> makes;
  std::vector<const timed_action*> work;
  for (const auto& a : measured.actions)
    if (!is_transfer(a.what.kind)) work.push_back(&a);
  std::stable_sort(work.begin(), work.end(),
                   [](const auto* a, const auto* b) { return a->rank != b->rank ? a->rank < b->rank : a->start_s < b->start_s; });
  for (const auto* a : work) {
    const std::size_t i = nodes_.size();
    nodes_.push_back({.key = work_key(*a), .start_s = a->start_s, .end_s = a->end_s, .after = {}});
    if (i > 0 && work[i - 1]->rank == a->rank) nodes_[i].after.push_back(i - 1);
    if (makes_tensor(a->what.kind)) makes.emplace(tensor_of(a->what), i);
  }
  works_ = nodes_.size();
  auto transfers = transfers_of(measured);
  std::stable_sort(transfers.begin(), transfers.end(), [](const auto& a, const auto& b) { return a.sent_s < b.sent_s; });
  std::map<key_type, std::size_t> comes;
  std::map<std::tuple<int, int, bool>, std::size_t> before;  // on the same way
  for (const auto& t : transfers) {
    const std::size_t i = nodes_.size();
    nodes_.push_back({.key = {}, .tensor = t.key, .start_s = t.sent_s, .end_s = t.came_s, .after = {}});
    const auto [gradient, direction, boundary, microbatch] = t.key;
    const auto made = makes.find({gradient, direction, gradient ? boundary + 1 : boundary, microbatch});
    if (made != makes.end()) {
      nodes_[i].after.push_back(made->second);
      const auto [last, first] = before.try_emplace({work[made->second]->rank, t.to, gradient}, i);
      if (!first) nodes_[i].after.push_back(std::exchange(last->second, i));
    }
    comes.emplace(t.key, i);
  }
  for (std::size_t i = 0; i < works_; ++i) {
    const auto& a = work[i]->what;
    if (!makes_tensor(a.kind)) continue;
    const bool gradient = makes_gradient(a.kind);
    if (const auto need = comes.find({gradient, a.direction, gradient ? a.stage : a.stage - 1, a.microbatch});
        need != comes.end())
      nodes_[i].after.push_back(need->second);
  }
  sort();
  for (auto& n : nodes_) {
    n.gap_s = n.start_s - ready_s(n, [&](std::size_t i) { return nodes_[i].end_s; });
    n.took_s = n.end_s - n.start_s;
  }
}

HETSCHED_INLINE double replay::makespan_s(const timeline& predicted, bool measured_work, bool measured_transfers,
                                          bool measured_gaps) const {
  std::map<work_key_type, double> work;
  for (const auto& a : predicted.actions)
    if (!is_transfer(a.what.kind)) work.emplace(work_key(a), a.end_s - a.start_s);
  std::map<key_type, double> transfers;
  for (const auto& t : transfers_of(predicted)) transfers.emplace(t.key, t.came_s - t.sent_s);
  const auto time_of = [](const auto& map, const auto& key) {
    const auto found = map.find(key);
    return found == map.end() ? 0.0 : found->second;
  };
  std::vector<double> end_s(nodes_.size());
  constexpr double unknown_s = infinity;
  double first_s = unknown_s, last_s = -unknown_s;
  for (const std::size_t i : order_) {
    const auto& n = nodes_[i];
    const bool is_work = i < works_;
    const double took_s = (is_work ? measured_work : measured_transfers) ? n.took_s
                          : is_work                                      ? time_of(work, n.key)
                                                                         : time_of(transfers, n.tensor);
    const double start_s = ready_s(n, [&](std::size_t k) { return end_s[k]; }) + (measured_gaps ? n.gap_s : 0);
    end_s[i] = start_s + took_s;
    if (!is_work) continue;
    first_s = std::min(first_s, start_s);
    last_s = std::max(last_s, end_s[i]);
  }
  return works_ == 0 ? 0 : last_s - first_s;
}

HETSCHED_INLINE void replay::sort() {
  std::vector<std::size_t> missing(nodes_.size());
  std::vector<std::vector<std::size_t>> next(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    missing[i] = nodes_[i].after.size();
    for (const std::size_t k : nodes_[i].after) next[k].push_back(i);
    if (missing[i] == 0) order_.push_back(i);
  }
  for (std::size_t done = 0; done < order_.size(); ++done)
    for (const std::size_t i : next[order_[done]])
      if (--missing[i] == 0) order_.push_back(i);
  if (order_.size() < nodes_.size()) throw input_error("a timeline in which work comes before what it needs");
}

}  // namespace hetsched::detail
