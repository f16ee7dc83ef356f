// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/transfer.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Share of its peak, by precision, that a device sustains over whole large layers; in (0, 1].
using efficiencies = std::array<double, precision_count>;

/// What is assumed where nothing is measured: 0.75 of the fp32 peak, 0.5 of tensor-core peaks, as whole transformer layers
/// reach on A100 and V100; less in fp32 on T4 and L4, whose boards throttle (docs/devices.md).
[[nodiscard]] constexpr efficiencies default_efficiencies(std::string_view device_name) {
  const double fp32 = device_name == "T4" ? 0.46 : device_name == "L4" ? 0.42 : 0.75;
  return {fp32, 0.5, 0.5, 0.5};
}

/// Efficiencies of one device, by name, in place of the default ones.
struct device_efficiency {
  std::string device{};
  efficiencies of_peak{};
};

/// How the analytic cost model sees training.
struct analytic_options {
  int microbatch_size = 1;
  hetsched::precision precision = hetsched::precision::fp16;
  recomputation recompute = recomputation::none;
  training_memory memory{};
  std::vector<device_efficiency> efficiency{};
  double layer_overhead_s = 10e-6;  ///< launches and small kernels, per layer and direction
  int max_data = INT_MAX;
  int max_context = 1;              ///< 1: no context parallelism
  int max_tensor = INT_MAX;
};

/// Costs by formula: every layer takes what its arithmetic or its memory traffic takes, whichever is longer, on each device's
/// share, and then waits for its collectives, which follow the ring algorithm and overlap with nothing. Ranks are laid out
/// with tensor innermost and data outermost. A tensor-parallel group lies in one node; a data-parallel device computes
/// microbatch_size / data samples. Backward repeats what `recompute` says, collectives included. From ZeRO stage 2 on
/// gradients are scattered in every backward, at stage 3 weights are also gathered in every forward and backward.
/// A tied embedding's copy at the head costs memory and traffic also where both lie in one stage.
/// An additive_cost_model; a layer costs O(1), an update O(1).
class analytic_cost_model {
 public:
  /// Throws input_error for a cluster, chain or option that makes no sense, and for a device without the precision.
  analytic_cost_model(hetsched::cluster hardware, layer_chain chain, analytic_options options = {})
      : cluster_(std::move(hardware)), chain_(std::move(chain)), options_(std::move(options)) {
    validate(cluster_);
    validate(chain_);
    validate(options_.memory);
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw input_error(what);
    };
    require(options_.microbatch_size >= 1, "microbatch_size must be at least 1");
    require(options_.layer_overhead_s >= 0, "layer_overhead_s must not be negative");
    require(options_.max_data >= 1 && options_.max_context >= 1 && options_.max_tensor >= 1, "largest degrees must be at least 1");
    for (const auto& s : cluster_.subclusters) {
      auto shares = default_efficiencies(s.device.name);
      for (const auto& e : options_.efficiency)
        if (e.device == s.device.name) shares = e.of_peak;
      const double share = shares[static_cast<std::size_t>(options_.precision)];
      require(share > 0 && share <= 1, "efficiency of " + s.device.name + " must be in (0, 1]");
      flops_.push_back(s.device.flops(options_.precision) * share);
      require(flops_.back() > 0, "device " + s.device.name + " has no peak for this precision");
    }
    parameters_before_.push_back(0);
    for (const auto& l : chain_.layers) parameters_before_.push_back(checked_add(parameters_before_.back(), held(l)));
  }

  [[nodiscard]] int layer_count() const { return chain_.size(); }

  /// All degrees whose product is the mesh: tensor divides the devices of a node and the heads, data divides the microbatch.
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

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    const auto& l = chain_.layers[static_cast<std::size_t>(index)];
    const auto& d = where.degrees;
    const auto position = static_cast<std::size_t>(where.mesh.subcluster);
    const std::int64_t samples = options_.microbatch_size / d.data;
    const double batch = static_cast<double>(samples);
    const double share = batch / d.context / d.tensor;
    const double weights = static_cast<double>(held(l)) * chain_.parameter_bytes / d.tensor;
    const auto roofline = [&](double flops, double bytes) {
      const double compute_s = flops / flops_[position];
      const double memory_s = bytes / cluster_.subclusters[position].device.memory_bandwidth;
      return compute_s > memory_s ? compute_s : memory_s;
    };

    const double traffic = static_cast<double>(l.memory_traffic_bytes) * share + weights * l.active_fraction;
    const auto tensor_group = group(where, 1, d.tensor);
    const auto context_group = group(where, d.tensor, d.context);
    const double tensor_s = tensor_group.collective_s(2, static_cast<double>(l.tensor_reduce_bytes) * batch / d.context);
    const double context_s = context_group.collective_s(1, static_cast<double>(l.context_gather_bytes) * batch / d.tensor);

    stage_cost cost;
    cost.forward_s = roofline(l.forward_flops * share, traffic) + options_.layer_overhead_s + tensor_s + context_s;
    // Backward reads and writes for the gradients of both its operands.
    cost.backward_s = roofline(l.backward_flops * share, 2 * traffic);
    if (l.backward_flops > 0) cost.weight_backward_s = cost.backward_s * l.weight_backward_flops / l.backward_flops;
    cost.backward_s += options_.layer_overhead_s + tensor_s + 2 * context_s;
    if (options_.recompute == recomputation::full && l.recomputable) cost.backward_s += cost.forward_s;
    else if (options_.recompute != recomputation::none)
      cost.backward_s += roofline(l.selective_flops * share, 2 * static_cast<double>(l.selective_saved_bytes) * share);

    const auto& zero = options_.memory;
    if (zero.zero >= 2) {
      const auto peers = replica_group(where);
      const double gradients = static_cast<double>(held(l)) * zero.gradient_bytes / d.tensor;
      const double gather_s = zero.zero == 3 ? peers.collective_s(1, static_cast<double>(held(l)) * zero.weight_bytes / d.tensor) : 0;
      cost.forward_s += gather_s;
      cost.backward_s += gather_s + peers.collective_s(1, gradients);
    }
    cost.weight_bytes = state_bytes(held(l), d, zero);
    cost.activation_bytes = activation_bytes(chain_, index, options_.recompute, d, samples);
    return cost;
  }

  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  /// The whole microbatch moves over one link, whatever the degrees on both sides.
  [[nodiscard]] double transfer(int boundary, const placement& from, const placement& to) const {
    const auto bytes = chain_.layers[static_cast<std::size_t>(boundary)].boundary_bytes;
    return stage_transfer_s(cluster_, from.mesh, to.mesh, static_cast<double>(bytes) * options_.microbatch_size);
  }

  [[nodiscard]] static constexpr int transfer_class(const placement&) { return 0; }

  /// Gradient reduction over the replicas, and an optimizer step bound by memory bandwidth.
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

  // Parameters that a layer's device holds, copies of other layers' included.
  [[nodiscard]] static std::int64_t held(const hetsched::layer& l) { return checked_add(l.parameters, l.shared_parameters); }

  // Groups of `ranks` ranks that lie `stride` <= devices per node apart. Those that leave their node share its link to the others.
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
  analytic_options options_;
  std::vector<double> flops_;                    // sustained, by subcluster
  std::vector<std::int64_t> parameters_before_;  // of each layer, and of the end
};

static_assert(additive_cost_model<analytic_cost_model>);

}  // namespace hetsched
