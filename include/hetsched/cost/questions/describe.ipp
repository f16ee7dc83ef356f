// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/questions/describe.hpp>

namespace hetsched {

HETSCHED_INLINE std::string describe(const cluster& hardware, const placement& p) {
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

}  // namespace hetsched
