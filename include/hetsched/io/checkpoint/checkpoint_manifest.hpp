// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

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
  std::size_t rows = 1;   ///< equally long ones, that
  std::size_t apart = 0;  ///< begin so many elements of the whole tensor after each other
  friend bool operator==(const stored_slice&, const stored_slice&) = default;
};

/// A training's state on disk: a folder with parts, a file each, and manifest.json, which says what is where. Tensors are
/// known by layer and name, so any set of ranks can load what any other has written.
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

/// Bytes of an element, from the bits at the end of its name; 0 if there is no such element.
[[nodiscard]] std::size_t element_bytes(std::string_view element);

[[nodiscard]] inline bytes_t element_count(const std::vector<std::size_t>& shape) {
  bytes_t count = 1;
  for (const auto extent : shape) count = checked_mul(count, static_cast<bytes_t>(extent));
  return count;
}

[[nodiscard]] inline std::string tensor_text(int layer, const std::string& name) {
  return "layer " + std::to_string(layer) + ", " + name;
}
[[nodiscard]] inline std::string shape_text(const std::string& element, const std::vector<std::size_t>& shape) {
  std::string text = element + '[';
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? " x " : "") + std::to_string(shape[i]);
  return text + ']';
}

/// Rows of a tensor's elements, each `length` long.
struct element_rows {
  std::size_t first = 0, length = 0, rows = 1, apart = 0;
  [[nodiscard]] std::size_t begin(std::size_t row) const { return first + row * apart; }
  [[nodiscard]] std::size_t end() const { return rows == 0 ? first : begin(rows - 1) + length; }
};
[[nodiscard]] inline element_rows rows_of(const stored_slice& s) {
  return {s.first, s.rows == 0 ? 0 : s.count / s.rows, s.rows, s.apart};
}
/// Whether they are rows of a tensor of so many elements: no row reaches into the next multiple of their distance.
[[nodiscard]] inline bool lie_in(const element_rows& r, std::size_t whole) {
  if (r.rows == 0 || r.first > whole || r.length > whole - r.first) return false;
  if (r.rows == 1) return true;
  return r.apart > 0 && r.first % r.apart + r.length <= r.apart && r.rows - 1 <= (whole - r.first - r.length) / r.apart;
}

/// Calls visit(first element, last element, row of a, row of b) for all that two lists of rows share, until it returns false.
/// Complexity: O(rows).
template <class Visit>
void for_each_shared(const element_rows& a, const element_rows& b, Visit&& visit) {
  if (a.end() <= b.first || b.end() <= a.first) return;
  for (std::size_t i = 0, k = 0; i < a.rows && k < b.rows;) {
    const auto first = std::max(a.begin(i), b.begin(k));
    const auto last = std::min(a.begin(i) + a.length, b.begin(k) + b.length);
    if (first < last && !visit(first, last, i, k)) return;
    a.begin(i) + a.length < b.begin(k) + b.length ? ++i : ++k;
  }
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

/// Documents are of version 2 if slices have rows.
inline constexpr int checkpoint_version = 2;
[[nodiscard]] inline int version_for(const std::vector<stored_slice>& slices) {
  return std::any_of(slices.begin(), slices.end(), [](const auto& s) { return s.rows > 1; }) ? 2 : 1;
}

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
