// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched {

/// The shares that make stages shortest, and a proof.
struct optimal_shares {
  std::vector<double> shares{};  ///< of a device of each kind; times their counts they add up to 1
  double seconds = 0;
  double bound = 0;  ///< no shares take less, by the duals of the last linear program
};

namespace detail {

// A line below a convex function of the shares: height + slopes * shares.
struct share_cut {
  double height = 0;
  std::vector<double> slopes{};
};

[[nodiscard]] inline share_cut cut_at(const std::vector<spmd_stage>& stages, const std::vector<double>& shares) {
  share_cut cut{.slopes = std::vector<double>(shares.size())};
  const auto largest = static_cast<std::size_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
  for (const auto& s : stages) {
    std::size_t slowest = 0;
    for (std::size_t k = 1; k < shares.size(); ++k)
      if (s.compute[k].at(shares[k]) > s.compute[slowest].at(shares[slowest])) slowest = k;
    cut.height += s.collective.fixed_s + s.compute[slowest].fixed_s;
    cut.slopes[largest] += s.collective.slope_s;
    cut.slopes[slowest] += s.compute[slowest].slope_s;
  }
  return cut;
}

// Maximises the least of cuts over the shares by its dual, which has few rows: weights of cuts that add up to 1, and the largest
// mu with sum(weight * slope_k) >= mu * count_k. A simplex method with Bland's rule on columns for cuts, slacks and mu.
class share_master {
 public:
  explicit share_master(const std::vector<device_kind>& kinds) : rows_(kinds.size() + 1), kinds_(&kinds) {}

  struct answer {
    double value = 0;
    std::vector<double> shares{};
  };

  [[nodiscard]] answer solve(const std::vector<share_cut>& cuts) const {
    // Rows 0 to K-1: sum(weight * slope_k) - slack_k - count_k * mu = 0; row K: sum(weight) = 1. It starts from the first cut,
    // its best mu, and the slacks of the other kinds.
    const std::size_t K = kinds_->size(), columns = cuts.size() + K + 1, mu = columns - 1;
    std::vector<std::vector<double>> t(rows_, std::vector<double>(columns + 1));
    std::vector<double> gain(columns + 1);
    double scale = 0;
    for (const auto& c : cuts)
      for (const double s : c.slopes) scale = std::max(scale, s);
    if (scale == 0) scale = 1;
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      for (std::size_t k = 0; k < K; ++k) t[k][c] = cuts[c].slopes[k] / scale;
      t[K][c] = 1;
      gain[c] = cuts[c].height / scale;
    }
    for (std::size_t k = 0; k < K; ++k) {
      t[k][cuts.size() + k] = -1;
      t[k][mu] = -static_cast<double>((*kinds_)[k].count);
    }
    t[K][columns] = 1;
    gain[mu] = 1;
    std::vector<std::size_t> basis(rows_);
    const auto pivot = [&](std::size_t row, std::size_t column) {
      const double by = t[row][column];
      for (auto& x : t[row]) x /= by;
      for (std::size_t r = 0; r < rows_; ++r) {
        if (r == row || t[r][column] == 0) continue;
        const double times = t[r][column];
        for (std::size_t c = 0; c <= columns; ++c) t[r][c] -= times * t[row][c];
      }
      const double times = gain[column];
      for (std::size_t c = 0; c <= columns; ++c) gain[c] -= times * t[row][c];
      basis[row] = column;
    };
    pivot(K, 0);
    std::size_t tight = 0;
    const auto ratio = [&](std::size_t k) { return cuts.front().slopes[k] / (*kinds_)[k].count; };
    for (std::size_t k = 1; k < K; ++k)
      if (ratio(k) < ratio(tight)) tight = k;
    pivot(tight, mu);
    for (std::size_t k = 0; k < K; ++k)
      if (k != tight) pivot(k, cuts.size() + k);
    for (int step = 0; step < 10'000; ++step) {
      std::size_t enters = columns;
      for (std::size_t c = 0; c < columns && enters == columns; ++c)
        if (gain[c] > 1e-12) enters = c;
      if (enters == columns) break;
      std::size_t leaves = rows_;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t r = 0; r < rows_; ++r) {
        if (t[r][enters] <= 1e-12) continue;
        const double room = std::max(0.0, t[r][columns]) / t[r][enters];
        if (leaves == rows_ || room < least || (room == least && basis[r] < basis[leaves])) {
          least = room;
          leaves = r;
        }
      }
      if (leaves == rows_) break;  // mu is bounded by the shares, so this is rounding
      pivot(leaves, enters);
    }
    // The shares are the prices of the rows, which the slacks' reduced gains show.
    answer best{.value = -gain[columns] * scale};
    for (std::size_t k = 0; k < K; ++k) best.shares.push_back(std::max(0.0, -gain[cuts.size() + k]));
    double all = 0;
    for (std::size_t k = 0; k < K; ++k) all += best.shares[k] * (*kinds_)[k].count;
    for (auto& s : best.shares) s /= all;
    return best;
  }

 private:
  std::size_t rows_;
  const std::vector<device_kind>* kinds_;
};

}  // namespace detail

