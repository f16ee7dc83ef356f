// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/models/analytic_test.cpp.

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/network/detail/ring.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/stage_part.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched::detail {

// What one device computes of a layer, in seconds, per microbatch and without communication.
struct layer_compute {
  double forward_s = 0;
  double backward_s = 0;         // without recomputation
  double weight_backward_s = 0;  // of backward_s
  double selective_s = 0;        // what selective recomputation runs again
  double overhead_s = 0;         // of each direction
  double byte_s = 0;             // that an elementwise kernel takes to read or write a byte
  double hidden_s = 0;           // of backward_s, what its kernels leave of the time that the host launches them
  double host_s = 0;             // to launch these and one more for each tensor of parameters; 0: no time to speak of
};

struct parallel_options {
  int microbatch_size = 1;
  int batch = 0;  // samples of an iteration; 0: not known
  std::vector<recomputation> recompute{recomputation::none};
  std::vector<int> zero{0};
  training_memory memory{};
  activation_style activations{};
  memory_overheads overheads{};
  double gather_overlap = 0, reduction_overlap = 0, update_overlap = 0, update_bandwidth = 1;
  int max_data = INT_MAX, max_context = 1, max_tensor = INT_MAX, max_expert = 1;
};

// All of an additive cost model but the computing: placements, collectives (rings that overlap with nothing), recomputation,
// ZeRO, memory, transfers and the update, as analytic_cost_model documents them.
class parallel_costs {
 public:
  parallel_costs(hetsched::cluster hardware, layer_chain chain, const parallel_options& options);

  [[nodiscard]] const hetsched::cluster& hardware() const { return cluster_; }
  [[nodiscard]] int layer_count() const { return chain_.size(); }
  [[nodiscard]] const hetsched::layer& at(int index) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    return hetsched::at(chain_.layers, index);
  }
  [[nodiscard]] int parameter_bytes() const { return chain_.parameter_bytes; }
  // Samples that one device computes.
  [[nodiscard]] std::int64_t samples(const degrees& d) const { return options_.microbatch_size / d.data; }

  // Parameters that a layer's device holds, copies of other layers' included.
  [[nodiscard]] static std::int64_t held(const hetsched::layer& l) { return checked_add(l.parameters, l.shared_parameters); }

  // The same in a stage of these layers: without copies of what another of them owns.
  [[nodiscard]] std::int64_t held_in(int index, layer_range layers) const {
    const auto& l = at(index);
    return l.owner >= layers.first && l.owner < layers.last ? l.parameters : held(l);
  }
  [[nodiscard]] std::int64_t held_in(layer_range layers) const {
    auto sum = hetsched::at(parameters_before_, layers.last) - hetsched::at(parameters_before_, layers.first);
    for (const int i : sharing_)
      if (i >= layers.first && i < layers.last) sum -= held(at(i)) - held_in(i, layers);
    return sum;
  }

  // Of so many parameters, those that a device has: others and experts'.
  struct device_share {
    double dense = 0, experts = 0;
  };
  [[nodiscard]] static device_share on_device(std::int64_t parameters, std::int64_t experts, const degrees& d) {
    if (d.expert == 1) return {static_cast<double>(parameters) / d.tensor, 0};
    return {static_cast<double>(parameters - experts) / d.tensor, static_cast<double>(experts) / d.tensor / d.expert};
  }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const;

  [[nodiscard]] stage_cost layer(int index, const placement& where, const layer_compute& compute) const;

  // Heads and inner width, which tensor ranks share: slices of equal size.
  [[nodiscard]] int slices() const { return chain_.heads; }

  // Layers on one replica whose tensor ranks have unlike numbers of slices: each as long as the slowest rank computes, then sums
  // over all of them by the slowest link. compute(layer, part): of a rank. Memory grows by as much with each slice.
  template <class Compute>
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts, int slices,
                                        Compute compute) const {
    parts_cost all;
    all.parts.resize(parts.size());
    int ranks = 0;
    for (const auto& p : parts) ranks += p.where.mesh.device_count();
    for (const auto& p : parts) {
      auto where = p.where;
      where.degrees.tensor = ranks;
      all.overheads.push_back(overheads(where));
    }
    const auto mode = parts.front().where.recompute;
    const std::int64_t batch = options_.microbatch_size;
    for (int i = layers.first; i < layers.last; ++i) {
      const auto& l = at(i);
      layer_compute slowest;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        const layer_compute own = compute(i, parts[k]);
        slowest.forward_s = std::max(slowest.forward_s, own.forward_s);
        if (own.backward_s > slowest.backward_s) {
          slowest.backward_s = own.backward_s;
          slowest.weight_backward_s = own.weight_backward_s;
          slowest.hidden_s = own.hidden_s;
          slowest.host_s = own.host_s;
        }
        slowest.selective_s = std::max(slowest.selective_s, own.selective_s);
        slowest.overhead_s = std::max(slowest.overhead_s, own.overhead_s);
        slowest.byte_s = std::max(slowest.byte_s, own.byte_s * parts[k].slices / slices);  // of all of the layer's gradients
        all.parts[k] += sliced_memory(i, held_in(i, layers), mode, batch, parts[k].slices, slices);
      }
      const double tensor_s =
          among_parts_s(parts, ranks, static_cast<double>(l.tensor_reduce_bytes) * static_cast<double>(batch));
      const auto whole = static_cast<double>(held_in(i, layers));
      all.slowest += seconds(l, mode, slowest, tensor_s, tensor_s, {.whole = whole, .own = whole, .one_by_one = true});
    }
    for (const auto& p : all.parts) {
      all.slowest.weight_bytes = std::max(all.slowest.weight_bytes, p.weight_bytes);
      all.slowest.activation_bytes = std::max(all.slowest.activation_bytes, p.activation_bytes);
      all.slowest.temporary_bytes = std::max(all.slowest.temporary_bytes, p.temporary_bytes);
    }
    return all;
  }

  // Four tensors may wait at once: an activation and a gradient on either side of the stage.
  [[nodiscard]] memory_overheads overheads(const placement& where) const {
    auto all = options_.overheads;
    if (all == memory_overheads{}) return all;
    const auto& d = where.degrees;
    all.buffer_bytes = checked_add(all.buffer_bytes,
                                   ceil_div(checked_mul(4, largest_boundary_, samples(d)), std::int64_t{d.context} * d.tensor));
    return all;
  }

  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    const auto bytes = checked_mul(held_in(layers), options_.memory.reduced_bytes);
    return {gradient_reduction_s(cluster_, links_, holders, static_cast<double>(bytes)), bytes};
  }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to, proximity near) const {
    const auto bytes = checked_mul(at(boundary).boundary_bytes, options_.microbatch_size);
    return boundary_cost(cluster_, links_, from, to, near, bytes);
  }

  // Of a model whose stages cost stage(layers, where).
  template <class Stage>
  [[nodiscard]] double update(layer_range layers, const placement& where, Stage stage) const {
    return update_behind(layers, where, options_.update_overlap > 0 ? stage(layers, where).backward_s : 0);
  }

  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const;

 private:
  // Behind so much backward of the last microbatch.
  [[nodiscard]] double update_behind(layer_range layers, const placement& where, double backward_s) const;

  // Those whose gradients a device adds to those of earlier microbatches: what ZeRO leaves of them, and all that it computes.
  struct summed_parameters {
    double whole = 0, own = 0;
    bool one_by_one = false;  // own ones with a kernel for each tensor, as whole ones are
  };

  // Seconds of a layer. there_s, back_s: of its collectives in forward and backward.
  [[nodiscard]] stage_cost seconds(const hetsched::layer& l, recomputation mode, const layer_compute& compute, double there_s,
                                   double back_s, const summed_parameters& summed) const;

  // What a tensor rank holds of a layer: that of one slice, and as much more for every other as makes the whole.
  [[nodiscard]] stage_cost sliced_memory(int index, std::int64_t parameters, recomputation mode, std::int64_t samples, int own,
                                         int slices) const;

  // A sum over all ranks of several parts, where the slowest link of any two counts; infinity where two have none.
  [[nodiscard]] double among_parts_s(std::span<const stage_part> parts, int ranks, double bytes) const;

  // Those worth trying: without replicas all are alike, and with them stage 1 holds less than 0 and takes no longer, unless
  // reductions are hidden or shorter than the gathers of weights that take the place of their second half.
  [[nodiscard]] std::vector<int> zero_stages(const degrees& d) const {
    const auto& all = options_.zero;
    if (replicas(d) == 1) return {0};
    const auto& m = options_.memory;
    const bool no_slower = options_.update_overlap == 0 && m.weight_bytes <= m.reduced_bytes;
    if (no_slower && all.size() > 1 && all[0] == 0 && all[1] == 1) return {all.begin() + 1, all.end()};
    return all;
  }

  [[nodiscard]] ring group(const placement& where, int stride, int ranks) const {
    return ring_on(cluster_, where.mesh, stride, ranks);
  }

  // Passes over so many bytes of each parameter that a device has, in the rings of those that have the same ones.
  [[nodiscard]] double among_replicas_s(const placement& where, int passes, double dense, double experts, int bytes_each) const {
    const auto& d = where.degrees;
    const int copies = static_cast<int>(replicas(d));
    const double dense_s = group(where, d.tensor, copies).collective_s(passes, dense * bytes_each);
    if (experts == 0) return dense_s;
    const int apart = std::min(where.mesh.devices_per_node, d.tensor * d.expert);
    return dense_s + group(where, apart, copies / d.expert).collective_s(passes, experts * bytes_each);
  }

  hetsched::cluster cluster_;
  link_index links_;
  layer_chain chain_;
  parallel_options options_;
  std::vector<std::int64_t> parameters_before_;  // of each layer, and of the end
  std::vector<std::int64_t> experts_before_;     // likewise, of these those of experts
  std::vector<int> sharing_;                     // layers with copies of another's
  bytes_t largest_boundary_ = 0;                 // per sample
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/detail/parallel_costs.ipp>
#endif
