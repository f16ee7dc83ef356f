// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp/detail/masters.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column.hpp>
#include <hetsched/planners/parallel_pipelines/detail/period_range.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rent_master.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rented_search.hpp>

namespace hetsched::detail {

/// Bounds below what any set of pipelines takes for M microbatches, and the columns that meet it. Let devices of subcluster k
/// cost a rent r_k in microbatches such that all together cost M. A pipeline that does no more microbatches in time than the rent
/// of its devices leaves M out of reach; so no plan is faster than the least latency + end + period * (rent of its devices - 1).
/// A set has two pipelines or more, say: where each gets something off its rent, all devices may cost M and two times that.
/// Where it has no more than one, that one may pay all of M, and devices nothing.
/// Each period's least is a shortest path with rents. The best rents are dual prices of devices, of a packing of the pipelines
/// that paths found, whatever memory they need; those that it lets keep their period become columns.
/// Source: methods of cutting stock (Gilmore and Gomory 1961), with the deadline in place of the roll's width.
class pipeline_relaxation {
 public:
  pipeline_relaxation(const interop_problem& problem, const stage_prices& table, const end_table& ends,
                      const warmup_algebra& algebra, int microbatches, bool reductions, layer_homes homes = {},
                      pipeline_count number = {})
      : problem_(problem),
        table_(table),
        ends_(ends),
        algebra_(algebra),
        homes_(std::move(homes)),
        number_(number),
        microbatches_(microbatches),
        reductions_(reductions),
        path_(problem, table, ends),
        search_(problem, table, ends, algebra, microbatches) {
    most_critical_ = as_size(std::clamp<std::int64_t>(40'000 / std::max<std::int64_t>(path_.work(), 1), 4, 12));
    // Rents in proportion to speed, to begin with.
    double total = 0;
    for (std::size_t k = 0; k < problem.devices.size(); ++k) {
      double fastest = 0;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        if (problem.placements[p].subcluster == static_cast<int>(k))
          fastest = std::max(fastest, 1 / (table.time(static_cast<int>(p), 0, problem.layers) * problem.placements[p].devices));
      rent_.devices.push_back(std::min(fastest, 1e30));  // of layers that take no time
      total += rent_.devices.back() * problem.devices[k];
    }
    for (auto& r : rent_.devices) r *= microbatches / total;
    for (int l = 0; l < problem.layers; ++l) {
      double least = infinity;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        least = std::min(least, table.time(static_cast<int>(p), l, l + 1));
      shortest_ = std::max(shortest_, least);
    }
    if (!(shortest_ > 0)) shortest_ = least_period_s;
  }

  /// First columns: pipelines over everything, and of each subcluster alone, for some periods; fewer where go_on, asked now and
  /// then, returns false.
  void start(function_ref<bool()> go_on = {}) {
    share_ = first_share;
    const auto all = rent_;
    const auto kinds = problem_.devices.size();
    for (std::size_t k = 0; k <= kinds; ++k) {
      if (k == kinds && k == 1) continue;
      for (std::size_t other = 0; other < kinds; ++other)
        if (k < kinds && other != k) rent_.devices[other] = 1e6 * all.devices[other];
      double least = infinity;
      for (double low = shortest_; low < 1e6 * shortest_ && (!go_on || go_on()); low *= 1.6) {
        period_range r(low, low * 1.6, homes_);
        bound(r, infinity);
        if (r.bound > 1.5 * least) break;
        least = std::min(least, r.bound);
        if (r.bound < infinity) visit(r, infinity);
      }
      rent_ = all;
    }
  }

  /// No plan of such a number of pipelines takes less; pipelines may come back to a subcluster.
  [[nodiscard]] double bound() const { return bound_; }
  [[nodiscard]] const std::vector<pipeline_column>& columns() const { return columns_; }
  [[nodiscard]] std::int64_t looked_at() const { return path_.looked_at() + work_; }

  /// Ends of stages that a path looks at.
  [[nodiscard]] std::int64_t path_work() const { return path_.work(); }

  /// Adds a column that is not known yet, if it fits into the cluster. Returns its period; infinity if it does not fit.
  double add(std::vector<interop_stage> stages) {
    const auto known = std::find_if(columns_.begin(), columns_.end(), [&](const auto& c) { return c.stages == stages; });
    if (known != columns_.end()) return known->period;
    if (!homes_.allow(problem_, stages)) return infinity;
    auto found = column_of(problem_, table_, ends_, algebra_, std::move(stages), microbatches_, reductions_);
    if (!found) return infinity;
    for (std::size_t k = 0; k < found->devices.size(); ++k)
      if (found->devices[k] > problem_.devices[k]) return infinity;
    columns_.push_back(*std::move(found));
    cut({columns_.back().first_s(), columns_.back().period, columns_.back().devices});
    return columns_.back().period;
  }

  /// The rents of the best bound so far.
  [[nodiscard]] const set_rents& best_rents() const { return best_rent_; }
  void start_from(const set_rents& rents) { rent_ = rents; }

  /// The layer that the cheapest pipelines, at the best rents, hold in the most different places, of those whose place is open;
  /// the middle one where several are alike. -1 if no place is open. O(layers * subclusters).
  [[nodiscard]] int disputed() const {
    const auto layers = as_size(problem_.layers), kinds = problem_.devices.size();
    std::vector<int> dispute(layers, -1);
    for (std::size_t l = 0; l < layers; ++l) {
      if (!homes_.of.empty() && homes_.of[l] != layer_homes::open) continue;
      const auto own = std::span(votes_).subspan(votes_.empty() ? 0 : l * kinds, votes_.empty() ? 0 : kinds);
      dispute[l] = own.empty() ? 0 : std::accumulate(own.begin(), own.end(), 0) - *std::max_element(own.begin(), own.end());
    }
    const int most = *std::max_element(dispute.begin(), dispute.end());
    int best = -1, longest = 0;
    for (std::size_t l = 0; l < layers && most >= 0;) {
      std::size_t end = l;
      while (end < layers && dispute[end] == most) ++end;
      if (static_cast<int>(end - l) > longest) {
        longest = static_cast<int>(end - l);
        best = static_cast<int>((l + end) / 2);
      }
      l = std::max(end, l + 1);
    }
    return best;
  }

  /// One round: bounds by the current rents, and new columns. Returns false if there is nothing more to gain: the bound is above
  /// `enough`, or within `gap` of what any rents give; within `coarse` where they cannot give enough.
  [[nodiscard]] bool improve(double enough, double gap, double coarse, function_ref<bool()> go_on) {
    const double before = bound_;
    if (cuts_.empty()) start(go_on);
    scan(enough, gap, go_on);
    const auto next = highest_rents(cuts_, problem_.devices, number_, microbatches_);
    const double within = next.seconds < enough ? coarse : gap;
    if (bound_ >= std::min(next.seconds, enough) * (1 - within) || next.devices.empty()) return false;
    // Not all the way from the best rents so far: pipelines are few, and their prices jump. Less far where that brought nothing.
    share_ = bound_ > before * (1 + gap) ? std::min(0.9, 1.5 * share_) : 0.4 * share_;
    if (share_ < 0.07) return false;
    for (std::size_t k = 0; k < rent_.devices.size(); ++k)
      rent_.devices[k] = (1 - share_) * best_rent_.devices[k] + share_ * next.devices[k];
    rent_.off = (1 - share_) * best_rent_.off + share_ * next.off;
    return true;
  }

 private:
  [[nodiscard]] double solve(const period_range& r) {
    const auto kinds = problem_.devices.size();
    prices_.fee = r.fine;
    prices_.fee.resize(kinds, 0.0);
    prices_.rent = rent_.devices;
    double high = r.high;
    if (!(r.high < infinity)) {
      // Without an end, all pay for the shortest period.
      for (std::size_t k = 0; k < kinds; ++k) prices_.fee[k] += r.low * rent_.devices[k];
      prices_.rent.assign(kinds, 0.0);
      high = r.low;
    }
    double cost = path_.solve(r.low, r.high, prices_, reductions_, r.critical, r.homes);
    for (std::size_t k = 0; k < r.fine.size(); ++k) cost -= r.fine[k] * problem_.devices[k];
    // What a pipeline gets back grows with its period, what it pays on top as well.
    return cost - (1 + rent_.off) * (rent_.off > -1 ? high : r.low);
  }

  // Bounds a range. Where that is below the goal, moves its critical layers and fines along a subgradient: shares go to the stage
  // that is done last, fines to devices beyond those that there are.
  void bound(period_range& r, double goal) {
    const double now = solve(r);
    r.bound = std::max(r.bound, now);
    ++r.tries;
    r.final = !(now < goal) || !(now < infinity);
    if (r.final) return;
    const auto stages = path_.stages();
    r.see(problem_, stages);
    const auto bare = search_pipeline(problem_, table_, stages);
    const auto last = last_done(ends_, table_, stages, bare, reductions_);
    const auto used = path_.devices();
    if (r.high <= r.low * 1.02 && fit(used)) {
      rented_pipeline found{last.end_s, r.high, used};
      for (int i = 0; i < bare.stages(); ++i)
        found.first += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
      cut(std::move(found));
    }
    // Its middle layer: no cut near by takes it out of the stage.
    const auto& late = stages[last.stage].layers;
    const bool other = last.end_s > 0 && r.count_more((late.first + late.last) / 2, most_critical_);
    const bool fined = r.fine_more(used, problem_.devices, now, goal);
    r.beyond = r.beyond || fined;
    r.final = !other && !fined;
  }

  [[nodiscard]] bool fit(const std::vector<int>& devices) const {
    return std::equal(devices.begin(), devices.end(), problem_.devices.begin(), [](int a, int b) { return a <= b; });
  }

  // A pipeline to choose rents by; not if one of the same devices and period is as cheap.
  void cut(rented_pipeline p) {
    const auto same = [&](const rented_pipeline& c) {
      return c.devices == p.devices && std::abs(c.period - p.period) <= 1e-4 * p.period && c.first <= p.first * (1 + 1e-4);
    };
    if (std::any_of(cuts_.begin(), cuts_.end(), same)) return;
    cuts_.push_back(std::move(p));
  }

  [[nodiscard]] double priced(const rented_pipeline& p) const {
    double rent = -rent_.off - 1;
    for (std::size_t k = 0; k < p.devices.size(); ++k) rent += rent_.devices[k] * p.devices[k];
    return p.first + p.period * rent;
  }

  // Bounds on ranges of periods; those of the least bounds are halved. Where they are narrow, the cheapest pipelines there become
  // columns.
  void scan(double goal, double gap, function_ref<bool()> go_on) {
    if (!cuts_.empty()) {
      // No rents make the bound longer than the cheapest pipeline that is known.
      double least = infinity;
      for (const auto& c : cuts_) least = std::min(least, priced(c));
      goal = std::min(goal, least);
    }
    const auto later = [](const period_range& a, const period_range& b) { return a.bound > b.bound; };
    auto open = whole_scale(goal, go_on);
    std::make_heap(open.begin(), open.end(), later);
    int splits = 0;
    for (int i = 0; i < most_steps && open.front().bound < goal * (1 - gap / 2); ++i) {
      std::pop_heap(open.begin(), open.end(), later);
      auto& r = open.back();
      const bool narrow = r.high <= r.low * 1.003;
      if (!r.final && r.tries < most_tries) {
        bound(r, goal);
        std::push_heap(open.begin(), open.end(), later);
        continue;
      }
      // Where paths in several subclusters together stay within the devices there are, each alone may not.
      const int layer = r.beyond && splits < most_splits ? r.disputed() : -1;
      const bool done = layer < 0 && (narrow || !(r.high < infinity));
      if (done || i % 16 == 8) visit(r, goal);
      if (done || (go_on && !go_on())) {
        std::push_heap(open.begin(), open.end(), later);
        break;
      }
      auto whole = std::move(r);
      open.pop_back();
      splits += layer >= 0 ? 1 : 0;
      for (auto& part : parts_of(std::move(whole), layer)) {
        bound(part, goal);
        open.push_back(std::move(part));
        std::push_heap(open.begin(), open.end(), later);
      }
    }
    const double least = std::min(open.front().bound, goal);
    if (least > bound_ || best_rent_.devices.empty()) {
      bound_ = std::max(bound_, least);
      best_rent_ = rent_;
      count_votes(open, least);
    }
  }

  // Ranges from the shortest period on, each a fifth longer, until all that lies beyond is bound by the goal.
  [[nodiscard]] std::vector<period_range> whole_scale(double goal, function_ref<bool()> go_on) {
    std::vector<period_range> open;
    // All that lies beyond a period is looked at now and then. By the goal a pipeline of a period as long as that does one
    // microbatch or none, whatever its period: each of these bounds holds for it.
    period_range beyond(0, infinity, homes_);
    for (double low = shortest_;; low *= 1.2) {
      if (open.size() % 4 == 0 || low >= goal) {
        period_range rest(low, infinity, homes_);
        rest.bound = solve(rest);
        if (rest.bound >= beyond.bound) beyond = std::move(rest);
        if (beyond.bound >= goal || low >= goal || (go_on && !go_on())) {
          open.push_back(std::move(beyond));
          return open;
        }
      }
      open.emplace_back(low, low * 1.2, homes_);
      bound(open.back(), goal);
    }
  }

  // The subclusters that may hold the layer, or halves.
  [[nodiscard]] std::vector<period_range> parts_of(period_range whole, int layer) const {
    whole.tries = 0;
    whole.seen.clear();
    std::vector<period_range> parts;
    if (layer >= 0) {
      whole.homes.of.resize(as_size(problem_.layers), layer_homes::open);
      for (std::size_t k = 0; k < problem_.devices.size(); ++k) {
        if (!homes_.allow(layer, static_cast<int>(k))) continue;
        parts.push_back(whole);
        at(parts.back().homes.of, layer) = static_cast<int>(k);
      }
    } else {
      parts.push_back(whole);
      parts.front().high = whole.low = (whole.low + whole.high) / 2;
      parts.push_back(std::move(whole));
    }
    return parts;
  }

  void count_votes(const std::vector<period_range>& ranges, double least) {
    const auto kinds = problem_.devices.size();
    votes_.assign(as_size(problem_.layers) * kinds, 0);
    for (const auto& r : ranges)
      if (r.bound <= least * (1 + alike))
        for (std::size_t l = 0; l < r.seen.size(); ++l)
          for (std::size_t k = 0; k < std::min<std::size_t>(kinds, 64); ++k)
            votes_[l * kinds + k] += static_cast<int>(r.seen[l] >> k & 1);
  }

  // Cheap pipelines of a range of periods become columns.
  void visit(const period_range& r, double goal) {
    const double high = r.high < infinity ? r.high : r.low;
    const double least = solve(r) + high;
    if (!(least < infinity)) return;
    // Where the path keeps the period with the memory that there is, nothing else is cheaper.
    if (add(path_.stages()) <= r.high * (1 + tolerance::sums)) return;
    double fines = 0;
    for (std::size_t k = 0; k < r.fine.size(); ++k) fines += r.fine[k] * problem_.devices[k];
    const double most = goal < infinity ? goal + high : 2 * least;
    const auto found =
        search_.solve(path_, r.low, r.high, prices_, reductions_, std::min(most, least * 1.02) + fines, most_looks);
    work_ += search_.looked_at();
    int kept = 0;
    for (const auto& s : found)
      if (add(s.stages) < infinity && ++kept == 4) break;
  }

  static constexpr double first_share = 0.5;
  static constexpr int most_tries = 4, most_steps = 600, most_splits = 60;
  static constexpr double alike = 0.03;
  static constexpr std::int64_t most_looks = 30'000;

  const interop_problem& problem_;
  const stage_prices& table_;
  const end_table& ends_;
  const warmup_algebra& algebra_;
  const layer_homes homes_;
  const pipeline_count number_;
  int microbatches_;
  bool reductions_;
  rented_path path_;
  rented_search search_;
  std::size_t most_critical_ = 4;  // layers whose ends count: paths take so many times as long
  double shortest_ = 0;
  double bound_ = 0, share_ = first_share;
  set_rents rent_, best_rent_;
  device_prices prices_;
  std::vector<rented_pipeline> cuts_;
  std::vector<int> votes_;  // [layer][subcluster]: cheap ranges of the best bound that hold the layer there
  std::vector<pipeline_column> columns_;
  std::int64_t work_ = 0;
};

}  // namespace hetsched::detail