/// The shares per kind of device for which stages take least: a linear program, solved by cuts. Devices of a kind have equal
/// shares, which loses nothing, as the time is convex in them.
/// Requires: at least one kind, counts of at least 1; costs that are finite and not negative.
/// Complexity: O(cuts * (stages * kinds + pivots * kinds * cuts)), with about 10 cuts for each kind.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 5.1; Kelley, The cutting-plane method (1960).
[[nodiscard]] inline optimal_shares best_shares(const std::vector<spmd_stage>& stages, const std::vector<device_kind>& kinds,
                                                std::vector<double> start) {
  HETSCHED_EXPECTS(!kinds.empty() && start.size() == kinds.size());
  const detail::share_master master(kinds);
  optimal_shares best{.shares = start, .seconds = seconds_of(stages, start), .bound = 0};
  std::vector<detail::share_cut> cuts{detail::cut_at(stages, start)};
  for (int round = 0; round < 1000; ++round) {
    const auto next = master.solve(cuts);
    best.bound = std::max(best.bound, next.value);
    const double seconds = seconds_of(stages, next.shares);
    if (seconds < best.seconds) {
      best.seconds = seconds;
      best.shares = next.shares;
    }
    if (best.seconds - best.bound <= 1e-12 * best.seconds) break;
    auto cut = detail::cut_at(stages, next.shares);
    // A cut that is there already says that only rounding is left.
    const bool known =
        std::any_of(cuts.begin(), cuts.end(), [&](const auto& c) { return c.height == cut.height && c.slopes == cut.slopes; });
    if (known) break;
    cuts.push_back(std::move(cut));
  }
  best.bound = std::min(best.bound, best.seconds);
  return best;
}

/// Parts of a dimension by shares: whole ones that add up to `parts`, by largest remainder.
/// Requires: shares of at least 0, times their counts adding up to 1.
/// Returns: parts per device, kind by kind.
/// Complexity: O(devices log devices).
[[nodiscard]] inline std::vector<std::int64_t> whole_parts(std::int64_t parts, const std::vector<device_kind>& kinds,
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
  for (std::size_t i = 0; given < parts; i = (i + 1) % rest.size(), ++given) ++whole[rest[i].second];
  return whole;
}

/// Shares in whole parts.
struct whole_shares {
  std::map<std::int64_t, std::vector<std::int64_t>>
      parts{};         ///< of dimensions that have so many parts: how many of them each device has
  double seconds = 0;  ///< what the program takes with them
};

