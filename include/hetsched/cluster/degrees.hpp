// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hetsched {

/// Parallel sizes inside a stage. data * context * tensor = devices of the stage.
struct degrees {
  int data = 1;
  int context = 1;
  int tensor = 1;
  /// Of data ranks that follow each other, so many share out the experts of layers that have some; divides data.
  int expert = 1;
  [[nodiscard]] constexpr int device_count() const { return data * context * tensor; }
  friend constexpr bool operator==(degrees, degrees) = default;
};

/// Devices of a stage that hold the same parameters, but for experts': the group that reduces gradients and that ZeRO shards
/// over.
[[nodiscard]] constexpr std::int64_t replicas(const degrees& d) { return std::int64_t{d.data} * d.context; }

}  // namespace hetsched
