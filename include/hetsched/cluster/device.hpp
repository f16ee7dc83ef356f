// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cluster/catalogue_test.cpp.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// Arithmetic in which matrix products run.
enum class precision { fp32, tf32, fp16, bf16 };
inline constexpr int precision_count = 4;

/// The name of a precision in files.
[[nodiscard]] constexpr std::string_view name_of(precision p) {
  constexpr std::string_view names[] = {"fp32", "tf32", "fp16", "bf16"};
  return at(names, p);
}

/// The precision of that name, if there is one.
[[nodiscard]] constexpr std::optional<precision> find_precision(std::string_view name) {
  for (const auto p : {precision::fp32, precision::tf32, precision::fp16, precision::bf16})
    if (name == name_of(p)) return p;
  return std::nullopt;
}

/// What the factors of a calibration leave unexplained at a measured operator, which lies `at` (cost/residual.hpp): operators of
/// the same kernel take longer by exp(weight * what they have in common with it).
struct calibration_residual {
  static constexpr std::size_t coordinates = 8;

  int kernel = 0;
  std::array<double, coordinates> at{};
  double weight = 0;

  friend bool operator==(const calibration_residual&, const calibration_residual&) = default;
};

/// What measurements of a device said beyond its datasheet: factors on what the tile model (cost/tile.hpp) makes of the latter.
struct device_calibration {
  double lane_rate = 1;         ///< of products on fp32 lanes
  double matrix_rate = 1;       ///< of products on matrix units
  double memory_bandwidth = 1;  ///< of memory
  double l2_bandwidth = 1;      ///< of L2, for what it still holds
  double launch_s = 0;          ///< seconds of every operator, on top of the model's launch; at least 0
  std::vector<calibration_residual> residuals = {};

  friend bool operator==(const device_calibration&, const device_calibration&) = default;
};

/// Kinds of operators that devices may be measured apart in.
enum class operator_class { products, attention, others };
inline constexpr std::array<std::string_view, 3> operator_class_names{"products", "attention", "others"};

/// One type of accelerator, by its datasheet.
struct device {
  std::string name;
  std::array<double, precision_count> peak_flops{};  ///< dense FLOP/s by precision; 0 where the device lacks it
  bytes_t memory_bytes = 0;
  double memory_bandwidth = 0;  ///< bytes/s
  int multiprocessors = 0;
  bytes_t l2_bytes = 0;
  double clock_hz = 0;
  std::optional<double> price_per_hour = {};  ///< money, in any one currency
  double board_watts = 0;                     ///< 0: not known
  std::string generation = {};                ///< of its chip, as the maker names it; empty: not known
  double fp8_flops = 0;                       ///< dense FLOP/s; 0: none, or not known
  double int8_flops = 0;                      ///< dense operations per second; 0: none, or as its generation has it
  std::string memory_type = {};               ///< such as HBM3 or GDDR6; empty: not known
  int lanes_per_multiprocessor = 0;           ///< that multiply in fp32; 0: as many as the fp32 peak needs at clock_hz
  device_calibration calibration = {};
  double speed = 1;  ///< measured over modelled, of whole models: what anchors say; times of computing are divided by it
  std::array<double, 3> class_speeds{1, 1, 1};  ///< the same of operators by their class, on top of `speed`

  /// The precision in which products of precision `p` run: its own; where the device lacks it, fp16 for bf16 if there is any, as
  /// its stages would be cast to the format of the same size; else fp32.
  [[nodiscard]] precision computes_in(precision p) const {
    const auto has = [&](precision q) { return at(peak_flops, q) > 0; };
    if (has(p)) return p;
    return p == precision::bf16 && has(precision::fp16) ? precision::fp16 : precision::fp32;
  }

  /// Whether it is as fast as its datasheet and calibration say.
  [[nodiscard]] bool is_anchored() const { return speed != 1 || class_speeds != std::array<double, 3>{1, 1, 1}; }

  /// Peak FLOP/s of what products of precision `p` run in.
  [[nodiscard]] double flops(precision p) const { return at(peak_flops, computes_in(p)); }

  friend bool operator==(const device&, const device&) = default;
};

/// Who made a device, as far as its generation tells: "NVIDIA", "AMD", "Intel", "Huawei", "AWS"; empty: not known.
[[nodiscard]] inline std::string_view maker_of(const device& d) {
  struct row {
    std::string_view begin, maker;
  };
  constexpr row rows[] = {{"Pascal", "NVIDIA"}, {"Volta", "NVIDIA"},  {"Turing", "NVIDIA"},    {"Ampere", "NVIDIA"},
                          {"Ada", "NVIDIA"},    {"Hopper", "NVIDIA"}, {"Blackwell", "NVIDIA"}, {"CDNA", "AMD"},
                          {"RDNA", "AMD"},      {"Xe", "Intel"},      {"DaVinci", "Huawei"},   {"NeuronCore", "AWS"}};
  for (const auto& r : rows)
    if (d.generation.starts_with(r.begin)) return r.maker;
  return {};
}

}  // namespace hetsched
