// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/models/forward_costs_test.cpp.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Costs of inference where a request is one forward, without caches, such as of an encoder or an imported graph: times are those
/// of the forwards of another model's microbatches. A stage holds its parameters, and while it computes a layer that layer's
/// input and output. Stages lie on single devices. An additive_cost_model.
/// Source: HAP5 sec. IV-C.
template <additive_cost_model Costs>
class forward_cost_model {
 public:
  /// `costs`: of `chain`, with microbatches of `batch` requests, and placements without recomputation or ZeRO among others.
  /// Throws: input_error unless both have the same layers, and a batch at least one request.
  forward_cost_model(Costs costs, layer_chain chain, int batch)
      : costs_(std::move(costs)), chain_(std::move(chain)), batch_(batch) {
    validate(chain_);
    if (cost_of::layer_count(costs_) != chain_.size()) throw input_error("the costs are of another model");
    if (batch < 1) throw input_error("a batch needs at least one request");
  }

  [[nodiscard]] int layer_count() const { return chain_.size(); }

  /// One device.
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.device_count() != 1) return {};
    return {{.mesh = mesh}};
  }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    const auto i = as_size(index);
    const auto& l = chain_.layers[i];
    const bytes_t input = i > 0 ? chain_.layers[i - 1].boundary_bytes : 0;
    return {.forward_s = cost_of::layer(costs_, index, where).forward_s,
            .weight_bytes = checked_mul(checked_add(l.parameters, l.shared_parameters), std::int64_t{chain_.parameter_bytes}),
            .temporary_bytes = checked_mul(checked_add(input, l.boundary_bytes), std::int64_t{batch_})};
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    auto t = cost_of::transfer(costs_, boundary, from, to, near);
    t.backward_s = 0;
    t.backward_occupied_s = {};
    return t;
  }
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const { return cost_of::transfer_class(costs_, where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return cost_of::boundary_class(costs_, boundary); }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return cost_of::overheads(costs_, where); }
  /// Of parameters: there are no gradients.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement&) const { return parameters_shared_in(chain_); }

 private:
  Costs costs_;
  layer_chain chain_;
  int batch_;
};

}  // namespace hetsched
