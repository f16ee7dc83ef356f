// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

/// A slice that lies in a checkpoint, one row behind the other.
struct stored_slice {
  int layer = 0;
  std::string name;
  std::string element;
  std::vector<std::size_t> shape;    ///< of the whole tensor
  std::size_t first = 0, count = 0;  ///< elements
  int part = 0;
  bytes_t offset = 0;  ///< in the part
  std::uint64_t checksum = 0;
  std::size_t rows = 1;       ///< equally long ones, that
  std::size_t apart = 0;      ///< begin so many elements of the whole tensor after each other
  std::string own_name = {};  ///< what its layer calls the parameter or buffer, if it does
  friend bool operator==(const stored_slice&, const stored_slice&) = default;
};

/// A training's state on disk: a folder with parts, a file each, and manifest.json, which says what is where. Tensors are
/// known by layer and name, so any set of ranks can load what any other has written; and by what their layers call them, if they
/// do, whatever their numbers.
struct checkpoint {
  std::string path;
  std::int64_t step = 0;                    ///< steps done
  std::map<std::string, std::string> info;  ///< the writer's own notes
  std::vector<bytes_t> parts;               ///< their sizes
  std::vector<stored_slice> slices;         ///< in the order of the parts and the offsets; every tensor is there exactly once
};

namespace detail {

inline constexpr std::int64_t max_checkpoint_step = 1'000'000'000'000'000;
inline constexpr int max_checkpoint_parts = 1'000'000;

[[nodiscard]] inline element_rows rows_of(const stored_slice& s) {
  return {s.first, s.rows == 0 ? 0 : s.count / s.rows, s.rows, s.apart};
}

/// Why the slices do not hold every tensor exactly once; empty if they do.
/// Complexity: O(n log n) for n slices; of tensors with slices of several rows O(n^2), if the rows are equally far apart.
[[nodiscard]] std::string coverage_fault(const std::vector<stored_slice>& slices);

[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

[[nodiscard]] nlohmann::ordered_json write_slice(const stored_slice& s);

/// Documents are of version 2 if slices have rows, and of 3 if they have names of their layers.
inline constexpr int checkpoint_version = 3;
[[nodiscard]] int version_for(const std::vector<stored_slice>& slices);

/// How a tensor is known by what its layer calls it: "adamw.first_moment.attn.weight" in place of "adamw.first_moment.3"; by its
/// name if the layer does not.
[[nodiscard]] std::string name_by_layer(const std::string& name, const std::string& own_name);

/// The same for messages, "layer 0, parameter.3 (attn.weight)".
[[nodiscard]] std::string tensor_text(int layer, const std::string& name, const std::string& own_name);

[[nodiscard]] stored_slice read_slice(const json_value& value, int version);

/// The text of a document with its checksum, of all that stands before it, as the last member.
[[nodiscard]] std::string with_checksum(const nlohmann::ordered_json& document);

void verify_checksum(std::string_view text, const json_value& checksum);

}  // namespace detail

/// Reads a manifest.json from its text; `path`: of the checkpoint, for messages.
/// Throws: file_error.
/// Complexity: O(n log n) for n slices.
[[nodiscard]] checkpoint parse_checkpoint(std::string_view text, const std::string& path);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/checkpoint/checkpoint_manifest.ipp>
#endif
