// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/target_test.cpp.

#include <hetsched/cluster/device.hpp>

namespace hetsched::detail {

/// What numbers of a precision are stored in, tf32 being a way to multiply fp32.
[[nodiscard]] constexpr precision bits_of(precision p) { return p == precision::tf32 ? precision::fp32 : p; }

/// Whether NCCL, or AMD's RCCL, takes a device, as far as is known.
[[nodiscard]] inline bool known_to_nccl(const device& d) {
  const auto maker = maker_of(d);
  return maker.empty() || maker == "NVIDIA" || maker == "AMD";
}

}  // namespace hetsched::detail
