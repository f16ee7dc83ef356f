// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/executor/rank_program.hpp>
#include <hetsched/runtime/layer/parameter.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/runtime/trainer/agreement.hpp>
#include <hetsched/runtime/trainer/training_layout.hpp>

namespace hetsched::detail {

/// The layers of a rank, stage by stage of stages_of_rank.
[[nodiscard]] inline std::vector<int> layers_of_rank(const training_layout& t, int rank) {
  const auto& line = t.pipelines[static_cast<std::size_t>(t.pipeline_of(rank))];
  std::vector<int> layers;
  for (const auto& copy : stages_of_rank(line.order, rank - line.first_rank)) {
    const auto range = line.stages[static_cast<std::size_t>(copy.stage)];
    for (int l = range.first; l < range.last; ++l) layers.push_back(l);
  }
  return layers;
}

/// Appends what others have to know of a layer: the shapes of its parameters and, if asked for, digests of their values.
template <class Tensor, class Layer>
void tell_layer(std::vector<double>& told, Layer& layer, bool with_values) {
  using traits = tensor_traits<Tensor>;
  const std::size_t count_at = told.size();
  told.push_back(0);
  for (Tensor& p : layer.parameters()) {
    told[count_at] += 1;
    const auto shape = shape_of(p);
    told.push_back(static_cast<double>(shape.size()));
    for (const auto extent : shape) told.push_back(static_cast<double>(extent));
    double values = 0;
    if constexpr (traits::space != memory_space::device)
      if (with_values) values = digest().add(std::as_bytes(std::span(traits::data(p), elements(p)))).number();
    told.push_back(values);
  }
}

/// The shapes of all parameters, by layer. `told`: what every rank has told of layers_of_rank, in this order, behind `skip`
/// other numbers.
/// Throws: input_error where holders of a layer, or tied parameters, are not alike.
[[nodiscard]] inline std::vector<std::vector<tensor_shape>> parameter_shapes(const training_layout& t,
                                                                             const std::vector<std::vector<double>>& told,
                                                                             std::size_t skip,
                                                                             const std::vector<parameter_tie>& ties) {
  struct layer_facts {
    int rank = -1;
    std::vector<tensor_shape> shapes;
    std::vector<double> values;
  };
  std::vector<layer_facts> known(static_cast<std::size_t>(t.layers));
  for (std::size_t r = 0; r < told.size(); ++r) {
    auto next = told[r].begin() + static_cast<std::ptrdiff_t>(skip);
    for (const int l : layers_of_rank(t, static_cast<int>(r))) {
      layer_facts facts{.rank = static_cast<int>(r), .shapes = {}, .values = {}};
      for (double left = *next++; left > 0; --left) {
        auto& shape = facts.shapes.emplace_back();
        for (double extents = *next++; extents > 0; --extents) shape.push_back(static_cast<std::size_t>(*next++));
        facts.values.push_back(*next++);
      }
      auto& first = known[static_cast<std::size_t>(l)];
      if (first.rank < 0) {
        first = std::move(facts);
        continue;
      }
      const auto where = "layer " + std::to_string(l) + " is not made alike on ranks " + std::to_string(first.rank) + " and " +
                         std::to_string(r);
      if (facts.shapes != first.shapes) throw input_error(where + ": its parameters differ in number or shape");
      for (std::size_t n = 0; n < facts.values.size(); ++n)
        if (facts.values[n] != first.values[n])
          throw input_error(where + ": parameter " + std::to_string(n) + " begins with other values");
    }
  }
  std::vector<std::vector<tensor_shape>> shapes;
  for (const auto& facts : known) shapes.push_back(facts.shapes);
  for (const auto& [a, b] : ties) {
    const auto value = [&](const parameter_id& p) {
      const auto l = static_cast<std::size_t>(p.layer), n = static_cast<std::size_t>(p.number);
      if (p.layer < 0 || l >= known.size() || p.number < 0 || n >= known[l].values.size())
        throw input_error("there is no " + to_text(p) + " to tie");
      return known[l].values[n];
    };
    if (value(a) != value(b)) throw input_error(to_text(a) + " and " + to_text(b) + " are tied, but begin with other values");
  }
  return shapes;
}

}  // namespace hetsched::detail
