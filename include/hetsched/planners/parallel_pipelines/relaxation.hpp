// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/planners/parallel_pipelines/column.hpp>
#include <hetsched/planners/parallel_pipelines/masters.hpp>
#include <hetsched/planners/parallel_pipelines/rented_search.hpp>

namespace hetsched::detail {

/// Bounds below what any set of pipelines takes for M microbatches, and the columns that meet it. Let devices of subcluster k
/// cost a rent r_k in microbatches such that all together cost M. A pipeline that does no more microbatches in time than the rent
/// of its devices leaves M out of reach; so no plan is faster than the least latency + end + period * (rent of its devices - 1).
/// Each period's least is a shortest path with rents. The best rents are dual prices of devices, of a packing of the columns
/// that are known; the paths of its prices are new columns.
/// Source: methods of cutting stock (Gilmore and Gomory 1961), with the deadline in place of the roll's width.
template <class Table, class Algebra>
class pipeline_relaxation {
 public:
  pipeline_relaxation(const interop_problem& problem, const Table& table, const end_table& ends, const Algebra& algebra,
                      int microbatches, bool reductions)
      : problem_(problem),
        table_(table),
        ends_(ends),
        algebra_(algebra),
        microbatches_(microbatches),
        reductions_(reductions),
        path_(problem, table, ends),
        search_(problem, table, ends, algebra, microbatches) {
    // Rents in proportion to speed, to begin with.
    double total = 0;
    for (std::size_t k = 0; k < problem.devices.size(); ++k) {
      double fastest = 0;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        if (problem.placements[p].subcluster == static_cast<int>(k))
          fastest = std::max(fastest, 1 / (table.time(static_cast<int>(p), 0, problem.layers) * problem.placements[p].devices));
      rent_.push_back(fastest);
      total += fastest * problem.devices[k];
    }
    for (auto& r : rent_) r *= microbatches / total;
    for (int l = 0; l < problem.layers; ++l) {
      double least = infinity;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        least = std::min(least, table.time(static_cast<int>(p), l, l + 1));
      shortest_ = std::max(shortest_, least);
    }
    if (!(shortest_ > 0)) shortest_ = 1e-12;
  }

  /// First columns: pipelines over everything, and of each subcluster alone, for some periods.
  void start() {
    const auto all = rent_;
    for (std::size_t k = 0; k <= rent_.size(); ++k) {
      if (k == rent_.size() && k == 1) continue;
      for (std::size_t other = 0; other < rent_.size(); ++other)
        if (k < rent_.size() && other != k) rent_[other] = 1e6 * all[other];
      double least = infinity;
      for (double low = shortest_; low < 1e6 * shortest_; low *= 1.6) {
        range r{low, low * 1.6, 0, {}, 0};
        bound(r, infinity);
        if (r.bound > 1.5 * least) break;
        least = std::min(least, r.bound);
        if (r.bound < infinity) visit(r, infinity);
      }
      rent_ = all;
    }
  }

  /// No plan of several pipelines takes less.
  [[nodiscard]] double bound() const { return bound_; }
  [[nodiscard]] const std::vector<pipeline_column>& columns() const { return columns_; }
  [[nodiscard]] const std::vector<double>& rents() const { return best_rent_; }
  [[nodiscard]] std::int64_t looked_at() const { return path_.looked_at() + work_; }

  /// Ends of stages that a path looks at.
  [[nodiscard]] std::int64_t path_work() const { return path_.work(); }

  /// Adds a column that is not known yet, if it fits into the cluster. Returns its period; infinity if it does not fit.
  double add(std::vector<interop_stage> stages) {
    const auto known = std::find_if(columns_.begin(), columns_.end(), [&](const auto& c) { return c.stages == stages; });
    if (known != columns_.end()) return known->period;
    auto found = column_of(problem_, table_, ends_, algebra_, std::move(stages), microbatches_, reductions_);
    if (!found) return infinity;
    for (std::size_t k = 0; k < found->devices.size(); ++k)
      if (found->devices[k] > problem_.devices[k]) return infinity;
    columns_.push_back(*std::move(found));
    return columns_.back().period;
  }

