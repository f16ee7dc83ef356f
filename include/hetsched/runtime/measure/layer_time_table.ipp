// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/measure/layer_time_table.hpp>

namespace hetsched {

HETSCHED_INLINE layer_time_table::layer_time_table(const number_table& forward_s, const number_table& backward_s) {
  if (forward_s.rows() < 1 || forward_s.columns() < 1) throw input_error("layer times: expected at least one rank and one layer");
  if (forward_s.rows() != backward_s.rows() || forward_s.columns() != backward_s.columns())
    throw input_error("layer times: found backwards of " + std::to_string(backward_s.rows()) + " ranks and " +
                      std::to_string(backward_s.columns()) + " layers, expected " + std::to_string(forward_s.rows()) + " and " +
                      std::to_string(forward_s.columns()));
  for (int r = 0; r < forward_s.rows(); ++r) {
    auto& made = rows_.emplace_back();
    for (int l = 0; l < forward_s.columns(); ++l) {
      made.cells.push_back({.forward_s = at(forward_s[r], l), .backward_s = at(backward_s[r], l)});
      for (const double s : {made.cells.back().forward_s, made.cells.back().backward_s})
        if (!std::isfinite(s) || s <= 0)
          throw input_error("layer times: rank " + std::to_string(r) + ", layer " + std::to_string(l) + " is expected to take " +
                            std::to_string(s) + " s, expected a finite number above 0");
    }
  }
}

HETSCHED_INLINE void layer_time_table::measured(int rank, std::span<const layer_time> took) {
  if (rank < 0 || rank >= ranks()) throw input_error("layer times: there is no rank " + std::to_string(rank));
  auto& own = at(rows_, rank);
  std::vector<double> factors;
  for (const auto& t : took) {
    if (t.layer < 0 || t.layer >= layers()) throw input_error("layer times: there is no layer " + std::to_string(t.layer));
    if (!std::isfinite(t.forward_s) || !std::isfinite(t.backward_s) || t.forward_s < 0 || t.backward_s < 0)
      throw input_error("layer times: layer " + std::to_string(t.layer) + " took " + std::to_string(t.forward_s) + " and " +
                        std::to_string(t.backward_s) + " s, expected finite numbers of at least 0");
    const auto& expected = at(own.cells, t.layer);
    factors.push_back((t.forward_s + t.backward_s) / (expected.forward_s + expected.backward_s));
  }
  if (factors.empty()) return;
  const auto middle = factors.begin() + (std::ssize(factors) - 1) / 2;
  std::nth_element(factors.begin(), middle, factors.end());
  if (*middle <= 0) return;  // nothing that a clock could see
  own.factor = *middle;
  for (auto& c : own.cells) c.here = false;
  for (const auto& t : took) {
    auto& c = at(own.cells, t.layer);
    c.forward_factor = t.forward_s / c.forward_s;
    c.backward_factor = t.backward_s / c.backward_s;
    c.beside = took.size() > 1 ? own.factor : 1;
    c.here = true;
  }
}

HETSCHED_INLINE layer_time layer_time_table::of(int rank, int layer) const {
  const auto& own = at(rows_, rank);
  const auto& c = at(own.cells, layer);
  const double now = c.here ? 1 : own.factor / c.beside;
  return {
      .layer = layer, .forward_s = now * c.forward_factor * c.forward_s, .backward_s = now * c.backward_factor * c.backward_s};
}

HETSCHED_INLINE number_table layer_time_table::seconds() const {
  std::vector<std::vector<double>> all;
  for (int r = 0; r < ranks(); ++r) {
    all.emplace_back();
    for (int l = 0; l < layers(); ++l) {
      const auto t = of(r, l);
      all.back().push_back(t.forward_s + t.backward_s);
    }
  }
  return number_table(all);
}

}  // namespace hetsched
