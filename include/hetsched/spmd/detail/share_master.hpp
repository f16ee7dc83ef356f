// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/spmd/ratios_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd::detail {

// A line below a convex function of the shares: height + slopes * shares.
struct share_cut {
  double height = 0;
  std::vector<double> slopes{};
};

[[nodiscard]] inline share_cut cut_at(const std::vector<spmd::stage>& stages, const std::vector<double>& shares,
                                      std::size_t kinds) {
  share_cut cut{.slopes = std::vector<double>(shares.size())};
  const auto largest_in = [&](int segment) {
    const auto first = shares.begin() + static_cast<std::ptrdiff_t>(as_size(segment) * kinds);
    return as_size(std::max_element(first, first + static_cast<std::ptrdiff_t>(kinds)) - shares.begin());
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
    auto now = tableau_of(cuts);
    start(now, cuts);
    now.improve();
    return shares_of(now, cuts.size());
  }

 private:
  // Rows 0 to K-1: sum(weight * slope_k) - slack_k - count_k * mu = 0; row K: sum(weight) = 1. Columns: cuts, slacks, mus, and
  // the right side.
  struct tableau {
    std::vector<std::vector<double>> t;
    std::vector<double> gain;
    std::vector<std::size_t> basis;
    double scale = 0;  // of slopes and heights

    [[nodiscard]] std::size_t columns() const { return gain.size() - 1; }

    void pivot(std::size_t row, std::size_t column) {
      const double by = t[row][column];
      for (auto& x : t[row]) x /= by;
      for (std::size_t r = 0; r < t.size(); ++r) {
        if (r == row || t[r][column] == 0) continue;
        const double times = t[r][column];
        for (std::size_t c = 0; c <= columns(); ++c) t[r][c] -= times * t[row][c];
      }
      const double times = gain[column];
      for (std::size_t c = 0; c <= columns(); ++c) gain[c] -= times * t[row][c];
      basis[row] = column;
    }

    // Steps of the simplex method by Bland's rule.
    void improve() {
      for (int step = 0; step < 10'000; ++step) {
        std::size_t enters = columns();
        for (std::size_t c = 0; c < columns() && enters == columns(); ++c)
          if (gain[c] > tolerance::rounding) enters = c;
        if (enters == columns()) break;
        const auto leaves = leaving(enters);
        if (leaves == t.size()) break;  // mu is bounded by the shares, so this is rounding
        pivot(leaves, enters);
      }
    }

    // The row that bounds what enters most closely; none: the number of rows.
    [[nodiscard]] std::size_t leaving(std::size_t enters) const {
      std::size_t leaves = t.size();
      double least = infinity;
      for (std::size_t r = 0; r < t.size(); ++r) {
        if (t[r][enters] <= tolerance::rounding) continue;
        const double room = std::max(0.0, t[r][columns()]) / t[r][enters];
        if (leaves == t.size() || room < least || (room == least && basis[r] < basis[leaves])) {
          least = room;
          leaves = r;
        }
      }
      return leaves;
    }
  };

  [[nodiscard]] tableau tableau_of(const std::vector<share_cut>& cuts) const {
    const std::size_t K = rows_ - 1, kinds = kinds_->size(), first_mu = cuts.size() + K, columns = first_mu + segments_;
    tableau now{.t = std::vector<std::vector<double>>(rows_, std::vector<double>(columns + 1)),
                .gain = std::vector<double>(columns + 1),
                .basis = std::vector<std::size_t>(rows_)};
    double highest = 0;
    for (const auto& c : cuts) {
      highest = std::max(highest, std::abs(c.height));
      for (const double s : c.slopes) now.scale = std::max(now.scale, s);
    }
    // Slopes that no sum shows are none: by them heights would be infinite.
    if (now.scale <= 1e-20 * highest) now.scale = highest;
    if (now.scale == 0) now.scale = 1;
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      for (std::size_t k = 0; k < K; ++k) now.t[k][c] = cuts[c].slopes[k] / now.scale;
      now.t[K][c] = 1;
      now.gain[c] = cuts[c].height / now.scale;
    }
    for (std::size_t k = 0; k < K; ++k) {
      now.t[k][cuts.size() + k] = -1;
      now.t[k][first_mu + k / kinds] = -static_cast<double>((*kinds_)[k % kinds].count);
    }
    now.t[K][columns] = 1;
    for (std::size_t c = first_mu; c < columns; ++c) now.gain[c] = 1;
    return now;
  }

  // Starts from the first cut, its best mus, and the slacks of the other kinds.
  void start(tableau& now, const std::vector<share_cut>& cuts) const {
    const std::size_t K = rows_ - 1, kinds = kinds_->size(), first_mu = cuts.size() + K;
    now.pivot(K, 0);
    const auto ratio = [&](std::size_t k) { return cuts.front().slopes[k] / (*kinds_)[k % kinds].count; };
    for (std::size_t s = 0; s < segments_; ++s) {
      std::size_t tight = s * kinds;
      for (std::size_t k = tight + 1; k < (s + 1) * kinds; ++k)
        if (ratio(k) < ratio(tight)) tight = k;
      now.pivot(tight, first_mu + s);
      for (std::size_t k = s * kinds; k < (s + 1) * kinds; ++k)
        if (k != tight) now.pivot(k, cuts.size() + k);
    }
  }

  // The shares are the prices of the rows, which the slacks' reduced gains show.
  [[nodiscard]] answer shares_of(const tableau& now, std::size_t cuts) const {
    const auto kinds = kinds_->size();
    answer best{.value = -now.gain[now.columns()] * now.scale};
    for (std::size_t k = 0; k + 1 < rows_; ++k) best.shares.push_back(std::max(0.0, -now.gain[cuts + k]));
    for (std::size_t s = 0; s < segments_; ++s) {
      double all = 0;
      for (std::size_t k = 0; k < kinds; ++k) all += best.shares[s * kinds + k] * (*kinds_)[k].count;
      for (std::size_t k = 0; k < kinds; ++k) best.shares[s * kinds + k] /= all;
    }
    return best;
  }

  std::size_t rows_, segments_;
  const std::vector<device_kind>* kinds_;
};

}  // namespace hetsched::spmd::detail
