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
[[nodiscard]] inline std::string describe(const cluster& hardware, const placement& p) {
  std::string text = "subcluster " + subcluster_of(hardware, p.mesh).name + " (" + std::to_string(p.mesh.nodes) + "x" +
                     std::to_string(p.mesh.devices_per_node);
  const auto part = [&](int degree, const char* name) {
    if (degree > 1) text += std::string(", ") + name + " " + std::to_string(degree);
  };
  part(p.degrees.data, "data");
  part(p.degrees.context, "context");
  part(p.degrees.tensor, "tensor");
  part(p.degrees.expert, "expert");
  if (p.recompute != recomputation::none) text += ", recompute " + std::string(name_of(p.recompute));
  if (p.zero > 0) text += ", ZeRO " + std::to_string(p.zero);
  return text + ")";
}

/// "31.2 GiB".
[[nodiscard]] inline std::string in_gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g GiB", bytes / static_cast<double>(gib));
  return text;
}

}  // namespace hetsched
