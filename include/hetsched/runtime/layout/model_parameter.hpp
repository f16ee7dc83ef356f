// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// How the tensor and the expert axis of a group of ranks share a parameter.
struct group_cut {
  int dimension = -1;                ///< cut over the axis; -1: all have it whole
  bool partial_over_tensor = false;  ///< gradients of a whole one are summed over the axis
  /// Where the ranks' parts of each piece of the dimension begin, and where its last ends. Pieces lie one behind the other in the
  /// whole dimension, and their parts so on each rank.
  std::vector<std::vector<std::int64_t>> points{};
  bool over_experts = false;  ///< dimension 0 is cut evenly over the expert axis
  friend bool operator==(const group_cut&, const group_cut&) = default;
};

/// By parameter, pipeline and rank of its schedule; what is not named is whole.
using group_cuts = std::map<std::tuple<parameter_id, int, int>, group_cut>;

/// A stage's ranks that use a parameter in one direction.
struct parameter_holder {
  int pipeline = 0;
  parameter_id what;
  int direction = 0;
  int first_rank = 0;
  degrees group{};
  group_cut cut{};
  [[nodiscard]] bool has(int rank) const;
  friend bool operator==(const parameter_holder&, const parameter_holder&) = default;
};

/// A slice of a whole parameter, and the slice that the rank's tensor would be if all of it went on as this piece of it does: so
/// offset_in(array, part) is where the piece lies in the tensor.
struct held_piece {
  slice array, part;
  friend bool operator==(const held_piece&, const held_piece&) = default;
};

namespace detail {
[[nodiscard]] slice whole_slice(const tensor_shape& shape);
}  // namespace detail

/// What a rank of the holder has of a parameter of this whole shape.
[[nodiscard]] std::vector<held_piece> held_pieces(const parameter_holder& h, const tensor_shape& shape, int rank);

/// A parameter of the model, tied ones counted once, and everything that holds it.
struct model_parameter {
  parameter_id id;  ///< of those tied, the first
  tensor_shape shape;
  std::vector<parameter_holder> holders;  ///< by pipeline, then by layer and number, then by direction
  std::vector<gradient_chunk> chunks;     ///< together the parameter. Terms' holders are the above, devices are ranks
  std::vector<int> owners;                ///< per chunk the rank that speaks for it
  bool sharded = false;                   ///< sums of gradients stay with those that add them up, who update their parts
  /// Its values stay with them, too, and its stage gathers them for each use of its layer: at ZeRO stage 3, if no layer is tied
  /// to it. Then it is sharded.
  bool gathered = false;
  friend bool operator==(const model_parameter&, const model_parameter&) = default;
};

namespace detail {

/// The chunks of a parameter: of each box that no piece of a holder begins or ends in, those of its holders' layouts.
[[nodiscard]] std::vector<gradient_chunk> chunks_of(const model_parameter& m);

/// Where a layer's parameter is held: by pipeline and direction.
void add_holders(std::vector<parameter_holder>& holders, const training_layout& t, int pipeline, const parameter_id& id,
                 const group_cuts& cuts);

}  // namespace detail

/// The parameters of a model in the order of their ids; `shapes[l][n]`: the whole one of parameter n of layer l. Owners are
/// chosen so that their elements are spread evenly over the ranks. Requires: the layout is valid; cuts fit shapes and groups.
/// Throws: input_error for ties of parameters that do not exist or differ in shape, and at ZeRO stage 3 for a parameter that
/// another direction or pipeline has, too.
/// Complexity: O(parameters * (stages + ranks * chunks) + ties * parameters).
[[nodiscard]] std::vector<model_parameter> model_parameters(const training_layout& layout,
                                                            const std::vector<std::vector<tensor_shape>>& shapes,
                                                            const std::vector<parameter_tie>& ties, const group_cuts& cuts = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/model_parameter.ipp>
#endif
