// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hetsched {

/// Contiguous run of layers `[first, last)`, 0-based.
struct layer_range {
  int first = 0;
  int last = 0;

  [[nodiscard]] constexpr int size() const { return last - first; }
  friend constexpr bool operator==(layer_range, layer_range) = default;
};

}  // namespace hetsched
