// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/operators/tile.hpp>

namespace hetsched::detail {

struct tile {
  int m, n;
};

[[nodiscard]] inline double combine(double compute_s, double memory_s, double exposed) {
  return std::max(compute_s, memory_s) + exposed * std::min(compute_s, memory_s);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE tile_device make_tile_device(const device& d) {
  if (d.multiprocessors < 1 || !(d.memory_bandwidth > 0) || !(*std::max_element(d.peak_flops.begin(), d.peak_flops.end()) > 0))
    throw input_error("device " + d.name + " needs multiprocessors, memory_bandwidth and a peak");
  const auto is_figure = [](double x) { return x == 0 || (x >= 1 && x < 1e30); };
  if (!(is_figure(d.memory_bandwidth) && is_figure(static_cast<double>(d.l2_bytes)) && is_figure(d.clock_hz) &&
        is_figure(d.board_watts) && is_figure(d.lanes_per_multiprocessor) && is_figure(d.fp8_flops) && is_figure(d.int8_flops) &&
        std::all_of(d.peak_flops.begin(), d.peak_flops.end(), is_figure)))
    throw input_error("the figures of device " + d.name + " must be finite and at least 1, or 0 where one is not known");
  for (const double own : d.class_speeds)
    if (!(d.speed * own > 1e-6 && d.speed * own < 1e6))
      throw input_error("the speeds of device " + d.name + " must be between 0.000001 and 1000000");
  const double fp32 = d.flops(precision::fp32), tf32 = d.flops(precision::tf32), fp16 = d.flops(precision::fp16),
               bf16 = d.flops(precision::bf16);
  tile_device t;
  t.generation = find_generation(d.generation);
  t.has_tf32 = at(d.peak_flops, precision::tf32) > 0;
  // Without matrix units fp16 runs at most twice as fast as fp32.
  t.has_matrix_units = t.has_tf32 || fp16 > 3 * fp32;
  t.has_fp8 = multiplies_fp8(d);
  t.has_int8 = multiplies_int8(d);
  const double fp8 = d.fp8_flops > 0 ? d.fp8_flops : t.has_fp8 ? 2 * fp16 : fp16;
  const double int8 = d.int8_flops > 0 ? d.int8_flops : t.has_int8 ? 2 * fp16 : fp16;
  t.peak_flops = {fp32, tf32, fp16, bf16, fp8, int8};
  const auto on_matrix_units = [&](precision p) { return t.has_matrix_units && d.computes_in(p) != precision::fp32; };
  t.on_matrix_units = {false,
                       t.has_tf32,
                       on_matrix_units(precision::fp16),
                       on_matrix_units(precision::bf16),
                       t.has_matrix_units,
                       t.has_matrix_units};
  t.memory_bandwidth = d.memory_bandwidth;
  t.l2_bytes = static_cast<double>(d.l2_bytes);
  t.multiprocessors = d.multiprocessors;
  t.clock_hz = d.clock_hz;
  t.lanes = d.lanes_per_multiprocessor > 0 ? d.lanes_per_multiprocessor
            : d.clock_hz > 0               ? fp32 / (2 * d.multiprocessors * d.clock_hz)
                                           : 0;
  t.board_watts = d.board_watts;
  t.has_gddr = d.memory_type.starts_with("GDDR");
  const bool small_chip = t.generation == chip_generation::ada || (t.generation == chip_generation::ampere && t.lanes >= 96) ||
                          (t.generation == chip_generation::blackwell && t.has_gddr);
  t.threads = t.generation == chip_generation::turing ? 1024 : small_chip ? 1536 : 2048;
  t.calibration = d.calibration;
  for (std::size_t k = 0; k < t.speeds.size(); ++k) t.speeds[k] = d.speed * d.class_speeds[k];
  return t;
}

}  // namespace hetsched

namespace hetsched::detail {

// 128 lanes rather than 64.
[[nodiscard]] inline bool has_wide_multiprocessors(const tile_device& d) { return d.lanes >= 96; }

// Which tiles a library has for a product, of those that profilers show. Since Hopper matrix units take tiles of almost any
// width. Batched kernels come in one size for the A100, in most on later chips, and in few for Turing and Pascal, all wider than
// high; Pascal's with 64 lanes to a multiprocessor have no large ones.
[[nodiscard]] inline std::span<const tile> tile_menu(const tile_device& d, bool matrix_units, bool batched) {
  static constexpr tile matrix[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128},  {64, 64},   {64, 256},
                                    {32, 128},  {128, 32},  {32, 64},   {64, 32},  {128, 192}, {192, 128}, {128, 160},
                                    {160, 128}, {128, 224}, {224, 128}, {128, 96}, {96, 128},  {64, 96},   {96, 64}};
  static constexpr tile lanes[] = {{128, 128}, {128, 64}, {64, 128}, {32, 128}, {128, 32}, {32, 64}, {64, 32}};
  static constexpr tile pascal[] = {{32, 128}, {32, 64}, {64, 128}, {128, 128}};
  static constexpr tile batches[] = {{64, 128}, {64, 64}};
  static constexpr tile large[] = {{128, 128}};
  static constexpr tile wide[] = {{128, 128}, {64, 64}, {256, 128}, {64, 128}, {128, 32}, {32, 32}, {128, 64}, {256, 64}};
  if (matrix_units) return std::span(matrix).first(d.generation >= chip_generation::hopper ? 21 : 11);
  if (batched && d.has_tf32) return has_wide_multiprocessors(d) ? wide : std::span<const tile>(large);
  if (batched && !d.has_matrix_units) return std::span(batches).first(1);
  if (batched && d.pascal_or_turing()) return batches;
  if (d.has_matrix_units) return lanes;
  return std::span(pascal).first(has_wide_multiprocessors(d) ? 4 : 2);
}

// Engines' kernels in 8 bits (vLLM's, of CUTLASS) go by the rows alone.
[[nodiscard]] inline std::span<const tile> quantised_tile(const tile_device& d, std::int64_t rows) {
  static constexpr tile tiles[] = {{16, 64}, {32, 64}, {64, 64}, {64, 128}, {128, 128}};
  const std::int64_t few = d.generation == chip_generation::ada ? 256 : 128;
  return std::span(tiles).subspan(rows <= 16 ? 0 : rows <= 32 ? 1 : rows <= 64 ? 2 : rows <= few ? 3 : 4, 1);
}

// FLOP/s of all matrix units together, a share of the peak as far as the board's power allows. 8 bits take power for 1 / 1.75 of
// the operations in 16, as H100's best products in fp8 do.
[[nodiscard]] inline double matrix_flops(const tile_device& d, number_format f, double share, double power = 1) {
  const double peak = d.peak_flops[as_size(f)], per_watt = matrix_per_watt(d.generation);
  double most = share * peak;
  if (d.board_watts > 0 && per_watt > 0)
    most = std::min(most, per_watt * std::pow(power * d.board_watts, 0.75) * (in_8_bits(f) ? 1.75 : 1));
  return d.calibration.matrix_rate * most;
}

// FLOP/s that all multiprocessors together sustain, before losses by tile.
[[nodiscard]] inline double sustained_flops(const tile_device& d, number_format f, const tile_constants& c, double power = 1) {
  const auto i = as_size(f);
  const double peak = d.peak_flops[i];
  if (!(peak > 0)) throw input_error("the device has no peak for this number format");
  if (d.on_matrix_units[i])
    return matrix_flops(d, f, d.generation == chip_generation::ada ? c.ada_matrix_share : c.matrix_share, power);
  const double per_watt = c.flops_per_watt * fp32_per_watt(d.generation, d.lanes);
  const double cap = d.board_watts > 0 && per_watt > 0 && d.peak_flops[0] > 0
                         ? per_watt * std::max(d.board_watts - c.idle_watts, d.board_watts / 2) / d.peak_flops[0]
                         : infinity;
  return d.calibration.lane_rate * peak * std::min(has_wide_multiprocessors(d) ? c.wide_lane_share : c.lane_share, cap);
}

[[nodiscard]] inline double sustained_bandwidth(const tile_device& d, const tile_constants& c) {
  const double share = d.pascal_or_turing() ? c.early_memory_share : d.has_gddr ? c.gddr_memory_share : c.memory_share;
  return share * d.calibration.memory_bandwidth * d.memory_bandwidth;
}

// What a tile loses to its operands, which come from shared memory while it multiplies; near balance neither hides the other.
[[nodiscard]] inline double feed_loss(double feed, double tile_m, double tile_n) {
  const double fed = feed * (1 / tile_m + 1 / tile_n);
  return std::sqrt(1 + fed * fed);
}

// Before Volta, products of long rows and large operands lose more than their traffic explains: their pages are more than address
// translation reaches, it seems, which reaches farther since (Jia et al. 2018).
[[nodiscard]] inline double page_loss(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  if (d.has_matrix_units) return 1;
  const double pitch = static_cast<double>(op.k) * element_bytes(op.format),
               rows = static_cast<double>(op.m) + static_cast<double>(op.n);
  return 1 + c.page_misses * std::max(0.0, std::log2(pitch * std::sqrt(rows)) - 22);
}

// Bytes that a product moves to and from memory. While its operands fit in L2 each is read once; else every wave reads the rows
// and columns of the area that it covers, taken as square.
[[nodiscard]] inline double product_traffic(const tile_device& d, const operator_shape& op, double area, double output) {
  const double e = element_bytes(op.format), m = static_cast<double>(op.m), n = static_cast<double>(op.n),
               k = static_cast<double>(op.k);
  const double operands = (m * k + k * n) * e;
  if (operands <= d.l2_bytes) return op.traffic_bytes;
  const double reads = output / std::sqrt(area) * 2 * k * e;
  return op.traffic_bytes + std::max(0.0, reads - operands * static_cast<double>(op.batch));
}

// Waves that the time of `waves` is worth: tiles of a last, partial wave have their multiprocessor to themselves and hurry.
[[nodiscard]] inline double busy_waves(double waves, double loss) {
  return waves < 1 ? 1 : waves + loss * (std::ceil(waves) - waves);
}

// A product of few rows with operands that are stored in fewer bits than they multiply in, as quantised weights are: kernels
// unpack them once on the lanes, which multiply the rows as well, at half of their rate.
[[nodiscard]] inline std::optional<operator_time> unpacked_time(const tile_device& d, const operator_shape& op,
                                                                const tile_constants& c) {
  constexpr std::int64_t most_rows = 8;
  const double batch = static_cast<double>(op.batch), n = static_cast<double>(op.n), k = static_cast<double>(op.k);
  const double lanes = d.calibration.lane_rate * d.peak_flops[0] / 2;
  if (op.m > most_rows || !(lanes > 0) || op.traffic_bytes >= batch * n * k * element_bytes(op.format)) return {};
  operator_time time{.compute_s = 2 * batch * static_cast<double>(op.m) * n * k / lanes,
                     .memory_s = op.traffic_bytes / sustained_bandwidth(d, c),
                     .tile_m = static_cast<int>(op.m),
                     .tile_n = 1};
  time.seconds = combine(time.compute_s, time.memory_s, c.exposed);
  return time;
}

// How much of `bytes` L2 holds where it holds half of `reach` bytes: nearly all of less, nearly nothing of more.
[[nodiscard]] inline double held_share(double bytes, double reach, int sharpness = 3) {
  return reach > 0 ? 1 / (1 + std::pow(bytes / reach, sharpness)) : 0;
}

// Whether a product in 8 bits is one: devices that only store them multiply in 16.
[[nodiscard]] inline bool quantises(const tile_device& d, const operator_shape& op) {
  return op.quantised && (op.format == number_format::int8 ? d.has_int8 : d.has_fp8);
}

// The kernels that a chip has for a product, and what they cost besides arithmetic and traffic.
struct product_kernels {
  std::span<const tile> tiles;
  double rate = 0, bandwidth = 0;  // FLOP/s of a multiprocessor; bytes per second of what has to come from memory
  double feed = 0, wave_loss = 0, exposed = 0, split_traffic = 0;
  double step_s = 0, fill_s = 0, split_s = 0;  // at least for a step along the reduction; of a wave; of split reductions
  double store_s = 0;                          // during which nothing multiplies
  int most_splits = 16;
  bool persistent = false;  // stores a tile and fetches operands while it multiplies others
};

// Before Hopper multiprocessors multiply nothing while they store a tile, which is felt where L2 does not take the results.
[[nodiscard]] inline product_kernels kernels_of(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const bool matrix_units = at(d.on_matrix_units, op.format), quantised = quantises(d, op);
  product_kernels k{.tiles = quantised ? quantised_tile(d, op.m) : tile_menu(d, matrix_units, op.batched),
                    .rate = sustained_flops(d, op.format, c, op.repeated ? 1 : c.long_power) / d.multiprocessors,
                    .bandwidth = sustained_bandwidth(d, c),
                    .feed = c.lane_feed,
                    .wave_loss = c.wave_loss,
                    .exposed = c.exposed,
                    .split_traffic = c.split_traffic,
                    .most_splits = op.batched || quantised ? 1 : 16};
  if (matrix_units) {
    const double cycle_s = 1 / (d.clock_hz > 0 ? d.clock_hz : 1.5e9);
    k.bandwidth = c.matrix_memory_share * d.calibration.memory_bandwidth * d.memory_bandwidth;
    k.feed = c.matrix_feed;
    k.wave_loss = quantised ? 1 : c.matrix_wave_loss;
    k.exposed = c.matrix_exposed;
    k.split_traffic = c.matrix_split_traffic;
    k.step_s = c.step_cycles * cycle_s * element_bytes(op.format) / 2;
    k.fill_s = c.fill_cycles * cycle_s;
    k.split_s = c.split_cycles * cycle_s;
    const double results =
        static_cast<double>(op.batch) * static_cast<double>(op.m) * static_cast<double>(op.n) * result_bytes(op.format);
    k.persistent = d.generation >= chip_generation::hopper;
    if (!k.persistent) k.store_s = results / k.bandwidth * (quantised ? 1 : 1 - held_share(results, c.store_reach * d.l2_bytes));
  }
  if (op.repeated) k.bandwidth /= 1 - held_share(op.traffic_bytes, c.repeat_reach * d.l2_bytes, 6);
  return k;
}

[[nodiscard]] inline operator_time product_time(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const auto kernels = kernels_of(d, op, c);
  const double batch = static_cast<double>(op.batch), k = static_cast<double>(op.k),
               output = batch * static_cast<double>(op.m) * static_cast<double>(op.n);
  const double pages = page_loss(d, op, c);
  operator_time best{.seconds = infinity};
  for (const auto& t : kernels.tiles) {
    const double size = static_cast<double>(t.m) * t.n;
    const double tiles = batch * static_cast<double>(ceil_div(op.m, t.m)) * static_cast<double>(ceil_div(op.n, t.n));
    const double step_s = std::max(kernels.step_s, 2 * size * feed_loss(kernels.feed, t.m, t.n) / kernels.rate * pages);
    const double bytes = product_traffic(d, op, size * std::min(d.multiprocessors, tiles), output);
    for (int splits = 1; splits <= kernels.most_splits; splits *= 2) {
      if (splits > 1 && tiles * splits > d.multiprocessors) break;
      const double waves = tiles * splits / d.multiprocessors;
      operator_time time{.compute_s = busy_waves(waves, kernels.wave_loss) * step_s * (k / splits) +
                                      kernels.fill_s * (kernels.persistent ? 1 : std::max(1.0, waves)) +
                                      (splits > 1 ? kernels.split_s : 0) + kernels.store_s,
                         .memory_s = (bytes + (splits > 1 ? kernels.split_traffic * splits * 4 * output : 0)) / kernels.bandwidth,
                         .tile_m = t.m,
                         .tile_n = t.n,
                         .splits = splits,
                         .waves = waves};
      time.seconds = combine(time.compute_s, time.memory_s, kernels.exposed);
      if (time.seconds < best.seconds) best = time;
    }
  }
  if (const auto other = unpacked_time(d, op, c); other && other->seconds < best.seconds) best = *other;
  return best;
}

// What flash_time takes of a chip. Before Hopper, and on chips with its instructions but not its matrix units: as products of
// tiles of 128 x 128, which wait for all exponentials.
[[nodiscard]] inline flash_constants flash_of(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const bool matrix_units = at(d.on_matrix_units, op.format);
  flash_constants f{.share = matrix_units ? c.flash_share : 1 / feed_loss(c.lane_feed, 128, 128),
                    .exponential_share = 1,
                    .own_keys = 0,
                    .own_s = 0};
  if (matrix_units && d.generation >= chip_generation::hopper && !d.has_gddr)
    f = hetsched::flash_of(d.flash, op.causal_share > 1);
  const double slower = d.flash == flash_kernels::first ? 2 : 1;
  f.share /= slower;
  f.exponential_share *= slower;
  return f;
}

// Blocks of 128 queries; the exponentials take the special function units, 16 per cycle and multiprocessor, while products wait.
[[nodiscard]] inline operator_time flash_time(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const bool matrix_units = at(d.on_matrix_units, op.format);
  const auto f = flash_of(d, op, c);
  const double rate =
      (matrix_units ? matrix_flops(d, op.format, f.share) : sustained_flops(d, op.format, c) * f.share) / d.multiprocessors;
  const int rows = op.m < 128 ? 64 : 128;
  const double of_products = op.causal_share > 1 ? 2.5 : 1;  // backward has five where forward has two
  const double scores = rows * (static_cast<double>(op.n) * op.causal_share + of_products * f.own_keys);
  operator_time time{.tile_m = rows, .tile_n = 128};
  time.waves = static_cast<double>(op.batch) * static_cast<double>(ceil_div(op.m, rows)) / d.multiprocessors;
  time.compute_s =
      busy_waves(time.waves, matrix_units ? c.attention_wave_loss : c.wave_loss) * scores *
      (4 * static_cast<double>(op.k) / rate + (d.clock_hz > 0 ? f.exponential_share / of_products / (16 * d.clock_hz) : 0));
  time.memory_s = op.traffic_bytes / sustained_bandwidth(d, c);
  time.seconds = combine(time.compute_s, time.memory_s, c.exposed) + f.own_s;
  return time;
}

// By how much the time to move these bytes shrinks where L2 holds a part of them: a factor up to 1.
[[nodiscard]] inline double beside_l2(const tile_device& d, double bytes, const attention_constants& a) {
  return 1 - (1 - a.l2_share) * held_share(bytes, a.l2_reach * d.l2_bytes);
}

// A prompt's attention: blocks of 128 queries, or of 64 where there are few, which see half of their own keys under a causal
// mask; products wait for a part of the exponentials. The longest block, of the last queries, ends last.
[[nodiscard]] inline operator_time prefill_time(const tile_device& d, const operator_shape& op, const tile_constants& c,
                                                const attention_constants& a) {
  const double heads = static_cast<double>(op.batch), keys = static_cast<double>(op.n), width = static_cast<double>(op.k);
  const double e = element_bytes(op.format);
  const int rows = heads * static_cast<double>(ceil_div(op.m, 128)) >= d.multiprocessors ? 128 : 64;
  const double blocks = static_cast<double>(ceil_div(op.m, rows));
  const bool matrix_units = at(d.on_matrix_units, op.format);
  const double rate =
      (matrix_units ? matrix_flops(d, op.format, a.prefill_share) : sustained_flops(d, op.format, c)) / d.multiprocessors;
  const double of_key = rows * (4 * width / rate + (d.clock_hz > 0 ? a.exponential_share / (16 * d.clock_hz) : 0));
  const double seen = std::min(keys, keys * op.causal_share + (op.causal_share < 1 ? rows / 2.0 : 0));
  operator_time time{.tile_m = rows, .tile_n = 128};
  time.waves = heads * blocks / d.multiprocessors;
  const double all = time.waves * of_key * seen, longest = of_key * keys;
  time.compute_s = std::max(all, longest) + a.tail * std::min(all, longest);
  const double moved = (heads + 2 * static_cast<double>(op.key_heads)) * static_cast<double>(op.m) * width * e;
  const double per_byte = beside_l2(d, moved, a) / (d.calibration.memory_bandwidth * d.memory_bandwidth);
  time.memory_s = op.traffic_bytes / a.prefill_bandwidth_share * per_byte;
  time.seconds = combine(time.compute_s, time.memory_s, c.exposed) + a.passes * moved * per_byte + a.prefill_s;
  return time;
}

// A token's attention: heads that share keys are one tile, which reads them once; keys are split where there are fewer tiles than
// multiprocessors. The cache is read at the bandwidth of memory, or of the multiprocessors at work.
[[nodiscard]] inline operator_time decode_time(const tile_device& d, const operator_shape& op, const tile_constants& c,
                                               const attention_constants& a) {
  const double tiles = static_cast<double>(op.key_heads);
  const double bandwidth = a.bandwidth_share * d.calibration.memory_bandwidth * d.memory_bandwidth;
  operator_time time{.tile_m = static_cast<int>(op.m), .tile_n = 128};
  time.memory_s = op.traffic_bytes / bandwidth * beside_l2(d, op.traffic_bytes, a);
  const bool splits = (a.splits_all || op.batch > op.key_heads) && tiles < d.multiprocessors;
  const double most_splits = std::max(1.0, static_cast<double>(op.n) / a.least_keys);
  const double ways = splits ? std::min(most_splits, d.multiprocessors / tiles) : 1;
  time.splits = static_cast<int>(ways);
  time.waves = tiles * ways / d.multiprocessors;
  if (d.clock_hz > 0) {
    const double rate = a.cycle_bytes * d.clock_hz;
    const double of_tile = 2.0 * static_cast<double>(op.n) * static_cast<double>(op.k) * element_bytes(op.format);
    time.compute_s = of_tile / ways * busy_waves(time.waves, c.attention_wave_loss) / rate;
  }
  time.seconds = std::max(time.memory_s, time.compute_s) + a.decode_s + (ways > 1 ? a.split_s : 0);
  return time;
}

[[nodiscard]] inline operator_time cached_time(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const auto a = attention_of(d.generation);
  return op.m == 1 ? decode_time(d, op, c, a) : prefill_time(d, op, c, a);
}

// The share of the traffic of other operators than products that L2 holds: the kernel before left it there; beyond its reach less
// and less.
[[nodiscard]] inline double resident_share(const tile_device& d, double bytes, const tile_constants& c) {
  return d.clock_hz > 0 ? held_share(bytes, c.l2_reach * d.l2_bytes) : 0;
}

// What does not come from L2 passes through it all the same.
[[nodiscard]] inline double vector_memory_s(const tile_device& d, double bytes, const tile_constants& c) {
  const double memory_s = bytes / sustained_bandwidth(d, c);
  if (!(d.clock_hz > 0)) return memory_s;
  const double l2_s =
      std::min(memory_s, bytes / (d.calibration.l2_bandwidth * c.l2_cycle_bytes * d.multiprocessors * d.clock_hz));
  const double resident = resident_share(d, bytes, c);
  return resident * l2_s + (1 - resident) * combine(memory_s, l2_s, c.exposed);
}

// Bytes that an operator without products moves to and from memory. A norm reads its rows twice, a softmax of long rows three
// times; rows in flight beyond what L2 holds come from memory again. Norms with vector loads have most of them, as a row has few
// threads.
[[nodiscard]] inline double vector_traffic(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const bool norm = op.kind == operator_kind::norm;
  const double rereads = norm ? 1 : op.kind == operator_kind::softmax && op.n > 1024 ? 2 : 0;
  const double in_flight =
      (norm && !op.scalar ? 8 : 2) * d.multiprocessors * static_cast<double>(op.n) * element_bytes(op.format);
  const double x = d.l2_bytes > 0 ? in_flight / (c.row_reread * d.l2_bytes) : 1;
  return op.traffic_bytes * (1 + rereads / 2 * x * x / (1 + x * x));
}

// Cycles of a scalar norm, a block for each row, of at most 1024 threads: full waves of as many as a multiprocessor holds, then
// what is left. Threads that are there at once hide part of each other's waiting, as their root; memory makes them wait longer
// than L2.
[[nodiscard]] inline double scalar_norm_cycles(const tile_device& d, const operator_shape& op, double bytes,
                                               const tile_constants& c) {
  const double rows = static_cast<double>(op.m), columns = static_cast<double>(op.n);
  const double block = std::min(columns, 1024.0), held = std::max(1.0, std::floor(d.threads / block));
  const auto cycles = [&](double here) { return here * columns * c.norm_cycles * std::sqrt(1024 / (here * block)); };
  const double full = std::floor(rows / (held * d.multiprocessors)), left = std::ceil(rows / d.multiprocessors - full * held);
  return (full * cycles(held) + (left > 0 ? cycles(left) : 0)) * (1 + c.memory_wait * (1 - resident_share(d, bytes, c)));
}

// Cycles that instructions take of the busiest multiprocessor, whatever the bandwidth.
[[nodiscard]] inline double vector_cycles(const tile_device& d, const operator_shape& op, double bytes, const tile_constants& c) {
  const double rows = static_cast<double>(op.m) / d.multiprocessors, columns = std::max(1.0, rows) * static_cast<double>(op.n);
  switch (op.kind) {
    case operator_kind::gather:
      return rows * c.gather_cycles;
    case operator_kind::rowwise:
      return columns * c.row_cycles * op.traffic_bytes /
             (static_cast<double>(op.m) * static_cast<double>(op.n) * element_bytes(op.format));
    case operator_kind::softmax:
      return columns * c.softmax_cycles;
    case operator_kind::norm:
      return op.scalar ? scalar_norm_cycles(d, op, bytes, c) : columns * c.pass_cycles * element_bytes(op.format) / 4;
    default:
      return 0;
  }
}

// Look-ups, in which no row waits for another, hide the shorter of cycles and traffic entirely; softmax and norms with vector
// loads hide nothing, as what they compute lies between two passes over a row.
[[nodiscard]] inline operator_time vector_time(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const double bytes = vector_traffic(d, op, c);
  const bool passes = op.kind == operator_kind::norm && !op.scalar;
  operator_time time{.memory_s = vector_memory_s(d, bytes, c), .waves = static_cast<double>(op.m) / d.multiprocessors};
  if (d.clock_hz > 0) time.compute_s = vector_cycles(d, op, bytes, c) / d.clock_hz;
  time.seconds = combine(time.compute_s, time.memory_s, op.kind == operator_kind::gather ? 0 : passes ? 1 : c.exposed);
  return time;
}

// Rounding the left operand of a product in 8 bits with one scale: it is read for its largest element, and again.
[[nodiscard]] inline double quantise_s(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  const double rows = static_cast<double>(op.batch) * static_cast<double>(op.m), elements = rows * static_cast<double>(op.k);
  return c.quantise_s + c.quantise_row_s * rows + vector_memory_s(d, 3 * elements, c) * 5 / 3;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE operator_time predict_operator(const tile_device& d, const operator_shape& op, const tile_constants& c) {
  constexpr double most = 1e18;
  if (!(op.batch >= 1 && op.m >= 1 && op.n >= 1 && op.k >= 1 && op.key_heads >= 0 && op.traffic_bytes >= 0 &&
        op.traffic_bytes < most && op.causal_share >= 0 && op.causal_share < most))
    throw input_error("the sizes of an operator must be at least 1, its traffic and causal share finite and not negative");
  operator_time time = op.kind == operator_kind::gemm              ? detail::product_time(d, op, c)
                       : op.key_heads > 0                          ? detail::cached_time(d, op, c)
                       : op.kind == operator_kind::flash_attention ? detail::flash_time(d, op, c)
                                                                   : detail::vector_time(d, op, c);
  if (detail::quantises(d, op)) time.seconds += detail::quantise_s(d, op, c);
  time.seconds += (op.key_heads > 0 ? 0 : c.launch_s) + d.calibration.launch_s;
  if (!d.calibration.residuals.empty()) time.seconds *= residual_factor(d.calibration.residuals, detail::point_of(d, op, time));
  time.seconds /= at(d.speeds, class_of(op.kind));
  return time;
}

}  // namespace hetsched
