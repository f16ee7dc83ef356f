// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/models/detail/parallel_costs.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// Share of its peak, by the precision in which it computes, that a device sustains over whole large layers; in (0, 1].
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

namespace detail {

inline constexpr double analytic_layer_overhead_s = 10e-6;

/// FLOP/s that a device sustains over whole layers.
/// Throws: input_error for an efficiency outside (0, 1], and for a device without the precision.
[[nodiscard]] double sustained_flops(const device& d, precision asked, std::span<const device_efficiency> efficiency);

/// Seconds of a layer on one device at `flops` FLOP/s: of its arithmetic or of its memory traffic, whichever takes longer.
[[nodiscard]] layer_compute analytic_compute(const parallel_costs& costs, double flops, double overhead_s, int index,
                                             const placement& where);

/// The same of `own` of `slices` equal slices, each as one of as many equal ranks would compute it.
[[nodiscard]] layer_compute analytic_slices(const parallel_costs& costs, double flops, double overhead_s, int index,
                                            placement where, int own, int slices);

}  // namespace detail

/// How the analytic cost model sees training.
struct analytic_options {
  int microbatch_size = 1;
  int batch = 0;  ///< samples of an iteration, as of training_cost_options
  hetsched::precision precision = hetsched::precision::fp16;
  std::vector<recomputation> recompute{recomputation::none};  ///< what placements may do
  std::vector<int> zero{0};                                   ///< ZeRO stages that placements may have
  training_memory memory{};
  activation_style activations{};
  double gather_overlap = 0, reduction_overlap = 0, update_overlap = 0, update_bandwidth = 1;  ///< as of a training_stack
  memory_overheads overheads = fitted_overheads;
  std::vector<device_efficiency> efficiency{};
  double layer_overhead_s = detail::analytic_layer_overhead_s;  ///< launches and small kernels, per layer and direction
  int max_data = INT_MAX;
  int max_context = 1;  ///< 1: no context parallelism
  int max_tensor = INT_MAX;
  int max_expert = 1;  ///< 1: no expert parallelism
};

/// Costs by formula: every layer takes what its arithmetic or its memory traffic takes, whichever is longer, on each device's
/// share, and then waits for its collectives, which follow the ring algorithm and overlap with nothing but what the options'
/// overlaps say. Ranks are laid out with tensor innermost and data outermost. A tensor-parallel group lies in one node; a
/// data-parallel device computes microbatch_size / data samples. Backward repeats what `recompute` says, collectives included.
/// From ZeRO stage 2 on gradients are scattered in every backward, at stage 3 weights are also gathered in every forward and
/// backward. Shared parameters, as of a tied embedding, are held, added up and updated once by a stage that has both layers. An
/// additive_cost_model; a layer costs O(1), an update O(1), or O(its layers) with an update_overlap.
class analytic_cost_model {
 public:
  /// Throws input_error for a cluster, chain or option that makes no sense, and for a device without the precision.
  analytic_cost_model(hetsched::cluster hardware, layer_chain chain, const analytic_options& options = {})
      : costs_(std::move(hardware), std::move(chain),
               {.microbatch_size = options.microbatch_size,
                .batch = options.batch,
                .recompute = options.recompute,
                .zero = options.zero,
                .memory = options.memory,
                .activations = options.activations,
                .overheads = options.overheads,
                .gather_overlap = options.gather_overlap,
                .reduction_overlap = options.reduction_overlap,
                .update_overlap = options.update_overlap,
                .update_bandwidth = options.update_bandwidth,
                .max_data = options.max_data,
                .max_context = options.max_context,
                .max_tensor = options.max_tensor,
                .max_expert = options.max_expert}),
        layer_overhead_s_(options.layer_overhead_s) {
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw input_error(what);
    };
    require(options.layer_overhead_s >= 0, "layer_overhead_s must not be negative");
    for (const auto& s : costs_.hardware().subclusters)
      flops_.push_back(detail::sustained_flops(s.device, options.precision, options.efficiency));
  }

  [[nodiscard]] int layer_count() const { return costs_.layer_count(); }

  /// All degrees whose product is the mesh: tensor divides the devices of a node and the heads, data the microbatch,
  /// and expert data and the experts.
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return costs_.placements(mesh); }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    return costs_.layer(index, where, compute(index, where));
  }

  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  /// Heads.
  [[nodiscard]] int slices() const { return costs_.slices(); }

  /// A rank computes as many slices as it has, each as one of as many equal ranks would. Layers wait for sums over the slowest
  /// link of any two parts.
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    return costs_.sliced_stage(layers, parts, slices(), [&](int index, const stage_part& p) {
      return detail::analytic_slices(costs_, at(flops_, p.where.mesh.subcluster), layer_overhead_s_, index, p.where, p.slices,
                                     slices());
    });
  }

  /// As boundary_cost.
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs_.transfer(boundary, from, to, near);
  }

  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement& where) { return boundary_side_class(where); }
  /// Boundaries of equally many bytes.
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs_.at(boundary).boundary_bytes; }

  /// Gradient reduction over the replicas, and an optimizer step bound by memory bandwidth.
  [[nodiscard]] double update(layer_range layers, const placement& where) const {
    return costs_.update(layers, where, [this](layer_range l, const placement& w) { return stage(l, w); });
  }

  /// A ring over the slowest link between the stages, of whole layers.
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return costs_.gradient_sync(layers, holders);
  }

  /// The options' overheads, and buffers for transfers unless these are none.
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return costs_.overheads(where); }

  /// A copy for each layer with shared parameters.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const { return costs_.copies(where); }

 private:
  [[nodiscard]] detail::layer_compute compute(int index, const placement& where) const {
    return detail::analytic_compute(costs_, at(flops_, where.mesh.subcluster), layer_overhead_s_, index, where);
  }

  detail::parallel_costs costs_;
  double layer_overhead_s_;
  std::vector<double> flops_;  // sustained, by subcluster
};

static_assert(additive_cost_model<analytic_cost_model>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/analytic.ipp>
#endif
