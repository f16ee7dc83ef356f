// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cluster/catalogue_test.cpp.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <hetsched/core/units.hpp>

namespace hetsched {

/// Arithmetic in which matrix products run.
enum class precision { fp32, tf32, fp16, bf16 };
inline constexpr int precision_count = 4;

/// The name of a precision in files.
[[nodiscard]] constexpr std::string_view name_of(precision p) {
  constexpr std::string_view names[] = {"fp32", "tf32", "fp16", "bf16"};
  return names[static_cast<std::size_t>(p)];
}

/// One type of accelerator, by its datasheet.
struct device {
  std::string name;
  std::array<double, precision_count> peak_flops{};  ///< dense FLOP/s by precision; 0 where the device lacks it
  bytes_t memory_bytes = 0;
  double memory_bandwidth = 0;  ///< bytes/s
  int multiprocessors = 0;
  bytes_t l2_bytes = 0;
  double clock_hz = 0;

  /// Peak FLOP/s in a precision. Where the device lacks it, bf16 falls back to fp16, and everything to fp32.
  [[nodiscard]] double flops(precision p) const {
    const auto at = [&](precision q) { return peak_flops[static_cast<std::size_t>(q)]; };
    if (at(p) > 0) return at(p);
    if (p == precision::bf16 && at(precision::fp16) > 0) return at(precision::fp16);
    return at(precision::fp32);
  }

  friend bool operator==(const device&, const device&) = default;
};

}  // namespace hetsched
