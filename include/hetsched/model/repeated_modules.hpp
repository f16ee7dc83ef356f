// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/core/units.hpp>

namespace hetsched {

/// A sub-sequence of `length` operators, and where it stands: at least twice, without overlap, in ascending order.
struct repeated_module {
  int length = 0;
  std::vector<int> starts{};

  friend bool operator==(const repeated_module&, const repeated_module&) = default;
};

/// A model's operators as the search for repeats sees them.
struct operator_sequence {
  std::vector<int> tokens{};         ///< equal numbers for equal operators
  std::vector<char> intensive{};     ///< whether each is compute-intensive
  std::vector<bytes_t> cut_bytes{};  ///< crossing a cut before each operator, and behind the last one

  [[nodiscard]] int size() const { return static_cast<int>(tokens.size()); }
};

/// The repeated modules of a sequence, in the order in which they are found. While one stands there twice, the most frequent
/// sub-sequence with at least `least` intensive operators becomes a module at all its occurrences, and the search goes on in
/// what lies between. Occurrences do not overlap and are chosen from left to right. Among equally frequent sub-sequences, the
/// one around the leftmost intensive operators is taken, and made as long as its frequency allows. Among equally long ones it
/// is the one whose ends cross the fewest bytes, then the rightmost.
/// Throws: input_error for least < 1.
/// Complexity: about O(n log^2 n) time and O(n) memory for n operators.
/// Determinism: the same sequence gives the same modules.
/// Source: HARP sec. 5.1.
[[nodiscard]] std::vector<repeated_module> find_repeated_modules(const operator_sequence& sequence, int least);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/repeated_modules.ipp>
#endif
