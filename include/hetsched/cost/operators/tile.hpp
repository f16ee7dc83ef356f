// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/operators/generation.hpp>
#include <hetsched/cost/operators/residual.hpp>
#include <hetsched/cost/operators/tile_constants.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// The format of operands in which matrix products of precision p compute.
[[nodiscard]] constexpr number_format format_of(precision p) {
  return p == precision::fp32   ? number_format::fp32
         : p == precision::tf32 ? number_format::tf32
         : p == precision::fp16 ? number_format::fp16
                                : number_format::bf16;
}

/// Whether a device has matrix units for fp8; others multiply it in 16 bits.
[[nodiscard]] inline bool multiplies_fp8(const device& d) {
  return d.fp8_flops > 0 || multiplies_fp8(find_generation(d.generation));
}

/// The same of int8.
[[nodiscard]] inline bool multiplies_int8(const device& d) {
  return d.int8_flops > 0 || multiplies_int8(find_generation(d.generation));
}

/// The class of an operator: attention in one kernel is attention, in several it is products and others.
[[nodiscard]] constexpr operator_class class_of(operator_kind k) {
  return k == operator_kind::gemm              ? operator_class::products
         : k == operator_kind::flash_attention ? operator_class::attention
                                               : operator_class::others;
}

/// A device as the tile model sees it.
struct tile_device {
  std::array<double, number_format_count> peak_flops{};  ///< by number_format; 0 where it cannot compute in it
  std::array<bool, number_format_count> on_matrix_units{};
  bool has_fp8 = false, has_int8 = false;  ///< whether it multiplies in them, not in 16 bits what it stores in 8
  double memory_bandwidth = 0;
  double l2_bytes = 0;
  double multiprocessors = 0;
  double clock_hz = 0;
  double lanes = 0;        ///< that multiply in fp32, of a multiprocessor; 0: not known
  double board_watts = 0;  ///< 0: no cap
  chip_generation generation = chip_generation::other;
  bool has_matrix_units = false;
  bool has_gddr = false;  ///< memory of any GDDR type
  double threads = 2048;  ///< that a multiprocessor holds
  bool has_tf32 = false;
  flash_kernels flash = flash_kernels::newest;  ///< not of the chip, but of what runs on it
  device_calibration calibration{};
  std::array<double, 3> speeds{1, 1, 1};  ///< by operator_class: device::speed with device::class_speeds

  /// These generations sustain less of their memory bandwidth than Volta, Ampere and later ones.
  [[nodiscard]] bool pascal_or_turing() const {
    return generation == chip_generation::pascal || generation == chip_generation::turing;
  }
};

/// Where the time of one operator goes.
struct operator_time {
  double seconds = 0;  ///< launch + the longer of arithmetic and traffic + what of the shorter is exposed
  double compute_s = 0;
  double memory_s = 0;
  int tile_m = 0, tile_n = 0, splits = 1;  ///< of a matrix product: the chosen tile, and the ways its reduction is split
  double waves = 0;                        ///< tiles over multiprocessors
};

/// What the tile model takes from a device: its datasheet and its calibration, and never its name. Throws input_error for a
/// device without multiprocessors, memory bandwidth or any peak, and for figures that are negative or not finite.
[[nodiscard]] tile_device make_tile_device(const device& d);

namespace detail {

// Where a calibration finds the operator, whose time is without residuals.
[[nodiscard]] inline calibration_point point_of(const tile_device& d, const operator_shape& op, const operator_time& t) {
  const bool product = op.kind == operator_kind::gemm || op.kind == operator_kind::flash_attention;
  return hetsched::point_of(op, product && at(d.on_matrix_units, op.format), t.seconds, t.compute_s, t.memory_s, t.waves);
}

}  // namespace detail

/// Seconds that one operator takes on an idle device, from its shape and the datasheet: of the tiles that libraries have, and of
/// the ways to split the reduction, the fastest; tiles run in waves over the multiprocessors (HAP5 sec. IV, NeuSight), the longer
/// of arithmetic and memory traffic decides. Throws input_error where the device has no peak for the format, and for sizes
/// below 1. O(1).
[[nodiscard]] operator_time predict_operator(const tile_device& d, const operator_shape& op, const tile_constants& c = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/operators/tile.ipp>
#endif
