// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/plan/gradient_groups.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<gradient_group> gradient_groups(const plan& p) {
  std::vector<gradient_group> groups;
  if (p.pipelines.size() < 2) return groups;
  for (const auto& line : p.pipelines) {
    int next = 0;
    for (const auto& s : line.stages) {
      if (s.layers.first != next || s.layers.last <= next)
        throw input_error("a stage has layers " + std::to_string(s.layers.first) + " to " + std::to_string(s.layers.last) +
                          ", expected at least one from " + std::to_string(next) + " on");
      next = s.layers.last;
    }
    const auto& first = p.pipelines.front().stages;
    if (line.stages.empty() || next != first.back().layers.last)
      throw input_error("the pipelines of a plan do not have the same layers");
  }
  std::vector<int> stage_of(p.pipelines.size(), 0);
  const int layers = p.pipelines.front().stages.back().layers.last;
  for (int first = 0; first < layers;) {
    int last = layers;
    for (std::size_t l = 0; l < stage_of.size(); ++l) last = std::min(last, at(p.pipelines[l].stages, stage_of[l]).layers.last);
    groups.push_back({{first, last}, stage_of});
    for (std::size_t l = 0; l < stage_of.size(); ++l)
      if (at(p.pipelines[l].stages, stage_of[l]).layers.last == last) ++stage_of[l];
    first = last;
  }
  return groups;
}

}  // namespace hetsched