  /// The deadline by which fractions of columns do all microbatches; infinity if none do.
  [[nodiscard]] double relaxed_deadline(std::vector<double>* prices = nullptr) const {
    if (columns_.empty()) return infinity;
    double low = infinity, high = 0;
    for (const auto& c : columns_) low = std::min(low, c.first_s());
    const auto at = [&](double seconds) { return solve_relaxed(packing_at(seconds, false)); };
    for (high = 2 * low; at(high).value < microbatches_; high *= 2)
      if (high > 1e300) return infinity;
    for (int i = 0; i < 60 && high > low * (1 + 1e-7); ++i) {
      const double middle = (low + high) / 2;
      (at(middle).value < microbatches_ ? low : high) = middle;
    }
    if (prices) *prices = at(high).prices;
    return high;
  }

  /// The packing of columns by a deadline; with whole microbatches, only the best column of each number of devices counts.
  [[nodiscard]] packing packing_at(double seconds, bool whole) const {
    packing found{.items = {}, .room = problem_.devices};
    for (const auto& c : columns_) {
      const double m = c.microbatches_by(seconds);
      found.items.push_back({whole ? static_cast<double>(static_cast<std::int64_t>(m + 1e-9)) : m, c.devices});
    }
    if (!whole) return found;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (columns_[i].devices == columns_[j].devices)
          (found.items[i].value > found.items[j].value ? found.items[j] : found.items[i]).value = 0;
    return found;
  }

  /// One round: bounds by the current rents, and new columns. Returns false if there is nothing more to gain: the bound is within
  /// `gap` of the relaxed deadline, or above `enough`, or no rent brings anything new.
  [[nodiscard]] bool improve(double enough, double gap, function_ref<bool()> go_on) {
    const double goal = std::min(enough, relaxed_deadline());
    const double before = bound_;
    scan(goal, gap, go_on);
    std::vector<double> prices;
    const double deadline = relaxed_deadline(&prices);
    if (bound_ >= std::min(deadline, enough) * (1 - gap) || !(deadline < infinity)) return false;
    double total = 0;
    for (std::size_t k = 0; k < prices.size(); ++k) total += prices[k] * problem_.devices[k];
    if (!(total > 0)) return false;
    // Not all the way from the best rents so far: columns are few, and their prices jump. Further where that brought nothing.
    const bool gained = bound_ > before * (1 + 0.1 * gap) || deadline < deadline_ * (1 - 0.1 * gap);
    deadline_ = std::min(deadline_, deadline);
    if (!gained && share_ == 1) return false;
    share_ = gained ? 0.5 : std::min(1.0, share_ + 0.25);
    for (std::size_t k = 0; k < rent_.size(); ++k)
      rent_[k] = (1 - share_) * best_rent_[k] + share_ * prices[k] * microbatches_ / total;
    return true;
  }

 private:
  // Periods from low to high. On top of the rent per second, devices beyond those that there are cost a fine.
  struct range {
    double low = 0, high = 0, bound = 0;
    std::vector<double> fine;
    int critical = 0;
  };

  [[nodiscard]] double solve(const range& r, int critical = 0) {
    prices_.fee = r.fine;
    prices_.fee.resize(rent_.size(), 0.0);
    prices_.rent = rent_;
    double low = r.low, high = r.high;
    if (!(r.high < infinity)) {
      // Without an end, all pay for the shortest period.
      for (std::size_t k = 0; k < rent_.size(); ++k) prices_.fee[k] += low * rent_[k];
      prices_.rent.assign(rent_.size(), 0.0);
      high = low;
    }
    double cost = path_.solve(low, r.high, prices_, reductions_, critical);
    for (std::size_t k = 0; k < r.fine.size(); ++k) cost -= r.fine[k] * problem_.devices[k];
    return cost - high;
  }

  // Bounds a range. Where the cheapest pipeline takes more devices than there are, fines raise the bound as long as it is below
  // the goal.
  void bound(range& r, double goal) {
    double now = solve(r);
    r.bound = std::max(r.bound, now);
    if (now < goal) {
      // Where another stage is done last.
      const auto stages = path_.stages();
      const auto bare = search_pipeline(problem_, table_, stages);
      const int critical = stages[last_done(ends_, table_, stages, bare, reductions_).stage].layers.first;
      if (critical > 0) {
        const double other = solve(r, critical);
        r.bound = std::max(r.bound, other);
        if (other > now) r.critical = critical;
        now = other > now ? other : solve(r);
      }
    }
    for (int round = 0; round < 5 && now < goal && now < infinity; ++round) {
      const auto used = path_.devices();
      double norm = 0;
      std::vector<double> beyond(used.size(), 0.0);
      for (std::size_t k = 0; k < used.size(); ++k) {
        const double relative = static_cast<double>(used[k]) / problem_.devices[k] - 1;
        if (relative > 0 || (!r.fine.empty() && r.fine[k] > 0)) beyond[k] = relative;
        norm += beyond[k] * beyond[k];
      }
      if (norm < 1e-6) break;
      const double aim = goal < infinity ? goal : now + 0.3 * (now + r.low);
      auto tried = r;
      tried.fine.resize(used.size(), 0.0);
      for (std::size_t k = 0; k < used.size(); ++k)
        tried.fine[k] = std::max(0.0, tried.fine[k] + (aim * 1.02 - now) / norm * beyond[k] / problem_.devices[k]);
      now = solve(tried, r.critical);
      r.fine = tried.fine;
      r.bound = std::max(r.bound, now);
    }
  }

