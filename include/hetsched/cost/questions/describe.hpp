// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// "layer 3", "layers 3-7": both ends included.
[[nodiscard]] inline std::string describe(layer_range r) {
  return r.size() == 1 ? "layer " + std::to_string(r.first)
                       : "layers " + std::to_string(r.first) + "-" + std::to_string(r.last - 1);
}

/// "subcluster a100 (1x4, data 2, tensor 2, recompute full, ZeRO 1)": the shape, and what is not plain.
/// Requires: a placement in the cluster.
[[nodiscard]] std::string describe(const cluster& hardware, const placement& p);

/// The pairs of subclusters without a link: "a - b, a - c", the first few of them; empty if all are joined.
[[nodiscard]] std::string missing_links(const cluster& hardware);

/// "31.2 GiB".
[[nodiscard]] inline std::string in_gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g GiB", bytes / static_cast<double>(gib));
  return text;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/describe.ipp>
#endif
