// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/models/hexiscale.hpp>
#include <hetsched/cost/questions/concepts.hpp>

namespace hetsched {

/// Who adds up a layer's gradients, which the paper leaves open.
enum class hexiscale_reduction {
  chunks,  ///< every part of the finest tensor-parallel cut among one device of each pipeline (sec. 3.2)
  all,     ///< all devices that hold some of the layer, each with all of its gradients: Eq. 4 to the letter
};

/// What HexiScale's cost model takes from a model: equal blocks, without embedding and head.
struct hexiscale_model {
  int layers = 0;
  int hidden = 0;
  int sequence = 0;
};

struct hexiscale_cost_options {
  int microbatch_size = 1;
  int element_bytes = 2;
  hetsched::precision precision = hetsched::precision::fp16;  ///< whose peak is c_d
  hexiscale_reduction reduction = hexiscale_reduction::chunks;
  int max_tensor = 8;
};

/// HexiScale's cost model. Layers are equal blocks; a stage is one tensor-parallel group on a node. Everything is recomputed:
/// forward takes a quarter of the arithmetic and a third of the communication. A device keeps a layer's input for every
/// microbatch in flight (Eq. 11 counts one); state is 8 bytes a parameter at two bytes an element. The optimizer step is free.
/// An additive_cost_model.
/// Source: HexiScale App. A.
class hexiscale_cost_model {
 public:
  /// Throws: input_error unless sizes are at least 1 and the cluster is valid.
  hexiscale_cost_model(hetsched::cluster hardware, const hexiscale_model& model, const hexiscale_cost_options& options = {})
      : cluster_(std::move(hardware)), layers_(model.layers), options_(options) {
    validate(cluster_);
    if (model.layers < 1 || model.hidden < 1 || model.sequence < 1 || options.microbatch_size < 1 || options.element_bytes < 1 ||
        options.max_tensor < 1)
      throw input_error("HexiScale's costs need layers, hidden, sequence, microbatch_size and element_bytes of at least 1");
    shape_ = {.samples = static_cast<double>(options.microbatch_size),
              .sequence = static_cast<double>(model.sequence),
              .hidden = static_cast<double>(model.hidden),
              .element_bytes = static_cast<double>(options.element_bytes)};
    for (std::size_t k = 0; k < cluster_.subclusters.size(); ++k) {
      const auto& s = cluster_.subclusters[k];
      auto& sizes = layer_.emplace_back();
      std::vector<device_id> group;
      for (int n = 1; n <= s.devices_per_node; ++n) {
        group.push_back({static_cast<int>(k), 0, n - 1});
        const double compute = hexiscale_cost::compute_layer_s(shape_, s.device.flops(options.precision) * s.device.speed, n);
        const double tensor = hexiscale_cost::tensor_layer_s(shape_, cluster_, group);
        sizes.push_back({.forward_s = compute / 4 + tensor / 3,
                         .backward_s = compute * 3 / 4 + tensor * 2 / 3,
                         .weight_bytes = detail::whole_bytes(4 * shape_.parameter_bytes() / n),
                         .activation_bytes = detail::whole_bytes(shape_.activation_bytes())});
      }
    }
  }

  [[nodiscard]] int layer_count() const { return layers_; }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.nodes != 1 || mesh.devices_per_node > options_.max_tensor) return {};
    return {{.mesh = mesh, .degrees = {1, 1, mesh.devices_per_node}, .recompute = recomputation::full}};
  }

  [[nodiscard]] stage_cost layer(int, const placement& where) const {
    return at(at(layer_, where.mesh.subcluster), where.mesh.device_count() - 1);
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  /// Eq. 5, half of it either way: the tensor goes to a leader, which hands every other device its share.
  [[nodiscard]] transfer_cost transfer(int, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    const bool on_one_node = from.mesh.subcluster == to.mesh.subcluster &&
                             (near == proximity::same_node || subcluster_of(cluster_, from.mesh).nodes == 1);
    const std::vector<device_id> sender{{from.mesh.subcluster, on_one_node ? 0 : 1, -1}};
    const double seconds = hexiscale_cost::detail::unchecked::boundary_s(shape_, cluster_, sender, devices(to)) / 2;
    return {seconds, seconds, detail::whole_bytes(shape_.activation_bytes())};
  }
  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement& where) { return where.mesh.device_count(); }
  [[nodiscard]] static constexpr std::int64_t boundary_class(int) { return 0; }

  /// Eq. 4 for each layer; between stages of one subcluster over inter_node, as the nodes differ.
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const;

 private:
  [[nodiscard]] static std::vector<device_id> devices(const placement& where) {
    std::vector<device_id> all;
    for (int n = 0; n < where.mesh.device_count(); ++n) all.push_back({where.mesh.subcluster, 0, n});
    return all;
  }
  [[nodiscard]] std::optional<link> between_nodes(int a, int b) const {
    if (a != b) return cluster_.between(a, b);
    const auto& s = at(cluster_.subclusters, a);
    return s.nodes > 1 ? s.inter_node : s.intra_node;
  }

  hetsched::cluster cluster_;
  int layers_;
  hexiscale_cost_options options_;
  hexiscale_cost::layer_shape shape_{};
  std::vector<std::vector<stage_cost>> layer_;  // by subcluster and devices, from 1 on
};

static_assert(additive_cost_model<hexiscale_cost_model>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/hexiscale_costs.ipp>
#endif
