// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/operators/tile_test.cpp.

#include <cstdint>

#include <hetsched/cost/operators/generation.hpp>

namespace hetsched {

/// What the tile model (cost/tile.hpp) takes from measurements; everything else are shapes and datasheet numbers.
/// Fitted together over all measured devices, but for those that say so, by bench/validation/fit_tile.cpp, which prints exactly
/// these numbers.
struct tile_constants {
  double lane_share = 0.96;  ///< of the fp32 peak that a busy multiprocessor sustains with very large tiles
  double wide_lane_share =
      0.80;  ///< the same where a multiprocessor has 128 lanes, which share what feeds them: large products on H100, not fitted
  double matrix_share =
      0.88;  ///< the same of the matrix units' peak, but for Ada: the best products on A100-SXM, 268 TFLOP/s, not fitted
  double ada_matrix_share = 0.8;  ///< the same on Ada: the best products on RTX 6000 Ada, L4 and RTX 4000 Ada, not fitted
  double lane_feed = 16.5;        ///< loss to operand loads, in elements: rate / sqrt(1 + (feed (1 / tile_m + 1 / tile_n))^2)
  double matrix_feed = 17.5;      ///< the same for matrix units
  double long_power =
      0.9;  ///< of the board's power, for products that are not repeated ones: models run long; H100's iterations, not fitted
  double step_cycles = 2.4;          ///< of matrix units along the reduction, for 2 bytes of it, however small the tile
  double flops_per_watt = 73e9;      ///< sustained fp32 FLOP/s per watt above idle_watts, of generations up to Turing and of A100
  double fill_cycles = 3500;         ///< of a wave of tiles on matrix units, besides arithmetic: operands come, results leave
  double wave_loss = 0.55;           ///< of the places that the last wave of tiles leaves empty, the share that costs time
  double matrix_wave_loss = 0.25;    ///< the same on matrix units, whose kernels share out the last wave
  double attention_wave_loss = 0.2;  ///< the same in attention, not fitted
  double memory_share = 0.96;        ///< of the memory bandwidth that kernels sustain since Volta, but for Turing
  double early_memory_share = 0.79;  ///< the same on Pascal and Turing
  double gddr_memory_share = 0.85;   ///< the same of GDDR since Ampere: long elementwise operators on A40, not fitted
  double matrix_memory_share = 0.82;  ///< the same of products on matrix units, whatever the memory
  double exposed = 0.12;              ///< of the shorter of arithmetic and traffic, the share that the longer does not hide
  double matrix_exposed = 0.24;       ///< the same of products on matrix units
  double split_traffic = 18.5;        ///< passes over the partial sums, in fp32, for each split of the reduction
  double matrix_split_traffic = 0.5;  ///< the same on matrix units
  double split_cycles = 5500;         ///< of matrix units to put split reductions together, besides that
  double store_reach = 0.5;           ///< results, as a share of L2, of which L2 takes half before memory has to, not fitted
  double repeat_reach =
      0.15;  ///< what a repeated product moves, as a share of L2, of which L2 holds half: one of six in turn, not fitted
  double quantise_s = 1.9e-6;      ///< to quantise operands, besides their traffic
  double quantise_row_s = 5.8e-9;  ///< the same for each row, on chips of any size alike
  double page_misses = 0.34;       ///< before Volta, slower by this for each doubling of k sqrt(m + n) above 2^20 (fp32)
  double row_reread = 0.45;        ///< rows in flight, as a share of L2, of which norms and softmax read half again from memory
  double memory_wait = 0.4;        ///< by which scalar norms, which have few loads in flight, wait longer for memory than for L2
  double row_cycles = 0.29;        ///< cycles of a multiprocessor per element that scalar kernels other than norms read or write
  double norm_cycles = 0.85;       ///< cycles per element of a scalar norm with 1024 threads to a row and nothing beside it
  double pass_cycles = 0.1;        ///< cycles per 4 bytes of other norms between the passes over a row, on top of their traffic
  double softmax_cycles = 0.62;    ///< cycles of a multiprocessor per element of softmax
  double gather_cycles = 1.8;      ///< cycles per element of a multiprocessor in table look-ups
  double l2_reach = 1.3;           ///< traffic of other operators than products, as a share of L2, of which L2 holds half
  double l2_cycle_bytes = 18;      ///< that L2 gives each multiprocessor in a cycle
  double launch_s = 2e-6;          ///< from one kernel to the next on the device; a framework's launch from the host comes on top
  double flash_share = 0.77;  ///< of the matrix units' peak that products in attention kernels sustain before Hopper, not fitted
  double idle_watts = 10;     ///< of the board power, what arithmetic cannot have: what T4 and P4 draw idle, not fitted
};

/// What cached_attention takes of a chip beyond its datasheet, by generation; after fits by bench/validation/fit_attention.py to
/// kernels of inference engines on A100, H200 and L40S, with one L2 for prompts and tokens. Other generations have the figures of
/// the one nearest to them.
struct attention_constants {
  double prefill_share = 0.76;     ///< of the matrix units' peak that products sustain
  double exponential_share = 1.5;  ///< of the cycles of exponentials, 16 of a multiprocessor each, that products do not hide
  double prefill_s = 14.7e-6;      ///< from one prompt's attention to the next operator, with what lies around it
  double decode_s = 16.7e-6;       ///< the same for a token's attention
  bool splits_all = false;         ///< splits keys over multiprocessors also where no heads share them