  // Bounds on ranges of periods; those of the least bounds are halved. Where they are narrow, the cheapest pipelines there become
  // columns.
  void scan(double goal, double gap, function_ref<bool()> go_on) {
    const auto later = [](const range& a, const range& b) { return a.bound > b.bound; };
    std::vector<range> open;
    // All that lies beyond a period is looked at now and then. By the goal a pipeline of a period as long as that does one
    // microbatch or none, whatever its period: each of these bounds holds for it.
    double beyond = 0;
    for (double low = shortest_;; low *= 1.2) {
      if (open.size() % 4 == 0 || low >= goal) {
        range rest{low, infinity, 0, {}, 0};
        beyond = std::max(beyond, solve(rest));
        const bool last = beyond >= goal || low >= goal || (go_on && !go_on());
        if (last) open.push_back({low, infinity, beyond, {}, 0});
        if (last) break;
      }
      open.push_back({low, low * 1.2, 0, {}, 0});
      bound(open.back(), goal);
    }
    std::make_heap(open.begin(), open.end(), later);
    for (int i = 0; i < 150; ++i) {
      auto r = open.front();
      if (r.bound >= goal * (1 - gap / 2)) break;
      const bool narrow = r.high <= r.low * 1.002;
      if (narrow || i % 8 == 4) visit(r, goal);
      if (narrow || !(r.high < infinity) || (go_on && !go_on())) break;
      std::pop_heap(open.begin(), open.end(), later);
      open.pop_back();
      const double points[]{r.low, (r.low + r.high) / 2, r.high};
      for (int half = 0; half < 2; ++half) {
        open.push_back({points[half], points[half + 1], r.bound, r.fine, 0});
        bound(open.back(), goal);
        std::push_heap(open.begin(), open.end(), later);
      }
    }
    if (open.front().bound > bound_ || best_rent_.empty()) {
      bound_ = std::max(bound_, open.front().bound);
      best_rent_ = rent_;
    }
  }

  // The cheapest pipelines of a range of periods.
  void visit(const range& r, double goal) {
    const double high = r.high < infinity ? r.high : r.low;
    const double least = solve(r, r.critical) + high;
    if (!(least < infinity)) return;
    // Where the path keeps the period with the memory that there is, nothing else is cheaper.
    if (add(path_.stages()) <= r.high * (1 + 1e-9)) return;
    double fines = 0;
    for (std::size_t k = 0; k < r.fine.size(); ++k) fines += r.fine[k] * problem_.devices[k];
    const double most = goal < infinity ? goal + high : 2 * least;
    for (const double more : {1.0005, 1.01, 1.1}) {
      const auto found = search_.solve(path_, r.low, r.high, prices_, reductions_, std::min(most, least * more) + fines,
                                       goal < infinity ? most_looks : most_looks / 20);
      work_ += search_.looked_at();
      int kept = 0;
      for (const auto& s : found)
        if (add(s.stages) < infinity && ++kept == 4) break;
      if (kept > 0 || search_.aborted()) break;
    }
  }

  static constexpr std::int64_t most_looks = 300'000;

  const interop_problem& problem_;
  const Table& table_;
  const end_table& ends_;
  const Algebra& algebra_;
  int microbatches_;
  bool reductions_;
  rented_path<Table> path_;
  rented_search<Table, Algebra> search_;
  double shortest_ = 0;
  double bound_ = 0, share_ = 0.5, deadline_ = infinity;
  std::vector<double> rent_, best_rent_;
  device_prices prices_;
  std::vector<pipeline_column> columns_;
  std::int64_t work_ = 0;
};

}  // namespace hetsched::detail
