// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/tile_test.cpp.

#include <string_view>

namespace hetsched {

/// What datasheets say of a board and `device` does not have.
struct board {
  double watts = 0;  ///< board power; 0 where unknown, which caps nothing
  /// fp32 rate per watt of the generation's full-power boards over Turing's (TITAN RTX): 2.2 for GA10x (A6000), 3.1 since 4 nm
  /// (RTX 4090); 1 for older ones and the A100.
  double fp32_per_watt = 1;
  bool fp8 = false;               ///< matrix units multiply fp8 at twice the fp16 rate
  bool pascal_or_turing = false;  ///< generations that sustain less of their memory bandwidth than Volta, Ampere and later ones
};

namespace detail {

struct board_row {
  const char* name;
  double watts, fp32_per_watt;
  bool fp8, pascal_or_turing;
};

inline constexpr board_row board_rows[] = {
    // clang-format off
    {"P4", 75, 1, false, true},
    {"P100-PCIe-16GB", 250, 1, false, true},
    {"P100-SXM2-16GB", 300, 1, false, true},
    {"V100-PCIe-16GB", 250, 1, false, false},
    {"V100-PCIe-32GB", 250, 1, false, false},
    {"V100-SXM2-16GB", 300, 1, false, false},
    {"V100-SXM2-32GB", 300, 1, false, false},
    {"T4", 70, 1, false, true},
    {"RTX2080Ti", 250, 1, false, true},
    {"TITAN-RTX", 280, 1, false, true},
    {"A10", 150, 2.2, false, false},
    {"A40", 300, 2.2, false, false},
    {"RTX3080Ti", 350, 2.2, false, false},
    {"RTX3090", 350, 2.2, false, false},
    {"A4000", 140, 2.2, false, false},
    {"A5000", 230, 2.2, false, false},
    {"A6000", 300, 2.2, false, false},
    {"A100-PCIe-40GB", 250, 1, false, false},
    {"A100-SXM4-40GB", 400, 1, false, false},
    {"A100-PCIe-80GB", 300, 1, false, false},
    {"A100-SXM4-80GB", 400, 1, false, false},
    {"A800-SXM4-80GB", 400, 1, false, false},
    {"H100-PCIe-80GB", 350, 3.1, true, false},
    {"H100-SXM5-80GB", 700, 3.1, true, false},
    {"H800-SXM5-80GB", 700, 3.1, true, false},
    {"H20-96GB", 400, 3.1, true, false},
    {"H20-141GB", 400, 3.1, true, false},
    {"H200-SXM", 700, 3.1, true, false},
    {"GH200-96GB", 700, 3.1, true, false},
    {"L4", 72, 3.1, true, false},
    {"L40S", 350, 3.1, true, false},
    {"RTX4090", 450, 3.1, true, false},
    {"B200-SXM", 1000, 3.1, true, false},
    {"MI300X", 0, 1, true, false},
    {"Trainium2", 0, 1, true, false},
    // clang-format on
};

}  // namespace detail

/// The board of a catalogue device; one without a power cap and without fp8 for other names.
[[nodiscard]] constexpr board board_of(std::string_view device_name) {
  for (const auto& row : detail::board_rows)
    if (device_name == row.name)
      return {.watts = row.watts, .fp32_per_watt = row.fp32_per_watt, .fp8 = row.fp8, .pascal_or_turing = row.pascal_or_turing};
  return {};
}

}  // namespace hetsched
