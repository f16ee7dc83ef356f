// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/detail/share_master.hpp>
#include <hetsched/spmd/ratios.hpp>

namespace hetsched::spmd {

HETSCHED_INLINE optimal_shares best_shares(const std::vector<spmd::stage>& stages, const std::vector<device_kind>& kinds,
                                           std::vector<double> start) {
  detail::expect_kinds(kinds);
  const auto segments = std::max<std::size_t>(1, start.size() / kinds.size());
  detail::expect_shares(start, kinds, segments, "start");
  for (const auto& s : stages) detail::expect_stage(s, start.size(), static_cast<int>(segments));
  return detail::unchecked::best_shares(stages, kinds, std::move(start));
}

HETSCHED_INLINE std::vector<std::int64_t> whole_parts(std::int64_t parts, const std::vector<device_kind>& kinds,
                                                      const std::vector<double>& shares) {
  detail::expect_kinds(kinds);
  hetsched::detail::expect_count(parts, "parts", 0, std::int64_t{1} << 53);
  detail::expect_shares(shares, kinds, 1, "shares");
  return detail::unchecked::whole_parts(parts, kinds, shares);
}

HETSCHED_INLINE whole_shares round_shares(const spmd::problem& problem, const spmd::program& steps,
                                          const std::vector<double>& shares) {
  validate(problem, steps);
  detail::expect_shares(shares, problem.kinds, as_size(problem.segments()), "shares");
  return detail::unchecked::round_shares(problem, steps, shares);
}

}  // namespace hetsched::spmd

namespace hetsched::spmd::detail::unchecked {

HETSCHED_INLINE optimal_shares best_shares(const std::vector<spmd::stage>& stages, const std::vector<device_kind>& kinds,
                                           std::vector<double> start) {
  const auto segments = start.size() / kinds.size();
  const detail::share_master master(kinds, segments);
  const auto seconds_with = [&](const std::vector<double>& shares) {
    return unchecked::seconds_of(stages, shares, static_cast<int>(segments));
  };
  optimal_shares best{.shares = start, .seconds = seconds_with(start), .bound = 0};
  std::vector<detail::share_cut> cuts{detail::cut_at(stages, start, kinds.size())};
  for (int round = 0; round < 1000; ++round) {
    const auto next = master.solve(cuts);
    best.bound = std::max(best.bound, next.value);
    const double seconds = seconds_with(next.shares);
    if (seconds < best.seconds) {
      best.seconds = seconds;
      best.shares = next.shares;
    }
    if (best.seconds - best.bound <= tolerance::rounding * best.seconds) break;
    auto cut = detail::cut_at(stages, next.shares, kinds.size());
    // A cut that is there already says that only rounding is left.
    const bool known =
        std::any_of(cuts.begin(), cuts.end(), [&](const auto& c) { return c.height == cut.height && c.slopes == cut.slopes; });
    if (known) break;
    cuts.push_back(std::move(cut));
  }
  best.bound = std::min(best.bound, best.seconds);
  return best;
}

HETSCHED_INLINE std::vector<std::int64_t> whole_parts(std::int64_t parts, const std::vector<device_kind>& kinds,
                                                      const std::vector<double>& shares) {
  std::vector<std::int64_t> whole;
  std::vector<std::pair<double, std::size_t>> rest;
  std::int64_t given = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    for (int i = 0; i < kinds[k].count; ++i) {
      const double exact = shares[k] * static_cast<double>(parts);
      whole.push_back(std::min(parts - given, static_cast<std::int64_t>(std::floor(exact + 1e-9))));
      given += whole.back();
      rest.emplace_back(static_cast<double>(whole.back()) - exact, whole.size() - 1);
    }
  std::stable_sort(rest.begin(), rest.end());
  for (std::size_t i = 0; i < rest.size(); ++i) {  // once around, and as often as all of them get one more
    const auto devices = static_cast<std::int64_t>(rest.size()), left = parts - given;
    whole[rest[i].second] += left / devices + (static_cast<std::int64_t>(i) < left % devices ? 1 : 0);
  }
  return whole;
}

/// Shares of a program as whole parts: what they are of, what a program takes with them, and which one-part moves help.
class share_rounding {
 public:
  share_rounding(const spmd::problem& problem, const std::vector<double>& shares)
      : problem_(&problem),
        shares_(&shares),
        parts_(unchecked::cut_parts(problem.graph)),
        stages_{stage{.alone = std::vector<double>(problem.kinds.size())}} {}

  void add(const spmd::instruction& step) {
    if (step.collective || unchecked::is_exchange(*problem_, step)) {
      add_communication(step);
    } else if (!is_leaf(problem_->graph.at(step.node))) {
      add_computation(step);
    }
  }

  /// Moves single parts between kinds of devices, from the largest of one to the least of another, for as long as that helps.
  [[nodiscard]] whole_shares improved() {
    const auto kinds = problem_->kinds.size();
    for (std::size_t k = 0, device = 0; k < kinds; device += as_size(problem_->kinds[k++].count)) first_device_.push_back(device);
    whole_.seconds = seconds();
    bool better = true;
    for (int round = 0; better && round < 100; ++round) {
      better = false;
      for (auto& [number, own] : whole_.parts)
        for (std::size_t from = 0; from < kinds; ++from)
          for (std::size_t to = 0; to < kinds; ++to)
            if (from != to && move_one(own, from, to)) better = true;
    }
    return std::move(whole_);
  }