/// Rounds the shares of a program: by largest remainder, then a part from a device of one kind to one of another as long as that
/// saves time.
/// Requires: shares as whole_parts() wants them.
/// Complexity: O(instructions) + O(stages * dimensions * devices) for each of the kinds^2 moves of a round.
[[nodiscard]] inline whole_shares round_shares(const spmd_problem& problem, const spmd_program& program,
                                               const std::vector<double>& shares) {
  const auto parts = cut_parts(problem.graph);
  const auto parts_of = [&](int node, tensor_form f) {
    return parts[static_cast<std::size_t>(node)][static_cast<std::size_t>(f.dimension())];
  };
  const auto kinds = problem.kinds.size();
  // Seconds of stages: what is fixed, and what is shared by the parts of one number.
  struct stage {
    double fixed = 0;
    std::map<std::int64_t, double> collective{};  // of the largest share
    std::vector<double> alone{};
    std::map<std::int64_t, std::vector<double>> shared{};
  };
  const stage empty{.alone = std::vector<double>(kinds)};
  std::vector<stage> stages{empty};
  whole_shares whole;
  const auto use = [&](std::int64_t number) {
    if (whole.parts.count(number) == 0) whole.parts.emplace(number, whole_parts(number, problem.kinds, shares));
    return number;
  };
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective) {
      stages.push_back(empty);
      const auto& price = price_of(problem.collect[static_cast<std::size_t>(step.node)], step.how);
      stages.back().fixed = price.fixed_s;
      const auto& cut = step.to.is_cut() ? step.to : step.from;
      if (cut.is_cut())
        stages.back().collective[use(parts_of(step.node, cut))] += price.slope_s;
      else
        stages.back().fixed += price.slope_s;
    } else if (!is_leaf(n)) {
      std::int64_t number = 0;
      if (step.rule.result.is_cut()) number = parts_of(step.node, step.rule.result);
      for (std::size_t i = 0; i < n.inputs.size(); ++i)
        if (step.rule.inputs[i].is_cut()) number = parts_of(n.inputs[i], step.rule.inputs[i]);
      for (std::size_t k = 0; k < kinds; ++k) {
        const auto& one = problem.compute_of(step.node, k);
        stages.back().alone[k] += step.rule.shared ? one.fixed_s : one.whole();
        if (!step.rule.shared) continue;
        auto& shared = stages.back().shared[use(number)];
        shared.resize(kinds);
        shared[k] += one.slope_s;
      }
    }
  }
  const auto seconds = [&] {
    const auto share = [&](std::int64_t number, std::size_t device) {
      return static_cast<double>(whole.parts.at(number)[device]) / static_cast<double>(number);
    };
    double all = 0;
    for (const auto& s : stages) {
      double slowest = 0;
      for (std::size_t k = 0, device = 0; k < kinds; ++k)
        for (int i = 0; i < problem.kinds[k].count; ++i, ++device) {
          double own = s.alone[k];
          for (const auto& [number, slopes] : s.shared) own += slopes[k] * share(number, device);
          slowest = std::max(slowest, own);
        }
      all += s.fixed + slowest;
      for (const auto& [number, slope] : s.collective)
        all += slope * static_cast<double>(*std::max_element(whole.parts.at(number).begin(), whole.parts.at(number).end())) /
               static_cast<double>(number);
    }
    return all;
  };
  whole.seconds = seconds();
  std::vector<std::size_t> first;  // device of a kind
  for (std::size_t k = 0, device = 0; k < kinds; device += static_cast<std::size_t>(problem.kinds[k++].count))
    first.push_back(device);
  bool better = true;
  for (int round = 0; better && round < 100; ++round) {
    better = false;
    for (auto& [number, own] : whole.parts)
      for (std::size_t from = 0; from < kinds; ++from)
        for (std::size_t to = 0; to < kinds; ++to) {
          if (from == to) continue;
          const auto begin = [&](std::size_t k) { return own.begin() + static_cast<std::ptrdiff_t>(first[k]); };
          const auto most = std::max_element(begin(from), begin(from) + problem.kinds[from].count);
          const auto least = std::min_element(begin(to), begin(to) + problem.kinds[to].count);
          if (*most == 0) continue;
          --*most;
          ++*least;
          const double now = seconds();
          if (now < whole.seconds * (1 - 1e-12)) {
            whole.seconds = now;
            better = true;
          } else {
            ++*most;
            --*least;
          }
        }
  }
  return whole;
}

}  // namespace hetsched
