// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/operators/tile_test.cpp.

#include <cstddef>
#include <string_view>

namespace hetsched {

/// Chips of one architecture, as far as the tile model tells them apart; `other` where it goes by the datasheet alone.
enum class chip_generation { other, pascal, volta, turing, ampere, ada, hopper, blackwell };

/// The generation whose name `name` begins with, in any case: "Ada Lovelace" is ada.
[[nodiscard]] constexpr chip_generation find_generation(std::string_view name) {
  constexpr std::string_view names[] = {"", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"};
  const auto begins = [&](std::string_view with) {
    if (name.size() < with.size()) return false;
    for (std::size_t i = 0; i < with.size(); ++i)
      if ((name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]) != with[i]) return false;
    return true;
  };
  for (std::size_t g = 1; g < sizeof names / sizeof *names; ++g)
    if (begins(names[g])) return static_cast<chip_generation>(g);
  return chip_generation::other;
}

/// Sustained fp32 rate per watt over that of generations up to Turing and of the A100 (64 lanes to a multiprocessor); 0 where it
/// is not known. For Ada what an L4 sustains in long runs, 8.8 TFLOP/s of 72 W; for the others ratios of full-power boards'
/// datasheets to the TITAN RTX: the A6000 for Ampere with 128 lanes, the RTX 4090 for Hopper and later, none of which its cap
/// stops.
[[nodiscard]] constexpr double fp32_per_watt(chip_generation g, double lanes_per_multiprocessor) {
  using enum chip_generation;
  if (g == other) return 0;
  if (g < ampere || (g == ampere && lanes_per_multiprocessor < 96)) return 1;
  return g == ampere ? 2.2 : g == ada ? 2.0 : 3.1;
}

/// What matrix units of a generation sustain in 16 bits, in FLOP/s of a board of w watts over w^0.75, as the voltage falls with
/// the clock; 0 where it is not known. From the best products on A100-PCIe (256 TFLOP/s of 300 W), L4 (91 of 72 W), H100-PCIe
/// (500 of 350 W) and H100-SXM (792 of 700 W), in mag-/gpu_benchmark.
[[nodiscard]] constexpr double matrix_per_watt(chip_generation g) {
  using enum chip_generation;
  return g == ampere ? 3.8e12 : g == ada ? 4.3e12 : g == hopper ? 6.25e12 : 0;
}

/// Whether the generation's matrix units multiply fp8 at twice the fp16 rate.
[[nodiscard]] constexpr bool multiplies_fp8(chip_generation g) { return g >= chip_generation::ada; }

/// The same of int8. A chip of such a generation that has less says so by a peak of its own.
[[nodiscard]] constexpr bool multiplies_int8(chip_generation g) { return g >= chip_generation::turing; }

}  // namespace hetsched