 private:
  using key = std::pair<int, std::int64_t>;  // a segment, and into how many parts
  // Seconds: what is fixed, and what is shared by the parts of one key.
  struct stage {
    double fixed = 0, of_largest = 0;  // times the largest share
    std::vector<key> largest{};        // of these
    std::vector<double> alone{};
    std::map<key, std::vector<double>> shared{};
  };

  // The parts that a node is cut into, which are rounded when they are first asked for.
  key use(int node, tensor_form f) {
    const key of{problem_->graph.at(node).segment, at(at(parts_, node), f.dimension())};
    const auto first = shares_->begin() + static_cast<std::ptrdiff_t>(problem_->first_share(node));
    if (whole_.parts.count(of) == 0)
      whole_.parts.emplace(of, unchecked::whole_parts(of.second, problem_->kinds,
                                                      {first, first + static_cast<std::ptrdiff_t>(problem_->kinds.size())}));
    return of;
  }

  void add_communication(const spmd::instruction& step) {
    const auto& n = problem_->graph.at(step.node);
    stages_.push_back({.alone = std::vector<double>(problem_->kinds.size())});
    auto& now = stages_.back();
    const auto how = step.collective ? step.how : spmd::collective::all_to_all;
    const auto& price = price_of(at(problem_->collect, step.node), how);
    now.fixed = price.fixed_s;
    now.of_largest = price.slope_s;
    if (!step.collective)
      now.largest = {use(step.node, step.rule.result), use(n.inputs[0], step.rule.inputs[0])};
    else if (step.to.is_cut() || step.from.is_cut())
      now.largest = {use(step.node, step.to.is_cut() ? step.to : step.from)};
  }

  void add_computation(const spmd::instruction& step) {
    const auto& n = problem_->graph.at(step.node);
    const auto kinds = problem_->kinds.size();
    std::optional<key> of;
    if (step.rule.result.is_cut()) of = use(step.node, step.rule.result);
    for (std::size_t i = 0; i < n.inputs.size(); ++i)
      if (step.rule.inputs[i].is_cut()) of = use(n.inputs[i], step.rule.inputs[i]);
    for (std::size_t k = 0; k < kinds; ++k) {
      const auto& one = problem_->compute_of(step.node, k);
      stages_.back().alone[k] += step.rule.shared ? one.fixed_s : one.whole();
      if (!step.rule.shared || !of) continue;
      auto& shared = stages_.back().shared[*of];
      shared.resize(kinds);
      shared[k] += one.slope_s;
    }
  }

  [[nodiscard]] double share(const key& of, std::size_t device) const {
    return static_cast<double>(whole_.parts.at(of)[device]) / static_cast<double>(of.second);
  }

  [[nodiscard]] double seconds() const {
    double all = 0;
    for (const auto& s : stages_) {
      double slowest = 0, largest = s.largest.empty() ? 1 : 0;
      for (std::size_t k = 0, device = 0; k < problem_->kinds.size(); ++k)
        for (int i = 0; i < problem_->kinds[k].count; ++i, ++device) {
          double own = s.alone[k];
          for (const auto& [of, slopes] : s.shared) own += slopes[k] * share(of, device);
          slowest = std::max(slowest, own);
          for (const auto& of : s.largest) largest = std::max(largest, share(of, device));
        }
      all += s.fixed + slowest + s.of_largest * largest;
    }
    return all;
  }

  // Whether the program is faster by it; else nothing is moved.
  bool move_one(std::vector<std::int64_t>& own, std::size_t from, std::size_t to) {
    const auto begin = [&](std::size_t k) { return own.begin() + static_cast<std::ptrdiff_t>(first_device_[k]); };
    const auto most = std::max_element(begin(from), begin(from) + problem_->kinds[from].count);
    const auto least = std::min_element(begin(to), begin(to) + problem_->kinds[to].count);
    if (*most == 0) return false;
    --*most;
    ++*least;
    const double now = seconds();
    if (now < whole_.seconds * (1 - tolerance::rounding)) {
      whole_.seconds = now;
      return true;
    }
    ++*most;
    --*least;
    return false;
  }

  const spmd::problem* problem_;
  const std::vector<double>* shares_;
  std::vector<std::vector<std::int64_t>> parts_;  // of each node's dimensions
  std::vector<stage> stages_;
  std::vector<std::size_t> first_device_;  // of a kind
  whole_shares whole_;
};

HETSCHED_INLINE whole_shares round_shares(const spmd::problem& problem, const spmd::program& steps,
                                          const std::vector<double>& shares) {
  share_rounding rounding(problem, shares);
  for (const auto& step : steps) rounding.add(step);
  return rounding.improved();
}

}  // namespace hetsched::spmd::detail::unchecked
