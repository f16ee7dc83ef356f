// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines/detail/candidates.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column_pool.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// Equal pipelines on equal boxes of devices, by subcluster: the fastest pipeline of a box is that of a cluster with fewer
/// devices, and copies of it are judged.
class copied_boxes {
  using candidates = plan_candidates;

 public:
  /// `asked` and `options`: of the search for the pipeline of a box.
  copied_boxes(const cluster& hardware, const any_cost_model& costs, const interop_problem& problem, const stage_prices& table,
               const end_table& ends, warmup_algebra algebra, planning_problem asked, const interop_options& options,
               candidates& found, function_ref<bool()> go_on)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        part_(problem),
        table_(table),
        ends_(ends),
        algebra_(algebra),
        microbatches_(asked.microbatches),
        asked_(std::move(asked)),
        options_(options),
        found_(found),
        go_on_(go_on) {
    asked_.use_all_devices = false;
    asked_.progress = [this](const search_progress&) { return go_on_(); };
    options_.gap = std::max(options_.gap, 0.005);
    options_.enumeration = 0;
  }
  copied_boxes(const copied_boxes&) = delete;
  copied_boxes& operator=(const copied_boxes&) = delete;

  /// Copies that divide all subclusters among them: powers of two, and those that share out the nodes of some subcluster, each
  /// with `effort`; of the best number with more.
  void share_out(double effort) {
    std::set<int> numbers;
    for (int copies = 2; copies <= microbatches_; copies *= 2) numbers.insert(copies);
    for (const auto& s : hardware_.subclusters)
      for (int each = 1; each * each <= s.nodes; ++each)
        for (const int copies : {s.nodes / each, each})
          if (copies > 1 && copies <= microbatches_) numbers.insert(copies);
    int best = 0;
    const auto look_at = [&](int copies, double own_effort) {
      box shared{problem_.devices, copies};
      for (auto& d : shared.devices) d /= copies;
      if (!fits(shared) || !go_on_()) return false;
      const double before = found_.least();
      (void)copies_on(shared, std::min(asked_.beat, before), own_effort);
      if (found_.least() < before) best = copies;
      return true;
    };
    for (const int copies : numbers)
      if (!look_at(copies, effort)) break;
    if (best > 0) (void)look_at(best, 5 * effort);
  }

  /// Boxes with all, half, a quarter ... of every subcluster, and copies of them; then neighbours of the best, until `enough()`.
  /// Their pipelines go into the pool.
  void try_parts(column_pool& pool, function_ref<bool()> enough) {
    std::vector<std::pair<double, box>> good;
    for_each_part([&](box b) {
      for (; fits(b) && go_on_(); b.copies *= 2)
        if (const double worth = worth_of(b, pool); worth < infinity) good.push_back({worth, b});
    });
    const auto kinds = problem_.devices.size();
    for (int moves = 0; moves < most_moves && !good.empty() && go_on_() && !enough(); ++moves) {
      std::stable_sort(good.begin(), good.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      good.resize(std::min<std::size_t>(good.size(), 8));
      auto next = good;
      for (const auto& [worth, near] : good)
        for (std::size_t k = 0; k <= kinds; ++k) {
          const int node = k < kinds ? problem_.devices_per_node[k] : 1;
          for (const int by : {1, -1, node, -node}) {
            auto other = near;
            (k < kinds ? other.devices[k] : other.copies) += by;
            if (!fits(other) || !go_on_()) continue;
            if (const double value = worth_of(other, pool); value < infinity) next.push_back({value, other});
          }
        }
      if (next.size() == good.size()) break;
      good = std::move(next);
    }
  }

 private:
  struct box {
    std::vector<int> devices;  // by subcluster, of each copy
    int copies = 1;
    friend auto operator<=>(const box&, const box&) = default;
  };
  struct copied_pipeline {
    std::vector<interop_stage> stages;
    double seconds = 0;  // of the iteration of all copies
  };

  [[nodiscard]] bool fits(const box& b) const {
    bool any = false;
    for (std::size_t k = 0; k < b.devices.size(); ++k) {
      if (b.devices[k] < 0 || std::int64_t{b.copies} * b.devices[k] > problem_.devices[k]) return false;
      any = any || b.devices[k] > 0;
    }
    return any && b.copies >= 1 && b.copies <= microbatches_;
  }

  // Single boxes of all, half, a quarter ... or some nodes or nothing of every subcluster.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    const auto kinds = problem_.devices.size();
    const auto most = static_cast<std::size_t>(std::max(2.0, std::pow(most_boxes, 1.0 / static_cast<double>(kinds))));
    std::vector<std::vector<int>> sizes;
    for (std::size_t k = 0; k < kinds; ++k) {
      auto& own = sizes.emplace_back();
      const auto add = [&](int devices) {
        if (own.size() + 1 < most && std::find(own.begin(), own.end(), devices) == own.end()) own.push_back(devices);
      };
      for (int devices = problem_.devices[k]; devices > 0; devices /= 2) add(devices);
      for (int nodes = problem_.devices[k] / problem_.devices_per_node[k]; nodes > 1; --nodes)
        add(nodes * problem_.devices_per_node[k]);
      own.push_back(0);
    }
    std::vector<std::size_t> at(kinds, 0);
    for (bool more = true; more && go_on_();) {
      box b;
      for (std::size_t k = 0; k < kinds; ++k) b.devices.push_back(sizes[k][at[k]]);
      visit(std::move(b));
      more = false;
      for (std::size_t k = kinds; k-- > 0 && !more;) {
        more = ++at[k] < sizes[k].size();
        if (!more) at[k] = 0;
      }
    }
  }