  double tail = 0.55;      ///< of the longest block, the share that the others do not hide
  double passes = 2.5;     ///< over queries, keys and values besides attention's own: they are turned, and written to the cache
  double l2_reach = 0.7;   ///< traffic, as a share of L2, of which L2 holds half
  double l2_share = 0.23;  ///< of memory's time, what L2 takes for what it holds
  double bandwidth_share = 0.79;          ///< of the memory bandwidth, in decoding
  double cycle_bytes = 15.8;              ///< that a multiprocessor reads in a cycle, in decoding
  double prefill_bandwidth_share = 0.85;  ///< of the memory bandwidth, for a prompt
  double least_keys = 256;                ///< that a multiprocessor takes of split keys
  double split_s = 2.4e-6;                ///< to put together what split keys make
};

/// The constants of a generation.
[[nodiscard]] constexpr attention_constants attention_of(chip_generation g) {
  if (g == chip_generation::ada) return {.prefill_share = 0.71, .exponential_share = 1, .prefill_s = 5.5e-6, .decode_s = 9e-6};
  if (g >= chip_generation::hopper)
    return {.prefill_share = 0.73,
            .exponential_share = 0.5,
            .prefill_s = 16.3e-6,
            .decode_s = 12e-6,
            .splits_all = true,
            .cycle_bytes = 3 * 15.8};
  return {};
}

/// Which FlashAttention a trainer calls. newest: FlashAttention-3 or cuDNN's where there is one for the chip, as Transformer
/// Engine does, and scaled_dot_product_attention of PyTorch 2.11 on an H100; second: FlashAttention-2; first: the one before, in
/// Triton or CUDA, which takes twice the second's time (Dao 2023).
enum class flash_kernels : std::uint8_t { newest, second, first };

/// What attention in one kernel takes of a chip in training.
struct flash_constants {
  double share;              ///< of the matrix units' peak
  double exponential_share;  ///< of the cycles of exponentials, 16 of a multiprocessor each, that products do not hide
  double own_keys;           ///< that a block takes time for besides those that it sees
  double own_s;              ///< of a call, besides its launch
};

/// Of chips of Hopper's and later generations in data centers, whose matrix units FlashAttention-2 reaches by half; fitted to
/// PyTorch's own and cuDNN's kernels on one H100 (docs/accuracy.md). Other chips: see flash_time.
[[nodiscard]] constexpr flash_constants flash_of(flash_kernels kernels, bool backward) {
  if (kernels != flash_kernels::newest)
    return backward ? flash_constants{.share = 0.38, .exponential_share = 2.3, .own_keys = 560, .own_s = 13e-6}
                    : flash_constants{.share = 0.46, .exponential_share = 1.9, .own_keys = 147, .own_s = 3e-6};
  return backward ? flash_constants{.share = 0.78, .exponential_share = 2.3, .own_keys = 560, .own_s = 13e-6}
                  : flash_constants{.share = 0.9, .exponential_share = 1.1, .own_keys = 106, .own_s = 3e-6};
}

}  // namespace hetsched
