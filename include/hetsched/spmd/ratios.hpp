// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched {

/// The shares that make stages shortest, and a proof.
struct optimal_shares {
  std::vector<double> shares{};  ///< per segment of a device of each kind; times their counts they add up to 1
  double seconds = 0;
  double bound = 0;  ///< no shares take less, by the duals of the last linear program
};

namespace detail {

// A line below a convex function of the shares: height + slopes * shares.
struct share_cut {
  double height = 0;
  std::vector<double> slopes{};
};

[[nodiscard]] inline share_cut cut_at(const std::vector<spmd_stage>& stages, const std::vector<double>& shares,
                                      std::size_t kinds) {
  share_cut cut{.slopes = std::vector<double>(shares.size())};
  const auto largest_in = [&](int segment) {
    const auto first = shares.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(segment) * kinds);
    return static_cast<std::size_t>(std::max_element(first, first + static_cast<std::ptrdiff_t>(kinds)) - shares.begin());
  };
  for (const auto& s : stages) {
    std::size_t slowest = 0;
    double most = -1;
    for (std::size_t k = 0; k < kinds; ++k) {
      double own = 0;
      for (std::size_t i = k; i < shares.size(); i += kinds) own += s.compute[i].at(shares[i]);
      if (own <= most) continue;
      most = own;
      slowest = k;
    }
    const auto a = largest_in(s.segment), b = largest_in(s.other);
    cut.height += s.collective.fixed_s;
    cut.slopes[shares[b] > shares[a] ? b : a] += s.collective.slope_s;
    for (std::size_t i = slowest; i < shares.size(); i += kinds) {
      cut.height += s.compute[i].fixed_s;
      cut.slopes[i] += s.compute[i].slope_s;
    }
  }
  return cut;
}

// Minimises the largest of cuts over the shares by its dual, which has few rows: weights of cuts that add up to 1, and for each
// segment the largest mu with sum(weight * slope_k) >= mu * count_k. A simplex method with Bland's rule on columns for cuts,
// slacks and mus.
class share_master {
 public:
  explicit share_master(const std::vector<device_kind>& kinds, std::size_t segments = 1)
      : rows_(segments * kinds.size() + 1), segments_(segments), kinds_(&kinds) {}

  struct answer {
    double value = 0;
    std::vector<double> shares{};
  };

  [[nodiscard]] answer solve(const std::vector<share_cut>& cuts) const {
    // Rows 0 to K-1: sum(weight * slope_k) - slack_k - count_k * mu = 0; row K: sum(weight) = 1. It starts from the first cut,
    // its best mus, and the slacks of the other kinds.
    const std::size_t K = rows_ - 1, kinds = kinds_->size(), first_mu = cuts.size() + K, columns = first_mu + segments_;
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
      t[k][first_mu + k / kinds] = -static_cast<double>((*kinds_)[k % kinds].count);
    }
    t[K][columns] = 1;
    std::fill(gain.begin() + static_cast<std::ptrdiff_t>(first_mu), gain.begin() + static_cast<std::ptrdiff_t>(columns), 1.0);
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
    const auto ratio = [&](std::size_t k) { return cuts.front().slopes[k] / (*kinds_)[k % kinds].count; };
    for (std::size_t s = 0; s < segments_; ++s) {
      std::size_t tight = s * kinds;
      for (std::size_t k = tight + 1; k < (s + 1) * kinds; ++k)
        if (ratio(k) < ratio(tight)) tight = k;
      pivot(tight, first_mu + s);
      for (std::size_t k = s * kinds; k < (s + 1) * kinds; ++k)
        if (k != tight) pivot(k, cuts.size() + k);
    }
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
    for (std::size_t s = 0; s < segments_; ++s) {
      double all = 0;
      for (std::size_t k = 0; k < kinds; ++k) all += best.shares[s * kinds + k] * (*kinds_)[k].count;
      for (std::size_t k = 0; k < kinds; ++k) best.shares[s * kinds + k] /= all;
    }
    return best;
  }

 private:
  std::size_t rows_, segments_;
  const std::vector<device_kind>* kinds_;
};

}  // namespace detail

