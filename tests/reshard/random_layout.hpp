// SPDX-License-Identifier: Apache-2.0
// Layouts of every kind, for the tests of what moves tensors between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/layout.hpp>

namespace hetsched::test {

inline std::string to_text(const layout& l) {
  std::string text = "mesh";
  for (const int n : l.mesh) text += ' ' + std::to_string(n);
  for (const auto& d : l.dimensions) {
    text += "; " + std::to_string(d.extent) + " over";
    for (const int a : d.axes) text += ' ' + std::to_string(a);
    if (!d.points.empty()) text += " at";
    for (const auto p : d.points) text += ' ' + std::to_string(p);
  }
  return text;
}

/// A layout of a tensor of this shape on at most so many devices: any axes may cut any dimension, at any points.
inline layout random_layout(random_source& random, const std::vector<std::int64_t>& shape, int most) {
  layout l;
  for (int axes = random.integer(1, 3), left = most; axes > 0; --axes) {
    l.mesh.push_back(random.integer(1, std::min(left, random.integer(0, 1) ? 4 : 8)));
    left /= l.mesh.back();
  }
  for (const auto extent : shape) l.dimensions.push_back({extent, {}, {}});
  for (std::size_t a = 0; a < l.mesh.size() && !shape.empty(); ++a)
    if (random.integer(0, 3) > 0)
      l.dimensions[static_cast<std::size_t>(random.integer(0, static_cast<int>(shape.size()) - 1))].axes.push_back(
          static_cast<int>(a));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (random.integer(0, 2) > 0) continue;
    auto& points = l.dimensions[d].points;
    points = {0, shape[d]};
    for (int p = 1; p < l.parts(d); ++p) points.push_back(random.integer(0, static_cast<int>(shape[d])));
    std::sort(points.begin(), points.end());
  }
  return l;
}

}  // namespace hetsched::test
