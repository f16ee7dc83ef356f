// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/interop_dp/detail/iteration_bound_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>

namespace hetsched::detail {

/// A linear program whose columns are made when they are wanted: the least sum of costs of columns, used as often as one likes (0
/// or more), whose entries add up to what each row wants, exactly or at most. A revised simplex method with the inverse of the
/// basis.
class column_simplex {
 public:
  struct column {
    double cost = 0;
    std::vector<std::pair<int, double>> entries = {};  // row, value
  };

  /// The first `exact` rows are wanted exactly, the others at most. wanted: at least 0. Rows wanted exactly may be missed at
  /// `penalty` for each unit.
  void begin(std::vector<double> wanted, int exact, double penalty) {
    wanted_ = std::move(wanted);
    rows_ = wanted_.size();
    exact_ = exact;
    penalty_ = penalty;
    inverse_.assign(rows_ * rows_, 0.0);
    for (std::size_t r = 0; r < rows_; ++r) inverse_[r * rows_ + r] = 1;
    basis_.assign(rows_, {});
    values_ = wanted_;
    for (std::size_t r = 0; r < as_size(exact_); ++r) basis_[r].cost = penalty_;
    entered_ = 0;
    price();
  }

  /// What a unit of each row is worth; rows wanted at most have 0 or less.
  [[nodiscard]] const std::vector<double>& prices() const { return prices_; }

  /// Takes a column into the basis. Returns false where it would not help.
  bool enter(const column& c) {
    double reduced = c.cost;
    for (const auto& [row, value] : c.entries) reduced -= at(prices_, row) * value;
    if (!(reduced < 0)) return false;
    step_.assign(rows_, 0.0);
    for (const auto& [row, value] : c.entries)
      for (std::size_t r = 0; r < rows_; ++r) step_[r] += inverse_[r * rows_ + as_size(row)] * value;
    return pivot(c.cost, entered_) && ++entered_ > 0;
  }

  /// Lets rows wanted at most have room again where that helps. Returns whether one did.
  bool enter_slack() {
    std::size_t best = rows_;
    double most = 0;
    for (const double p : prices_) most = std::max(most, std::abs(p));
    most *= tolerance::rounding * 100;
    for (auto r = as_size(exact_); r < rows_; ++r)
      if (prices_[r] > most) {
        most = prices_[r];
        best = r;
      }
    if (best == rows_) return false;
    step_.assign(rows_, 0.0);
    for (std::size_t r = 0; r < rows_; ++r) step_[r] = inverse_[r * rows_ + best];
    return pivot(0, -1);
  }

  /// Prices times what is wanted: no more than any costs, if no column has a reduced cost below 0 and no price is above 0 where
  /// it must not be.
  [[nodiscard]] double dual_cost() const {
    double sum = 0;
    for (std::size_t r = 0; r < rows_; ++r)
      sum += (static_cast<int>(r) < exact_ ? prices_[r] : std::min(0.0, prices_[r])) * wanted_[r];
    return sum;
  }
  /// What the columns in use cost, and what is missed: no less than the least.
  [[nodiscard]] double cost() const {
    double sum = 0;
    for (std::size_t r = 0; r < rows_; ++r) sum += basis_[r].cost * std::max(0.0, values_[r]);
    return sum;
  }
  /// Calls f(which column, how often) for those in use; columns are counted as they entered, from 0 on.
  template <class F>
  void for_each_used(F f) const {
    for (std::size_t r = 0; r < rows_; ++r)
      if (basis_[r].what >= 0 && values_[r] > 0) f(basis_[r].what, values_[r]);
  }

 private:
  struct basic {
    double cost = 0;
    int what = -1;  // which column; -1: what is missed of a row, or its room
  };

  bool pivot(double cost, int what) {
    std::size_t out = rows_;
    double least = infinity;
    for (std::size_t r = 0; r < rows_; ++r) {
      if (!(step_[r] > 1e-9)) continue;
      const double ratio = std::max(0.0, values_[r]) / step_[r];
      if (out == rows_ || ratio < least - tolerance::rounding * least ||
          (ratio <= least * (1 + tolerance::rounding) && step_[r] > step_[out])) {
        least = std::min(ratio, least);
        out = r;
      }
    }
    if (out == rows_) return false;
    const double take = std::max(0.0, values_[out]) / step_[out], by = 1 / step_[out];
    double* row = inverse_.data() + out * rows_;
    for (std::size_t i = 0; i < rows_; ++i) row[i] *= by;
    for (std::size_t r = 0; r < rows_; ++r) {
      if (r == out || step_[r] == 0) continue;
      double* other = inverse_.data() + r * rows_;
      const double factor = step_[r];
      for (std::size_t i = 0; i < rows_; ++i) other[i] -= factor * row[i];
      values_[r] -= factor * take;
    }
    values_[out] = take;
    basis_[out] = {cost, what};
    price();
    return true;
  }

  void price() {
    prices_.assign(rows_, 0.0);
    for (std::size_t r = 0; r < rows_; ++r) {
      if (basis_[r].cost == 0) continue;
      const double* row = inverse_.data() + r * rows_;
      for (std::size_t i = 0; i < rows_; ++i) prices_[i] += basis_[r].cost * row[i];
    }
  }

  std::size_t rows_ = 0;
  int exact_ = 0, entered_ = 0;
  double penalty_ = 0;
  std::vector<double> wanted_, values_, prices_, step_;
  std::vector<double> inverse_;  // [row][row]
  std::vector<basic> basis_;
};

}  // namespace hetsched::detail
