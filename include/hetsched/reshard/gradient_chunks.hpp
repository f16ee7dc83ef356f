// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>

namespace hetsched {

/// Devices that use a tensor together and hold it as a layout says: each slice's gradient is the sum of what its holders have
/// along some axes. Along the others gradients are alike, and that of the first counts.
struct gradient_holder {
  int pipeline = 0;
  layout held;
  int first_device = 0;        ///< those of the mesh follow each other from it
  std::vector<char> summed{};  ///< per axis of the mesh: whether its devices have terms of a sum
  friend bool operator==(const gradient_holder&, const gradient_holder&) = default;
};

/// What one device adds to a chunk.
struct gradient_term {
  int pipeline = 0;
  int holder = 0;
  int device = 0;
  friend constexpr bool operator==(const gradient_term&, const gradient_term&) = default;
  friend constexpr auto operator<=>(const gradient_term&, const gradient_term&) = default;
};

/// Where a sum is wanted.
struct chunk_device {
  int pipeline = 0;
  int device = 0;
  friend constexpr bool operator==(const chunk_device&, const chunk_device&) = default;
  friend constexpr auto operator<=>(const chunk_device&, const chunk_device&) = default;
};

/// A slice of a tensor that no holder cuts.
struct gradient_chunk {
  slice part;
  std::vector<gradient_term> terms;   ///< those of a pipeline are added up in this order, then the sums of the pipelines
  std::vector<chunk_device> devices;  ///< that hold it, each once, ascending
  friend bool operator==(const gradient_chunk&, const gradient_chunk&) = default;
};

/// Cuts a tensor at the union of its holders' cut points, and tells for each chunk whose gradients are added and who holds it.
/// Holders that follow each other in the list, and in a holder devices in their order, are the order of a pipeline's terms: with
/// a mesh of data, context and tensor axes by data rank, then context rank, then tensor rank. Chunks ascend, the last dimension
/// fastest; empty ones are left out.
/// Requires: no device is in two pipelines.
/// Throws: input_error unless layouts are valid and of the same extents, holders ascend by pipeline, and their devices have
/// numbers of at least 0.
/// Complexity: O(chunks * devices * dimensions).
/// Source: HexiScale sec. 3.2, for any cuts.
/// Example:
///   const layout halves{.mesh = {1, 1, 2}, .dimensions = {{8, {tensor_axis}, {}}}};
///   const layout thirds{.mesh = {1, 1, 3}, .dimensions = {{8, {tensor_axis}, {0, 2, 5, 8}}}};
///   const std::vector<gradient_holder> holders{{0, halves, 0, {1, 1, 0}}, {1, thirds, 2, {1, 1, 0}}};
///   const auto chunks = gradient_chunks(holders);  // [0, 2) [2, 4) [4, 5) [5, 8)
[[nodiscard]] std::vector<gradient_chunk> gradient_chunks(std::span<const gradient_holder> holders);

/// Elements [first, last) of a chunk, counted with the last dimension fastest.
struct bucket_piece {
  std::size_t chunk = 0;
  std::int64_t first = 0, last = 0;
  friend constexpr bool operator==(const bucket_piece&, const bucket_piece&) = default;
};

/// Pieces of chunks, of one tensor or several, that the same devices add and hold: they travel together.
struct gradient_bucket {
  std::vector<bucket_piece> pieces;
  std::int64_t elements = 0;
  friend bool operator==(const gradient_bucket&, const gradient_bucket&) = default;
};

/// Joins chunks with the same devices and the same devices' terms, in their order, into buckets of at most so many elements;
/// larger chunks are cut. `chunks`: pointers or references to gradient_chunk.
/// Throws: input_error unless no chunk is null and most_elements is at least 1.
/// Complexity: O(chunks * log chunks * terms + buckets).
[[nodiscard]] std::vector<gradient_bucket> gradient_buckets(std::span<const gradient_chunk* const> chunks,
                                                            std::int64_t most_elements);

/// Elements [first, last) of a bucket, and on which devices they are added up.
struct bucket_part {
  std::int64_t first = 0, last = 0;
  int owner = 0;                ///< adds up the sums of the pipelines
  std::vector<int> collectors;  ///< per pipeline of the bucket, ascending: adds up its terms. The owner does its own pipeline's
  friend bool operator==(const bucket_part&, const bucket_part&) = default;
};

/// Cuts a bucket into a part per device that holds it, so that all add equally much, or into fewer parts of at least so many
/// elements. Terms go to their pipeline's collector, its sum to the owner, and the whole sum back the same way: between two
/// pipelines every element travels once per direction, however many devices they have. A pipeline of which one device has all
/// terms collects there. `load`: per device elements owned so far; is added to, and decides about owners where there are fewer
/// parts than devices. `room`: per device how much it is to own beside others, counting its load; empty: equally much of each
/// bucket.
/// Throws: input_error unless the chunk has devices, of which load, and room if it is given, have values, elements and loads are
/// at least 0 and can be added up, and rooms are finite, at least 0 and not all 0.
/// Complexity: O(parts * (devices + terms)).
[[nodiscard]] std::vector<bucket_part> bucket_parts(const gradient_chunk& chunk, std::int64_t elements,
                                                    std::int64_t least_elements, std::span<std::int64_t> load,
                                                    std::span<const double> room = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/gradient_chunks.ipp>
#endif
