// SPDX-License-Identifier: Apache-2.0
// Layouts by hand, one property of all groups or boundaries after the other.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include <hetsched/reshard/strategy.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>

namespace hetsched::test {

/// Sets what each rank of the schedule has: set_groups(line, &group_layout::zero, {0, 2}).
template <class T>
void set_groups(pipeline_layout& line, T group_layout::*what, const std::type_identity_t<std::vector<T>>& values) {
  line.groups.resize(values.size());
  for (std::size_t g = 0; g < values.size(); ++g) line.groups[g].*what = values[g];
}

/// What set_groups has set.
template <class T>
[[nodiscard]] std::vector<T> of_groups(const pipeline_layout& line, T group_layout::*what) {
  std::vector<T> found;
  for (const auto& g : line.groups) found.push_back(g.*what);
  return found;
}

/// All tensors travel so.
inline void set_reshard(pipeline_layout& line, reshard_strategy how) {
  for (auto& s : line.stages) s.reshard = how;
}

}  // namespace hetsched::test
