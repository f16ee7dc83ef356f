// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/graph_layers_test.cpp.

#include <cstdint>
#include <map>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/model/graph.hpp>

namespace hetsched {

namespace detail {

// Numbers keys in the order in which they come.
class numbering {
 public:
  template <class Key>
  int operator()(const Key& key) {
    return known_.try_emplace({key.begin(), key.end()}, static_cast<int>(known_.size())).first->second;
  }

 private:
  std::map<std::vector<std::int64_t>, int> known_;
};

}  // namespace detail

/// A number per operator, equal for equal operators: those of the same type, launch, sizes, sizes of what they read and keep,
/// and place in an attention core. Names do not count. Nor does how far back an operator reads: a mask that all blocks read
/// would tell them apart.
/// Complexity: O(n log n) for n operators.
[[nodiscard]] std::vector<int> operator_tokens(const operator_graph& graph);

/// The bytes that cross a cut before each operator, and behind the last: results that are made before the cut and read after
/// it. A result counts once, however many of its views are read, and no more of it than is read. The model's inputs and
/// parameters do not count: every device has them.
/// Throws: input_error for bytes beyond 64 bits.
/// Complexity: O(n log n) for n operators.
[[nodiscard]] std::vector<bytes_t> cut_bytes(const operator_graph& graph);

/// What selective recomputation runs again: two products of activations with no weights between them (scores, and the
/// weighted sum), and the operators between the two.
/// Returns: per operator 2: its result is dropped and made again; 1: its result is kept; 0: not part of a core.
/// Complexity: O(nodes + edges).
/// Source: Korthikanti et al. 2023, sec. 5.
[[nodiscard]] std::vector<char> attention_cores(const operator_graph& graph);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/graph_analysis.ipp>
#endif
