// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/cost_test.cpp.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rented_path.hpp>

namespace hetsched::detail {

/// Bounds below what M microbatches cost, whatever set of pipelines does them. A pipeline of rate R (money per second), latency A
/// (with what updates add) and period L costs at least R * (A + (m - 1) * L) for m of them; since A >= L, that is least per
/// microbatch if it does all: alone(). A set that is done by T pays R * T for no more than (T - A) / L + 1 microbatches of each
/// pipeline: within(). Both are least over ranges of periods, by rented_path; the ranges of the least bounds are halved.
/// Source: docs/parallel-pipelines.md.
class money_bound {
 public:
  /// `prices`: of a device for a second, by subcluster.
  money_bound(const interop_problem& problem, const stage_prices& table, rented_path& path, std::span<const double> prices,
              int microbatches)
      : problem_(problem),
        table_(table),
        path_(path),
        prices_(prices.begin(), prices.end()),
        none_(prices.size(), 0.0),
        microbatches_(microbatches) {
    for (int l = 0; l < problem.layers; ++l) {
      double least = infinity;
      for (std::size_t p = 0; p < problem.placements.size(); ++p)
        least = std::min(least, table.time(static_cast<int>(p), l, l + 1));
      shortest_s_ = std::max(shortest_s_, least);
    }
  }

  /// No set of pipelines costs less. `enough`: what some plan costs; no more than that needs to be proved.
  [[nodiscard]] double alone(double enough, function_ref<bool()> go_on) {
    const double cheapest = *std::min_element(prices_.begin(), prices_.end());
    if (!(cheapest > 0) || !(enough < infinity)) return 0;
    // The cheapest pipeline of these periods is that of the least rate, if the fee makes latencies too small to count. A latency
    // that does count costs more than enough.
    const auto fee = times(prices_, 1e6 * (enough / cheapest) / cheapest);
    const auto of_range = [&](double low, double high) {
      if (!(cheapest_pipeline(low, high, none_, fee) < infinity)) return infinity;
      const auto used = path_.devices();
      double rate = -1e-6 * cheapest;
      for (std::size_t k = 0; k < used.size(); ++k) rate += prices_[k] * used[k];
      return rate * cheapest_pipeline(low, high, times(prices_, (microbatches_ - 1) / rate), none_);
    };
    return least(of_range, enough / (cheapest * microbatches_), enough, go_on);
  }

  /// No set of pipelines that is done within `seconds` costs less. `scarcity`: what devices that are few may cost on top of their
  /// prices, by subcluster; it is given back for all devices that there are.
  [[nodiscard]] double within(double seconds, std::span<const double> scarcity, double enough, function_ref<bool()> go_on) {
    auto price = prices_;
    double given_back = 0;
    for (std::size_t k = 0; k < price.size(); ++k) {
      price[k] += scarcity[k];
      given_back += seconds * scarcity[k] * problem_.devices[k];
    }
    // The least cost of a microbatch: seconds * paid / (seconds - latency + period) of a pipeline that pays so much in a period.
    // Each round's price of time finds a cheaper pipeline, or shows that there is none (Dinkelbach).
    const auto of_range = [&](double low, double high) {
      double cost = infinity;
      for (int round = 0; round < most_rounds; ++round) {
        const double time_price = cost < infinity ? seconds / cost : 0;
        const double now = cheapest_pipeline(low, high, times(price, time_price), none_);
        if (now >= seconds + high) break;
        double paid = 0;
        for (const auto& s : path_.stages()) {
          const auto& placed = at(problem_.placements, s.placement);
          paid += at(price, placed.subcluster) * placed.devices *
                  std::max(low, table_.time(s.placement, s.layers.first, s.layers.last));
        }
        const double next = seconds * paid / (seconds + high - (now - time_price * paid));
        if (!(next < cost * (1 - 1e-10))) break;
        if (round + 1 == most_rounds) return 0.0;
        cost = next;
      }
      return cost * (1 - 1e-8);
    };
    const double wanted = (enough + given_back) / microbatches_;
    return microbatches_ * least(of_range, seconds, wanted, go_on) - given_back;
  }

 private:
  struct range {
    double low = 0, high = 0, bound = 0;
  };

  [[nodiscard]] static std::vector<double> times(std::vector<double> all, double factor) {
    for (double& one : all) one *= factor;
    return all;
  }

  // Its latency, what the stage of the first layer adds at the end, and what its devices cost.
  [[nodiscard]] double cheapest_pipeline(double low, double high, std::vector<double> rent, std::vector<double> fee) {
    static constexpr critical_layer first[]{{0, 1.0}};
    return path_.solve(low, high, {std::move(rent), std::move(fee)}, false, first);
  }

  // The least bound of periods up to `longest`; longer ones are none or cost enough.
  template <class Bound>
  [[nodiscard]] double least(const Bound& of_range, double longest, double enough, function_ref<bool()> go_on) {
    const auto later = [](const range& a, const range& b) { return a.bound > b.bound; };
    std::vector<range> open;
    for (double low = shortest_s_; low < longest; low *= 1.25) {
      open.push_back({low, std::min(longest, low * 1.25), of_range(low, std::min(longest, low * 1.25))});
      if (go_on && !go_on()) return 0;
    }
    if (open.empty()) return infinity;
    std::make_heap(open.begin(), open.end(), later);
    for (int i = 0; i < most_splits; ++i) {
      const auto r = open.front();
      if (r.bound >= enough || r.high < r.low * 1.001 || (go_on && !go_on())) break;
      std::pop_heap(open.begin(), open.end(), later);
      open.pop_back();
      const double points[]{r.low, (r.low + r.high) / 2, r.high};
      for (std::size_t half = 0; half < 2; ++half) {
        const double bound = of_range(points[half], points[half + 1]);
        open.push_back({points[half], points[half + 1], std::max(r.bound, bound)});
        std::push_heap(open.begin(), open.end(), later);
      }
    }
    return std::min(enough, open.front().bound);
  }

  static constexpr int most_splits = 100, most_rounds = 50;

  const interop_problem& problem_;
  const stage_prices& table_;
  rented_path& path_;
  std::vector<double> prices_, none_;
  int microbatches_;
  double shortest_s_ = least_period_s;  // no pipeline has a shorter period
};

}  // namespace hetsched::detail
