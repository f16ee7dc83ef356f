// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>

namespace hetsched::detail {

/// Where a piece of a bucket comes from, and where it lies in its part.
struct part_piece {
  std::size_t parameter = 0, chunk = 0;  ///< of the model, of the parameter
  std::int64_t first = 0, last = 0;      ///< elements of the chunk
  std::int64_t offset = 0;               ///< in the part
};

/// What is added where: terms of this rank, added up beforehand, or what a message brings.
struct contribution {
  std::vector<std::size_t> terms;  ///< numbers among the chunk's
  int message = -1;
};

/// What travels: a term to where its pipeline's are added up, this sum to the owner, or the whole sum back.
enum class exchange_step : std::uint8_t { term, share, sum, spread };

struct planned_message {
  exchange_step step = exchange_step::term;
  int from = 0, to = 0;
  std::size_t part = 0;
  std::size_t pipeline = 0, slot = 0;  ///< of the contribution that it brings
  std::vector<std::size_t> terms;      ///< that it takes along, if it is sent as a term
  int wave = 0;                        ///< the same at both ends, and no less than those before it
};

/// What a rank does for a part of a bucket.
struct planned_part {
  std::vector<part_piece> pieces;
  std::int64_t elements = 0;
  bool owned = false;                          ///< this rank has the sum first
  bool sharded = false;                        ///< the sum stays there
  bool stays = false;                          ///< and so do the values: model_parameter::gathered
  std::int64_t kept_first = 0, kept_last = 0;  ///< if it is owned and sharded: elements whose sums stay here
  std::vector<int> joint =
      {};  ///< ranks that sum it by a collective, ascending, each adding what it has in `adds`; empty: none do. If it is sharded,
           ///< `elements` are as many for each of them, the last ones of which may be nothing
  std::vector<std::vector<contribution>>
      adds;                 ///< by pipeline: added up in each, then the pipelines'; none: it only gets the sum
  int share = -1;           ///< message that takes what was added up to the owner, if it is not owned
  int sum = -1;             ///< message that brings the sum, if it is not owned
  std::vector<int> spread;  ///< messages that take it on
};

/// One rank's share of an exchange. Messages are in an order that is the same on all ranks.
struct exchange_plan {
  std::vector<planned_part> parts;
  std::vector<planned_message> messages;
  std::size_t late_from = 0;  ///< messages from here on take the values of sharded parameters to their holders
};

struct exchange_cut {
  std::int64_t most_elements = 1 << 20;   ///< of a bucket
  std::int64_t least_elements = 1 << 12;  ///< of a part
  std::vector<double> room{};             ///< per rank how much it is to own of sums that stay with owners; empty: equally much
  std::vector<int> waves{};               ///< layers with which a new wave begins: all of a later wave goes before an earlier one
  std::int64_t joint_elements = 0;        ///< most of a bucket that is summed by a collective; 0: none is
  /// Whether ranks have collectives; the same on all ranks. Not called without joint_elements.
  std::function<bool(const std::vector<int>&)> joins{};
};

/// Elements of a piece's chunk whose sums stay with the rank of this part; none: first is not below last.
[[nodiscard]] interval kept_of(const planned_part& part, const part_piece& piece);

/// Layers with which new waves begin: where some rank has several stages, the first of each stage; at ZeRO stage 3 every layer,
/// so that all ranks have a share of each.
[[nodiscard]] std::vector<int> exchange_waves(const training_layout& t);

/// Chunks that several terms are summed of, parameter and chunk, in waves that follow each other: later layers first, as their
/// backwards end first; in a wave those whose sums stay with owners apart (1), and those whose values do, too (2).
using chunk_waves = std::map<std::pair<std::ptrdiff_t, int>, std::vector<std::pair<std::size_t, std::size_t>>>;

/// `starts`: layers with which new waves begin, ascending.
[[nodiscard]] chunk_waves chunks_by_wave(std::span<const model_parameter> parameters, const std::vector<int>& starts);

/// Contributions to the sum of one pipeline: terms that begin it and are all on one device are added up there.
[[nodiscard]] std::vector<std::pair<int, std::vector<std::size_t>>> contributions_of(const gradient_chunk& c, int pipeline);

/// Plans a part of a bucket for a rank that holds it; appends its messages.
[[nodiscard]] planned_part plan_part(const gradient_chunk& c, const bucket_part& part, bool both, std::size_t number, int me,
                                     std::vector<planned_message>& messages);

/// What a rank does to sum the gradients of parameters that have several terms. Sums are made by collectives where there are
/// some, in the order of the parts, which is that of all ranks; those that stay with owners if these are to own equally much:
/// each of a bucket then one part, in the order of the ranks. Else two devices that hold a chunk
/// send each other their terms and both add, unless sums stay with owners. Messages that take new values to holders come last.
/// Complexity: O(chunks * terms + buckets * devices^2).
[[nodiscard]] exchange_plan plan_exchange(std::span<const model_parameter> parameters, int ranks, int me,
                                          const exchange_cut& cut);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/detail/exchange_plan.ipp>
#endif
