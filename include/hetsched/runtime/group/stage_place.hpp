// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/group/stage_group_test.cpp.

#include <hetsched/cluster/degrees.hpp>

namespace hetsched {

/// A rank's place in a stage's group, whose ranks are arranged as data x context x tensor, tensor innermost.
struct stage_place {
  int data = 0;
  int context = 0;
  int tensor = 0;
  friend constexpr bool operator==(const stage_place&, const stage_place&) = default;
};

/// The place of rank `index` of a group.
/// Requires: degrees are positive.
[[nodiscard]] constexpr stage_place place_of(const degrees& d, int index) {
  return {.data = index / (d.context * d.tensor), .context = index / d.tensor % d.context, .tensor = index % d.tensor};
}
/// The rank of a group at a place.
[[nodiscard]] constexpr int index_of(const degrees& d, const stage_place& p) {
  return (p.data * d.context + p.context) * d.tensor + p.tensor;
}

}  // namespace hetsched
