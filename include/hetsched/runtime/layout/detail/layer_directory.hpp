// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/layer/tensor_name.hpp>
#include <hetsched/runtime/layout/detail/digest.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// The layers of a rank, stage by stage of stages_of_rank.
[[nodiscard]] std::vector<int> layers_of_rank(const training_layout& t, int rank);

/// Appends what a layer calls its tensors of a kind, "parameter" or "buffer", of which it has `count`: the names of each, or
/// that it has none for them.
/// Throws: input_error unless each has a name that no other one has.
void tell_names(std::vector<double>& told, int layer, const char* kind, std::size_t count, const std::vector<tensor_name>& names);

/// Appends what others have to know of a layer: the shapes of its parameters here, how they are cut and, if asked for, digests of
/// their values; of its buffers the shapes; and names. `seen`: (Tensor&, body) calls body(const Tensor&) with the tensor in host
/// memory. Throws: input_error for cuts or names that do not fit the parameters.
template <class Tensor, class Layer, class Seen>
void tell_layer(std::vector<double>& told, int number, Layer& layer, bool with_values, Seen&& seen) {
  using traits = tensor_traits<Tensor>;
  const std::size_t count_at = told.size();
  const auto cuts = parameter_cuts(layer);
  told.push_back(0);
  for (Tensor& p : layer.parameters()) {
    const auto n = static_cast<std::size_t>(told[count_at]);
    const auto refuse = [&](const std::string& what) {
      throw input_error(to_text(parameter_id{number, static_cast<int>(n)}) + " " + what);
    };
    told[count_at] += 1;
    const auto shape = shape_of(p);
    told.push_back(static_cast<double>(shape.size()));
    for (const auto extent : shape) told.push_back(static_cast<double>(extent));
    if (n >= cuts.size()) refuse("is not in parameter_cuts()");
    auto cut = cuts[n];
    if (cut.dimension < -1 || cut.dimension >= static_cast<int>(shape.size()))
      refuse("has no dimension " + std::to_string(cut.dimension) + " to cut");
    if (cut.over_experts && (shape.empty() || cut.dimension == 0)) refuse("cannot be cut over experts");
    if (cut.dimension < 0) cut.pieces.clear();
    if (cut.dimension >= 0 && cut.pieces.empty()) cut.pieces = {at(shape, cut.dimension)};
    if (cut.dimension >= 0 && std::accumulate(cut.pieces.begin(), cut.pieces.end(), std::size_t{0}) != at(shape, cut.dimension))
      refuse("is not as large as its pieces");
    told.push_back(cut.dimension);
    told.push_back((cut.partial_over_tensor ? 1 : 0) + (cut.over_experts ? 2 : 0));
    told.push_back(static_cast<double>(cut.pieces.size()));
    for (const auto extent : cut.pieces) told.push_back(static_cast<double>(extent));
    double values = 0;
    if (with_values)
      seen(p, [&](const Tensor& t) { values = digest().add(std::as_bytes(std::span(traits::data(t), elements(t)))).number(); });
    told.push_back(values);
  }
  const auto kept = buffers<Tensor>(layer);
  told.push_back(static_cast<double>(kept.size()));
  for (const Tensor& b : kept) {
    const auto shape = shape_of(b);
    told.push_back(static_cast<double>(shape.size()));
    for (const auto extent : shape) told.push_back(static_cast<double>(extent));
  }
  if (cuts.size() != static_cast<std::size_t>(told[count_at]))
    throw input_error("layer " + std::to_string(number) + " has " + std::to_string(static_cast<int>(told[count_at])) +
                      " parameters, but parameter_cuts() are " + std::to_string(cuts.size()));
  tell_names(told, number, "parameter", cuts.size(), parameter_names(layer));
  tell_names(told, number, "buffer", kept.size(), buffer_names(layer));
}

/// What a rank has told of a parameter.
struct told_parameter {
  tensor_shape shape;
  int dimension = -1;
  bool partial_over_tensor = false, over_experts = false;
  std::vector<std::int64_t> pieces;
  double values = 0;
};

/// What a layer calls its tensors, in their order, each by one or more names that are sorted; nothing where it has no names.
struct layer_names {
  std::vector<std::vector<std::string>> parameters, buffers;
  friend bool operator==(const layer_names&, const layer_names&) = default;
};

/// The parameters of a model: whole shapes by layer, and how groups cut them; and its buffers' shapes.
struct parameter_directory {
  std::vector<std::vector<tensor_shape>> shapes;
  group_cuts cuts;
  std::vector<std::vector<tensor_shape>> buffers;  ///< by layer
  std::vector<layer_names> names;                  ///< by layer; empty where no layer has names
};

/// Puts together what all ranks have told. `told`: of every rank, of layers_of_rank, in this order, behind `skip` other numbers.
/// Throws: input_error where holders of a layer, or tied parameters, are not alike, and for names that checkpoints cannot have.
/// Values are compared where the same slice is held.
/// Complexity: O(parameters * ranks^2).
[[nodiscard]] parameter_directory learn_directory(const training_layout& t, const std::vector<std::vector<double>>& told,
                                                  std::size_t skip, const std::vector<parameter_tie>& ties);

/// Gives the slices of a training's state their layers' own names.
void name_slices(std::vector<state_slice>& slices, const std::vector<layer_names>& names);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/detail/layer_directory.ipp>
#endif
