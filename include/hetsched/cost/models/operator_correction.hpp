// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/forest.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// A measured operator.
struct operator_sample {
  tile_device device{};
  operator_shape op{};
  double seconds = 0;
  double added_s = 0;  ///< of `seconds`, what the way of measuring adds to every operator, such as launches from the host
};

inline constexpr int product_feature_count = 10, vector_feature_count = 3;

/// The features of one operator.
struct operator_features {
  std::array<double, product_feature_count> values{};
  int count = 0;
};

namespace detail {

// Operators that the same kind of kernel computes: kind, matrix units, batched, scalar.
[[nodiscard]] inline int kernel_family(const tile_device& d, const operator_shape& op) {
  const bool product = op.kind == operator_kind::gemm || op.kind == operator_kind::flash_attention;
  const bool matrix_units = product && at(d.on_matrix_units, op.format);
  return static_cast<int>(op.kind) * 8 + (matrix_units ? 4 : 0) + (op.batched ? 2 : 0) + (op.scalar ? 1 : 0);
}

// Compute time to memory time: which of the two a kernel waits for.
[[nodiscard]] inline double balance(const operator_time& t) {
  constexpr double least = 1e-3;
  return std::clamp(t.memory_s > 0 ? t.compute_s / t.memory_s : 1 / least, least, 1 / least);
}

}  // namespace detail

/// What a correction may depend on, all without units and relative to the device, so that it carries over to others. Products:
/// waves, how full the last one is, operands to L2, and the share of multiprocessors' time that tiles of seven sizes would use,
/// since the library's choice among them is what the tile model knows least. Others: traffic to L2 and to the elements, compute
/// time to memory time.
[[nodiscard]] operator_features features_of(const tile_device& d, const operator_shape& op, const operator_time& t);

/// What measured operators say about the tile model: a forest on log(measured / model) for every kind of kernel among them.
/// Kernels of other kinds stay as the model has them, and so do kernels that wait for memory where those measured wait for
/// arithmetic, or the other way round: beyond the measured balance of the two the correction fades within a factor of two.
class operator_correction {
 public:
  /// Corrects nothing.
  operator_correction() = default;

  /// Throws input_error for no samples, seconds that are not positive and finite, or as random_forest::train and
  /// predict_operator. The correction goes with the constants that it was trained with.
  [[nodiscard]] static operator_correction train(std::span<const operator_sample> samples,
                                                 const forest_options& options = {.trees = 50, .least_leaf_rows = 20},
                                                 const tile_constants& constants = {}) {
    struct table {
      int family, width = 0;
      double low = infinity, high = 0;
      std::vector<double> features{}, targets{};
    };
    std::vector<table> tables;
    if (samples.empty()) throw input_error("an operator correction needs samples");
    for (const auto& s : samples) {
      if (!(s.seconds > 0 && std::isfinite(s.seconds) && s.added_s >= 0))
        throw input_error("an operator's measured seconds must be positive and finite");
      const int family = detail::kernel_family(s.device, s.op);
      auto t = std::find_if(tables.begin(), tables.end(), [&](const table& x) { return x.family == family; });
      if (t == tables.end()) t = tables.insert(t, {.family = family});
      const auto time = predict_operator(s.device, s.op, constants);
      const auto f = features_of(s.device, s.op, time);
      t->width = f.count;
      t->features.insert(t->features.end(), f.values.begin(), f.values.begin() + f.count);
      t->targets.push_back(std::log(s.seconds / (time.seconds + s.added_s)));
      t->low = std::min(t->low, detail::balance(time));
      t->high = std::max(t->high, detail::balance(time));
    }
    std::sort(tables.begin(), tables.end(), [](const table& a, const table& b) { return a.family < b.family; });
    operator_correction c;
    for (const auto& t : tables)
      c.kinds_.push_back({t.family, t.low, t.high, random_forest::train(t.features, t.width, t.targets, options)});
    return c;
  }

  /// Measured to modelled seconds; 1 where nothing is known. `time` is the tile model's.
  [[nodiscard]] double factor(const tile_device& d, const operator_shape& op, const operator_time& time) const;

  [[nodiscard]] double factor(const tile_device& d, const operator_shape& op, const tile_constants& constants = {}) const {
    return factor(d, op, predict_operator(d, op, constants));
  }

  /// Text that read() turns into an equal correction: a line "FAMILY LOW HIGH CHARACTERS" before each forest's text.
  [[nodiscard]] std::string text() const;

  /// Throws input_error for text that no correction has.
  [[nodiscard]] static operator_correction read(std::string_view text);

  friend bool operator==(const operator_correction&, const operator_correction&) = default;

 private:
  struct kind {
    int family = 0;
    double low = 0, high = 0;  // measured balances
    random_forest forest{};
    friend bool operator==(const kind&, const kind&) = default;
  };
  std::vector<kind> kinds_;
};

/// Seconds of an operator by the tile model, corrected.
struct corrected_timer {
  tile_constants constants{};
  operator_correction correction{};

  [[nodiscard]] double operator()(const tile_device& d, const operator_shape& op) const {
    const auto time = predict_operator(d, op, constants);
    return time.seconds * correction.factor(d, op, time);
  }
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/operator_correction.ipp>
#endif
