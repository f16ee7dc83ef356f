// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/placement.hpp>
#include <hetsched/cost/transfer.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched::detail {

// What one device computes of a layer, in seconds, per microbatch and without communication.
struct layer_compute {
  double forward_s = 0;
  double backward_s = 0;         // without recomputation
  double weight_backward_s = 0;  // of backward_s
  double selective_s = 0;        // what selective recomputation runs again
  double overhead_s = 0;         // of each direction
};

struct parallel_options {
  int microbatch_size = 1;
  recomputation recompute = recomputation::none;
  training_memory memory{};
  int max_data = INT_MAX, max_context = 1, max_tensor = INT_MAX;
};

// All of an additive cost model but the computing: placements, collectives (rings that overlap with nothing), recomputation,
// ZeRO, memory, transfers and the update, as analytic_cost_model documents them.
class parallel_costs {
 public:
  parallel_costs(hetsched::cluster hardware, layer_chain chain, const parallel_options& options)
      : cluster_(std::move(hardware)), chain_(std::move(chain)), options_(options) {
    validate(cluster_);
    validate(chain_);
    validate(options_.memory);
    const auto require = [](bool holds, const char* what) {
      if (!holds) throw input_error(what);
    };
    require(options_.microbatch_size >= 1, "microbatch_size must be at least 1");
    require(options_.max_data >= 1 && options_.max_context >= 1 && options_.max_tensor >= 1,
            "largest degrees must be at least 1");
    parameters_before_.push_back(0);
    for (const auto& l : chain_.layers) parameters_before_.push_back(checked_add(parameters_before_.back(), held(l)));
  }

  [[nodiscard]] const hetsched::cluster& hardware() const { return cluster_; }
  [[nodiscard]] int layer_count() const { return chain_.size(); }
  [[nodiscard]] const hetsched::layer& at(int index) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    return chain_.layers[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] int parameter_bytes() const { return chain_.parameter_bytes; }
  // Samples that one device computes.
  [[nodiscard]] std::int64_t samples(const degrees& d) const { return options_.microbatch_size / d.data; }

  // Parameters that a layer's device holds, copies of other layers' included.
  [[nodiscard]] static std::int64_t held(const hetsched::layer& l) { return checked_add(l.parameters, l.shared_parameters); }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> found;
    const int devices = mesh.device_count();
    for (int t = 1; t <= mesh.devices_per_node && t <= options_.max_tensor; ++t) {
      if (mesh.devices_per_node % t != 0 || (chain_.heads > 0 && chain_.heads % t != 0)) continue;
      for (int c = 1; c <= devices / t && c <= options_.max_context; ++c) {
        if (devices / t % c != 0) continue;
        const int d = devices / t / c;
        if (d <= options_.max_data && options_.microbatch_size % d == 0) found.push_back({mesh, {d, c, t}});
      }
    }
    return found;
  }

  [[nodiscard]] stage_cost layer(int index, const placement& where, const layer_compute& compute) const {
    const auto& l = at(index);
    const auto& d = where.degrees;
    const double batch = static_cast<double>(samples(d));
    const auto tensor_group = group(where, 1, d.tensor);
    const auto context_group = group(where, d.tensor, d.context);
    const double tensor_s = tensor_group.collective_s(2, static_cast<double>(l.tensor_reduce_bytes) * batch / d.context);
    const double context_s = context_group.collective_s(1, static_cast<double>(l.context_gather_bytes) * batch / d.tensor);

    stage_cost cost;
    cost.forward_s = compute.forward_s + compute.overhead_s + tensor_s + context_s;
    cost.weight_backward_s = compute.weight_backward_s;
    cost.backward_s = compute.backward_s + (compute.overhead_s + tensor_s + 2 * context_s);
    if (options_.recompute == recomputation::full && l.recomputable)
      cost.backward_s += cost.forward_s;
    else if (options_.recompute != recomputation::none)
      cost.backward_s += compute.selective_s;

    const auto& zero = options_.memory;
    if (zero.zero >= 2) {
      const auto peers = replica_group(where);
      const double gradients = static_cast<double>(held(l)) * zero.gradient_bytes / d.tensor;
      const double gather_s =
          zero.zero == 3 ? peers.collective_s(1, static_cast<double>(held(l)) * zero.weight_bytes / d.tensor) : 0;
      cost.forward_s += gather_s;
      cost.backward_s += gather_s + peers.collective_s(1, gradients);
    }
    cost.weight_bytes = state_bytes(held(l), d, zero);
    cost.activation_bytes = activation_bytes(chain_, index, options_.recompute, d, samples(d));
    return cost;
  }

  [[nodiscard]] double transfer(int boundary, const placement& from, const placement& to) const {
    const auto bytes = at(boundary).boundary_bytes;
    return stage_transfer_s(cluster_, from.mesh, to.mesh, static_cast<double>(bytes) * options_.microbatch_size);
  }

  [[nodiscard]] double update(layer_range layers, const placement& where) const {
    const auto parameters = static_cast<double>(parameters_before_[static_cast<std::size_t>(layers.last)] -
                                                parameters_before_[static_cast<std::size_t>(layers.first)]) /
                            where.degrees.tensor;
    const auto& m = options_.memory;
    const auto peers = replica_group(where);
    double seconds = 0;
    if (m.zero == 0) seconds += peers.collective_s(2, parameters * m.gradient_bytes);
    if (m.zero == 1) seconds += peers.collective_s(1, parameters * m.gradient_bytes);
    if (m.zero == 1 || m.zero == 2) seconds += peers.collective_s(1, parameters * m.weight_bytes);
    const double stepped = m.zero >= 1 ? parameters / peers.ranks : parameters;
    const double touched = stepped * (2.0 * m.optimizer_bytes + m.gradient_bytes + m.weight_bytes);
    return seconds + touched / subcluster_of(cluster_, where.mesh).device.memory_bandwidth;
  }

 private:
  // Ranks in a ring, and what each link of the ring has for it.
  struct ring {
    int ranks;
    link hop;

    // An all-gather or reduce-scatter takes one pass over the whole tensor of `bytes`, an all-reduce two.
    [[nodiscard]] double collective_s(int passes, double bytes) const {
      return ranks == 1 || bytes == 0 ? 0 : passes * (ranks - 1) * hop.transfer_s(bytes / ranks);
    }
  };

  // Groups of `ranks` ranks that lie `stride` <= devices per node apart. Those that leave their node share its link to the
  // others.
  [[nodiscard]] ring group(const placement& where, int stride, int ranks) const {
    const auto& s = subcluster_of(cluster_, where.mesh);
    const int slots = where.mesh.devices_per_node;
    if (where.mesh.nodes == 1 || slots % (stride * ranks) == 0) return {ranks, s.intra_node};
    return {ranks, {s.inter_node.latency_s, s.inter_node.bandwidth / stride}};
  }

  [[nodiscard]] ring replica_group(const placement& where) const {
    return group(where, where.degrees.tensor, static_cast<int>(replicas(where.degrees)));
  }

  hetsched::cluster cluster_;
  layer_chain chain_;
  parallel_options options_;
  std::vector<std::int64_t> parameters_before_;  // of each layer, and of the end
};

}  // namespace hetsched::detail
