// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/models/forest_test.cpp.

#include <array>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// A transformer layer on one device, as far as its time depends on it.
struct layer_case {
  double sequence = 0;
  double heads = 0;
  double head_size = 0;
  double context = 1;  ///< context-parallel degree
  double tensor = 1;   ///< tensor-parallel degree
  double samples = 1;  ///< of a microbatch, on the device
  double element_bytes = 2;
};

inline constexpr int layer_feature_count = 15;

/// The features of HetAuto's forest (Table 6): s, h, h_n, h_d, c, t, b, e; u, F_layer, M_layer, C_tp, C_cp, R_cm, R_cc.
/// R_cc is 0 where nothing is communicated.
[[nodiscard]] constexpr std::array<double, layer_feature_count> layer_features(const layer_case& l) {
  for (const double x : {l.sequence, l.heads, l.head_size, l.samples, l.element_bytes})
    if (!(x >= 0 && x < 1e15)) throw input_error("a layer's sizes must be finite and not negative");
  for (const double x : {l.context, l.tensor})
    if (!(x >= 1 && x < 1e15)) throw input_error("a layer's context and tensor degrees must be at least 1");
  const double s = l.sequence, h = l.heads * l.head_size, c = l.context, t = l.tensor, e = l.element_bytes;
  const double u = l.samples * s * h;
  const double flops = (24 * u * h + 4 * u * s) / (c * t);
  const double memory = (12 * h * h + 8 * u + 4 * l.samples * s * l.heads) * e / (c * t);
  const double tensor_bytes = 2 * (t - 1) * u * e / (c * t);
  const double context_bytes = 6 * (c - 1) * u * e / (c * t);
  const double bytes = tensor_bytes + context_bytes;
  return {s,
          h,
          l.heads,
          l.head_size,
          c,
          t,
          l.samples,
          e,
          u,
          flops,
          memory,
          tensor_bytes,
          context_bytes,
          memory > 0 ? flops / memory : 0,
          bytes > 0 ? flops / bytes : 0};
}

}  // namespace hetsched
