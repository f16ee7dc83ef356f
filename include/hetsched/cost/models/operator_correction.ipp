// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/models/operator_correction.hpp>

namespace hetsched {

HETSCHED_INLINE operator_features features_of(const tile_device& d, const operator_shape& op, const operator_time& t) {
  const double l2 = d.l2_bytes > 0 ? d.l2_bytes : 1;
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n), k = static_cast<double>(op.k);
  if (op.kind != operator_kind::gemm)
    return {{op.traffic_bytes / l2, op.traffic_bytes / (m * n * element_bytes(op.format)), detail::balance(t)},
            vector_feature_count};
  operator_features f{{t.waves, t.waves / std::ceil(t.waves), (m + n) * k * element_bytes(op.format) / l2},
                      product_feature_count};
  constexpr std::pair<int, int> tiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {32, 128}};
  for (std::size_t i = 0; i < std::size(tiles); ++i) {
    const auto [rows, columns] = tiles[i];
    const double count = static_cast<double>(op.batch) * std::ceil(m / rows) * std::ceil(n / columns);
    f.values[3 + i] =
        static_cast<double>(op.batch) * m * n / (std::ceil(count / d.multiprocessors) * d.multiprocessors * rows * columns);
  }
  return f;
}

}  // namespace hetsched