/// The shares per segment and kind of device for which stages take least: a linear program, solved by cuts. Devices of a kind
/// have equal shares, which loses nothing, as the time is convex in them.
/// Requires: at least one kind, counts of at least 1; costs that are finite and not negative; `start` has the shares of each
/// segment, as many as the stages have.
/// Complexity: O(cuts * (stages * kinds + pivots * kinds * cuts)), with about 10 cuts for each kind.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 5.1; Kelley, The cutting-plane method (1960).
[[nodiscard]] inline optimal_shares best_shares(const std::vector<spmd_stage>& stages, const std::vector<device_kind>& kinds,
                                                std::vector<double> start) {
  HETSCHED_EXPECTS(!kinds.empty() && !start.empty() && start.size() % kinds.size() == 0);
  const auto segments = start.size() / kinds.size();
  const detail::share_master master(kinds, segments);
  const auto seconds_with = [&](const std::vector<double>& shares) {
    return seconds_of(stages, shares, static_cast<int>(segments));
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
    if (best.seconds - best.bound <= 1e-12 * best.seconds) break;
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
  std::map<std::pair<int, std::int64_t>, std::vector<std::int64_t>>
      parts{};         ///< by segment, and number of parts of a dimension: how many of them each device has
  double seconds = 0;  ///< what the program takes with them
};

/// Rounds the shares of a program: by largest remainder, then a part from a device of one kind to one of another as long as that
/// saves time.
/// Requires: shares as whole_parts() wants them.
/// Complexity: O(instructions) + O(stages * dimensions * devices) for each of the kinds^2 moves of a round.
[[nodiscard]] inline whole_shares round_shares(const spmd_problem& problem, const spmd_program& program,
                                               const std::vector<double>& shares) {
  const auto parts = cut_parts(problem.graph);
  using key = std::pair<int, std::int64_t>;
  const auto kinds = problem.kinds.size();
  // Seconds of stages: what is fixed, and what is shared by the parts of one segment and number.
  struct stage {
    double fixed = 0, of_largest = 0;  // times the largest share
    std::vector<key> largest{};        // of these
    std::vector<double> alone{};
    std::map<key, std::vector<double>> shared{};
  };
  const stage empty{.alone = std::vector<double>(kinds)};
  std::vector<stage> stages{empty};
  whole_shares whole;
  const auto use = [&](int node, tensor_form f) {
    const key of{problem.graph.at(node).segment, parts[static_cast<std::size_t>(node)][static_cast<std::size_t>(f.dimension())]};
    const auto first = shares.begin() + static_cast<std::ptrdiff_t>(problem.first_share(node));
    if (whole.parts.count(of) == 0)
      whole.parts.emplace(of, whole_parts(of.second, problem.kinds, {first, first + static_cast<std::ptrdiff_t>(kinds)}));
    return of;
  };
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective || is_exchange(problem, step)) {
      stages.push_back(empty);
      auto& now = stages.back();
      const auto how = step.collective ? step.how : spmd_collective::all_to_all;
      const auto& price = price_of(problem.collect[static_cast<std::size_t>(step.node)], how);
      now.fixed = price.fixed_s;
      now.of_largest = price.slope_s;
      if (!step.collective)
        now.largest = {use(step.node, step.rule.result), use(n.inputs[0], step.rule.inputs[0])};
      else if (step.to.is_cut() || step.from.is_cut())
        now.largest = {use(step.node, step.to.is_cut() ? step.to : step.from)};
    } else if (!is_leaf(n)) {
      std::optional<key> of;
      if (step.rule.result.is_cut()) of = use(step.node, step.rule.result);
      for (std::size_t i = 0; i < n.inputs.size(); ++i)
        if (step.rule.inputs[i].is_cut()) of = use(n.inputs[i], step.rule.inputs[i]);
      for (std::size_t k = 0; k < kinds; ++k) {
        const auto& one = problem.compute_of(step.node, k);
        stages.back().alone[k] += step.rule.shared ? one.fixed_s : one.whole();
        if (!step.rule.shared || !of) continue;
        auto& shared = stages.back().shared[*of];
        shared.resize(kinds);
        shared[k] += one.slope_s;
      }
    }
  }
  const auto seconds = [&] {
    const auto share = [&](const key& of, std::size_t device) {
      return static_cast<double>(whole.parts.at(of)[device]) / static_cast<double>(of.second);
    };
    double all = 0;
    for (const auto& s : stages) {
      double slowest = 0, largest = s.largest.empty() ? 1 : 0;
      for (std::size_t k = 0, device = 0; k < kinds; ++k)
        for (int i = 0; i < problem.kinds[k].count; ++i, ++device) {
          double own = s.alone[k];
          for (const auto& [of, slopes] : s.shared) own += slopes[k] * share(of, device);
          slowest = std::max(slowest, own);
          for (const auto& of : s.largest) largest = std::max(largest, share(of, device));
        }
      all += s.fixed + slowest + s.of_largest * largest;
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
