// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
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

HETSCHED_INLINE std::string missing_links(const cluster& hardware) {
  constexpr int told = 6;
  std::string text;
  int pairs = 0;
  const link_index links(hardware);
  const int count = static_cast<int>(hardware.subclusters.size());
  for (int a = 0; a < count; ++a)
    for (int b = a + 1; b < count; ++b)
      if (!links.between(a, b) && pairs++ < told)
        text += (text.empty() ? "" : ", ") + at(hardware.subclusters, a).name + " - " + at(hardware.subclusters, b).name;
  return text + (pairs > told ? " and " + std::to_string(pairs - told) + " other pairs" : "");
}

}  // namespace hetsched