  // What copies on a box are worth, roughly; infinity if they are no better than the best, or known.
  double worth_of(const box& b, column_pool& pool) {
    if (!known_.insert(b).second) return infinity;
    auto devices = b.devices;
    for (int& d : devices) d *= b.copies;
    const double rate = found_.worth().rate(devices);
    const auto copied = copies_on(b, found_.worth().seconds_for(found_.least(), rate));
    if (!copied) return infinity;
    if (auto column = column_of(problem_, table_, ends_, algebra_, copied->stages, microbatches_, false))
      pool.add(*std::move(column));
    return found_.worth().value(copied->seconds, rate);
  }

  // Copies of the fastest pipeline of a box, roughly, if they may take less than `longest_s`.
  std::optional<copied_pipeline> copies_on(const box& b, double longest_s, double effort = 1) {
    for (std::size_t k = 0; k < b.devices.size(); ++k) part_.devices[k] = std::max(1, b.devices[k]);
    for (std::size_t p = 0; p < problem_.placements.size(); ++p) {
      const auto& placed = problem_.placements[p];
      part_.placements[p].dominated = placed.dominated || placed.devices > at(b.devices, placed.subcluster);
    }
    auto problem = asked_;
    problem.beat = longest_s;
    problem.microbatches = (microbatches_ + b.copies - 1) / b.copies;
    auto options = options_;
    options.effort = std::min(options.effort, effort);
    const auto found = one_pipeline_search(hardware_, costs_, part_, table_, algebra_, problem, options);
    if (!found) return std::nullopt;
    auto stages = found_.stages_of(found->pipelines.front());
    if (!stages) return std::nullopt;
    std::vector<candidates::line> lines;
    for (int i = 0; i < b.copies; ++i)
      lines.push_back({&*stages, microbatches_ / b.copies + (i < microbatches_ % b.copies ? 1 : 0)});
    const double seconds = found_.consider(lines);
    return copied_pipeline{*std::move(stages), seconds};
  }

  static constexpr double most_boxes = 100;
  static constexpr int most_moves = 20;

  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  interop_problem part_;  // with the devices of a box
  const stage_prices& table_;
  const end_table& ends_;
  warmup_algebra algebra_;
  int microbatches_;
  planning_problem asked_;
  interop_options options_;
  candidates& found_;
  function_ref<bool()> go_on_;
  std::set<box> known_;
};

}  // namespace hetsched::detail
