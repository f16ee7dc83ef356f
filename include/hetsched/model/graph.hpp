// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/model/operator.hpp>

namespace hetsched {

/// One operator of a model, for one sample.
struct graph_node {
  std::string name{};
  std::string type{};                  ///< what it is called where it comes from: MatMul, LayerNormalization ...
  operator_shape op{};                 ///< what it launches
  bool launches = true;                ///< false for views, which cost nothing
  std::int64_t parameters = 0;         ///< that it owns
  std::int64_t shared_parameters = 0;  ///< that it reads and another node owns
  bytes_t output_bytes = 0;            ///< of its result, as a reader in another stage would get it
  bytes_t saved_bytes = 0;             ///< kept for its backward; what several nodes keep counts once, at the node that makes it
  std::vector<int> inputs{};           ///< nodes whose results it reads, each before it; without the model's inputs

  friend bool operator==(const graph_node&, const graph_node&) = default;
};

/// A model as its operators in an order in which they can run, for one sample.
struct operator_graph {
  std::vector<graph_node> nodes{};
  int parameter_bytes = 2;  ///< of one parameter and of one element of an activation
  int heads = 0;            ///< attention heads; 0 if unknown

  [[nodiscard]] int size() const { return static_cast<int>(nodes.size()); }
  friend bool operator==(const operator_graph&, const operator_graph&) = default;
};

}  // namespace hetsched
