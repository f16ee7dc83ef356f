// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/runtime/trainer/training_layout.hpp>

namespace hetsched {

/// A tensor of a layer: its number among the layer's parameters().
struct parameter_id {
  int layer = 0;
  int number = 0;
  friend constexpr bool operator==(const parameter_id&, const parameter_id&) = default;
  friend constexpr auto operator<=>(const parameter_id&, const parameter_id&) = default;
};

[[nodiscard]] inline std::string to_text(const parameter_id& p) {
  return "parameter " + std::to_string(p.number) + " of layer " + std::to_string(p.layer);
}

/// Two parameters that are one, such as an embedding and the head that uses its table again.
using parameter_tie = std::pair<parameter_id, parameter_id>;

/// What one pipeline's microbatches add to a parameter's gradient where a layer uses it.
struct gradient_term {
  int pipeline = 0;
  parameter_id what;
  std::vector<int> ranks;  ///< that have it, alike: one per direction
  friend bool operator==(const gradient_term&, const gradient_term&) = default;
};

/// A parameter of the model, tied ones counted once, and everything that holds it.
struct model_parameter {
  parameter_id id;  ///< of those tied, the first
  tensor_shape shape;
  std::vector<gradient_term> terms;  ///< in the order in which they are added: by pipeline, then by layer and number
  std::vector<int> ranks;            ///< that hold it, ascending
  int owner = 0;                     ///< the one of them that speaks for it
  friend bool operator==(const model_parameter&, const model_parameter&) = default;
};

/// The parameters of a model in the order of their ids; `shapes[l][n]`: that of parameter n of layer l. Owners are chosen so
/// that their elements are spread evenly over the ranks.
/// Requires: the layout is valid.
/// Throws: input_error for ties of parameters that do not exist or differ in shape.
/// Complexity: O(parameters * (stages + ranks) + ties * parameters).
[[nodiscard]] inline std::vector<model_parameter> model_parameters(const training_layout& layout,
                                                                   const std::vector<std::vector<tensor_shape>>& shapes,
                                                                   const std::vector<parameter_tie>& ties) {
  std::vector<std::size_t> first_of(shapes.size() + 1, 0);
  for (std::size_t l = 0; l < shapes.size(); ++l) first_of[l + 1] = first_of[l] + shapes[l].size();
  std::vector<std::size_t> same(first_of.back());  // the first of those tied
  std::iota(same.begin(), same.end(), std::size_t{0});
  const auto index = [&](const parameter_id& p) {
    if (p.layer < 0 || static_cast<std::size_t>(p.layer) >= shapes.size() || p.number < 0 ||
        static_cast<std::size_t>(p.number) >= shapes[static_cast<std::size_t>(p.layer)].size())
      throw input_error("there is no " + to_text(p) + " to tie");
    return first_of[static_cast<std::size_t>(p.layer)] + static_cast<std::size_t>(p.number);
  };
  for (const auto& [a, b] : ties) {
    const auto x = same[index(a)], y = same[index(b)];
    if (shapes[static_cast<std::size_t>(a.layer)][static_cast<std::size_t>(a.number)] !=
        shapes[static_cast<std::size_t>(b.layer)][static_cast<std::size_t>(b.number)])
      throw input_error(to_text(a) + " and " + to_text(b) + " are tied, but differ in shape");
    std::replace(same.begin(), same.end(), std::max(x, y), std::min(x, y));
  }

  std::vector<std::vector<parameter_id>> members(same.size());
  for (std::size_t l = 0; l < shapes.size(); ++l)
    for (std::size_t n = 0; n < shapes[l].size(); ++n)
      members[same[first_of[l] + n]].push_back({static_cast<int>(l), static_cast<int>(n)});

  std::vector<model_parameter> all;
  std::vector<std::size_t> load(static_cast<std::size_t>(layout.ranks()), 0);
  for (const auto& own : members) {
    if (own.empty()) continue;
    auto& one = all.emplace_back();
    one.id = own.front();
    one.shape = shapes[static_cast<std::size_t>(one.id.layer)][static_cast<std::size_t>(one.id.number)];
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p)
      for (const auto& id : own) {
        const auto& line = layout.pipelines[p];
        const auto stage = static_cast<int>(
            std::find_if(line.stages.begin(), line.stages.end(), [&](const layer_range& r) { return id.layer < r.last; }) -
            line.stages.begin());
        gradient_term term{.pipeline = static_cast<int>(p), .what = id, .ranks = {}};
        for (int c = 0; c < line.order.directions; ++c) {
          const int rank = line.first_rank + line.order.rank(c, stage);
          if (std::find(term.ranks.begin(), term.ranks.end(), rank) == term.ranks.end()) term.ranks.push_back(rank);
          one.ranks.push_back(rank);
        }
        one.terms.push_back(std::move(term));
      }
    std::sort(one.ranks.begin(), one.ranks.end());
    one.ranks.erase(std::unique(one.ranks.begin(), one.ranks.end()), one.ranks.end());
    one.owner = *std::min_element(one.ranks.begin(), one.ranks.end(), [&](int a, int b) {
      return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
    });
    std::size_t elements = 1;
    for (const auto extent : one.shape) elements *= extent;
    load[static_cast<std::size_t>(one.owner)] += elements;
  }
  return all;
}

}  // namespace hetsched
