// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Predicted over measured, less 1.
[[nodiscard]] inline double relative_error(const prediction_case& c) { return c.predicted / c.measured - 1; }

/// How far off a prediction is by factor, whichever way.
[[nodiscard]] inline double off_by(const prediction_case& c) { return std::abs(std::log(c.predicted / c.measured)); }

/// Errors of many cases, in percent.
struct error_summary {
  int rows = 0;
  double mean = 0;    ///< of absolute errors
  double bias = 0;    ///< mean of errors with their sign
  double median = 0;  ///< of absolute errors
  double max = 0;     ///< of absolute errors
  double lowest = 0, highest = 0;
};

template <class Errors>
[[nodiscard]] error_summary summarise(const Errors& errors) {
  error_summary s;
  std::vector<double> sorted;
  for (const double e : errors) {
    s.lowest = s.rows ? std::min(s.lowest, 100 * e) : 100 * e;
    s.highest = s.rows ? std::max(s.highest, 100 * e) : 100 * e;
    s.mean += 100 * std::abs(e);
    s.bias += 100 * e;
    sorted.push_back(100 * std::abs(e));
    ++s.rows;
  }
  if (s.rows == 0) return s;
  s.mean /= s.rows;
  s.bias /= s.rows;
  std::sort(sorted.begin(), sorted.end());
  s.median = sorted[sorted.size() / 2];
  s.max = sorted.back();
  return s;
}

/// Spearman's rank correlation of measured and predicted; equal values share their mean rank. 0 for fewer than two cases.
[[nodiscard]] inline double rank_correlation(const std::vector<const prediction_case*>& cases) {
  const std::size_t n = cases.size();
  const auto ranks = [&](double prediction_case::*value) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return cases[a]->*value < cases[b]->*value; });
    std::vector<double> rank(n);
    for (std::size_t i = 0, j = 0; i < n; i = j) {
      while (j < n && cases[order[j]]->*value == cases[order[i]]->*value) ++j;
      for (std::size_t k = i; k < j; ++k) rank[order[k]] = static_cast<double>(i + j - 1) / 2;
    }
    return rank;
  };
  const auto x = ranks(&prediction_case::measured), y = ranks(&prediction_case::predicted);
  const double middle = (static_cast<double>(n) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < n; ++i) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) * (x[i] - middle);
    yy += (y[i] - middle) * (y[i] - middle);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

}  // namespace validation
