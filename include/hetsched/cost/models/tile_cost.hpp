// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/detail/parallel_costs.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/model/transformer_operators.hpp>

namespace hetsched {

/// Seconds of one operator on one device.
template <class T>
concept operator_timer = requires(const T& timer, const tile_device& device, const operator_shape& op) {
  { timer(device, op) } -> std::convertible_to<double>;
};

/// predict_operator as an operator_timer.
struct tile_timer {
  tile_constants constants{};

  [[nodiscard]] double operator()(const tile_device& device, const operator_shape& op) const {
    return predict_operator(device, op, constants).seconds;
  }
};

/// How the tile cost model sees training.
struct tile_cost_options {
  int microbatch_size = 1;
  int batch = 0;                                              ///< samples of an iteration, as of training_cost_options
  hetsched::precision precision = hetsched::precision::fp16;  ///< picks the efficiency; products compute in their own formats
  std::vector<recomputation> recompute{recomputation::none};  ///< what placements may do
  std::vector<int> zero{0};                                   ///< ZeRO stages that placements may have
  training_memory memory{};
  activation_style activations{};
  double gather_overlap = 0, reduction_overlap = 0, update_overlap = 0, update_bandwidth = 1;  ///< as of a training_stack
  memory_overheads overheads = fitted_overheads;
  std::vector<device_efficiency> efficiency{};  ///< divides the time of operators; 1 for devices that are not named
  flash_kernels flash = flash_kernels::newest;  ///< as of a training_stack
  double host_launch_s = 0;                     ///< the host needs this for each kernel; a layer is bound by it or by the device
  /// Price devices that are not known_by_operators as analytic_cost_model does, with its own efficiencies; else they are an
  /// error.
  bool analytic_elsewhere = false;
  int max_data = INT_MAX;
  int max_context = 1;
  int max_tensor = INT_MAX;
  int max_expert = 1;
};

/// Whether the tile model knows enough of a device: its multiprocessors, and its peak in fp32, in which norms and sums compute.
[[nodiscard]] inline bool known_by_operators(const device& d) { return d.multiprocessors > 0 && d.flops(precision::fp32) > 0; }

/// Costs from the operators of a model, each timed by itself: a layer computes as long as its operators in a row, or as long as
/// the host needs to launch them if that is longer. All else is as analytic_cost_model has it. The constructor times every kind
/// of layer on every share that the placements of the cluster's submeshes have, O(subclusters * shares * kinds * operators);
/// afterwards a layer costs O(shares), on other submeshes O(operators). An additive_cost_model. Reads only, so threads may share
/// it if they may share the model and the timer.
template <operator_model Model, operator_timer Timer = tile_timer>
class tile_cost_model {
 public:
  /// Throws input_error for a cluster, chain or option that makes no sense, and, naming the device, for one without
  /// multiprocessors or without a peak for an operator's format.
  explicit tile_cost_model(hetsched::cluster hardware, Model model, const tile_cost_options& options = {}, Timer timer = {})
      : costs_(std::move(hardware), model.chain(),
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
        model_(std::move(model)),
        timer_(std::move(timer)),
        host_launch_s_(options.host_launch_s) {
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw input_error(what);
    };
    require(host_launch_s_ >= 0 && host_launch_s_ <= std::numeric_limits<double>::max(),
            "host_launch_s must be finite and not negative");
    for (int i = 0; i < layer_count(); ++i) {
      kinds_.push_back(model_.kind(i));
      HETSCHED_EXPECTS(kinds_.back() >= 0 && kinds_.back() <= i);
    }
    const auto& parts = costs_.hardware().subclusters;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (options.analytic_elsewhere && !known_by_operators(parts[k].device)) {
        devices_.push_back({.sustained_flops = detail::sustained_flops(parts[k].device, options.precision, {})});
        continue;
      }
      double efficiency = 1;
      for (const auto& e : options.efficiency)
        if (e.device == parts[k].device.name) efficiency = at(e.of_peak, parts[k].device.computes_in(options.precision));
      require(efficiency > 0 && efficiency <= std::numeric_limits<double>::max(),
              "efficiency of " + parts[k].device.name + " must be finite and positive");
      devices_.push_back({.device = make_tile_device(parts[k].device), .efficiency = efficiency});
      devices_.back().device.flash = options.flash;
      try {
        if (options.memory.accumulation_bytes > 0 || options.memory.staged_accumulation_bytes > 0)
          devices_.back().byte_s = byte_s(devices_.back());
        for (const auto& mesh : submeshes(parts[k], static_cast<int>(k)))
          for (const auto& where : placements(mesh)) price(devices_.back(), where.degrees);
      } catch (const input_error& e) {
        throw input_error("device " + parts[k].device.name + ": " + e.what());
      }
    }
  }

  [[nodiscard]] int layer_count() const { return costs_.layer_count(); }
  [[nodiscard]] const Model& model() const { return model_; }

  /// As analytic_cost_model's.
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return costs_.placements(mesh); }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    const auto& d = at(devices_, where.mesh.subcluster);
    if (d.sustained_flops > 0)
      return costs_.layer(index, where,
                          detail::analytic_compute(costs_, d.sustained_flops, detail::analytic_layer_overhead_s, index, where));
    const int kind = at(kinds_, index);
    for (const auto& share : d.shares)
      if (share.of == where.degrees) return costs_.layer(index, where, at(share.kinds, kind));
    return costs_.layer(index, where, compute(d, kind, share_of(where.degrees)));
  }

  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  /// Those of the model; 0 if it tells none.
  [[nodiscard]] int slices() const {
    if constexpr (requires { model_.slices(); })
      return model_.slices();
    else
      return 0;
  }

  /// A rank launches the operators of its slices. Layers wait for sums over the slowest link of any two parts.
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    const detail::layer_compute unknown{.forward_s = -1};
    std::vector<detail::layer_compute> known(kinds_.size() * parts.size(), unknown);  // by kind and part
    const auto compute_once = [&](int index, const stage_part& p) {
      const auto& d = at(devices_, p.where.mesh.subcluster);
      if (d.sustained_flops > 0)
        return detail::analytic_slices(costs_, d.sustained_flops, detail::analytic_layer_overhead_s, index, p.where, p.slices,
                                       slices());
      const int kind = at(kinds_, index);
      auto& found = known[as_size(kind) * parts.size() + as_size(&p - parts.data())];
      const layer_share share{.samples = p.samples, .tensor = slices(), .slices = p.slices};
      if (found.forward_s < 0) found = compute(d, kind, share);
      return found;
    };
    return costs_.sliced_stage(layers, parts, slices(), compute_once);
  }

  /// As analytic_cost_model's.
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs_.transfer(boundary, from, to, near);
  }

  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement& where) { return boundary_side_class(where); }
  /// Boundaries of equally many bytes.
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs_.at(boundary).boundary_bytes; }

  /// As analytic_cost_model's.
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
  struct share_prices {
    degrees of;
    std::vector<detail::layer_compute> kinds;  // by the kind's index; others are not filled in
  };

  struct device_prices {
    tile_device device{};
    double efficiency = 1;
    double sustained_flops = 0;  // of a device that operators are not known of
    double byte_s = 0;           // of an elementwise kernel
    std::vector<share_prices> shares{};
  };

  [[nodiscard]] double seconds(const device_prices& d, const std::vector<operator_use>& operators) const {
    double launches = 0;
    for (const auto& use : operators) launches += use.times;
    return std::max(device_seconds(d, operators), launches * host_launch_s_);
  }

  [[nodiscard]] double device_seconds(const device_prices& d, const std::vector<operator_use>& operators) const {
    double device_s = 0;
    for (const auto& use : operators) device_s += use.times * timer_(d.device, use.op);
    return device_s / d.efficiency;
  }

  [[nodiscard]] layer_share share_of(const degrees& by) const {
    return {.samples = costs_.samples(by), .context = by.context, .tensor = by.tensor, .expert = by.expert};
  }

  [[nodiscard]] detail::layer_compute compute(const device_prices& d, int kind, const layer_share& share) const {
    const layer_operators ops = model_.operators(kind, share);
    detail::layer_compute c{.forward_s = seconds(d, ops.forward),
                            .backward_s = seconds(d, ops.backward),
                            .weight_backward_s = seconds(d, ops.weight_backward),
                            .selective_s = seconds(d, ops.selective),
                            .byte_s = d.byte_s};
    if (d.byte_s > 0 && host_launch_s_ > 0) {
      double launches = ops.parameters;
      for (const auto& use : ops.backward) launches += use.times;
      c.host_s = launches * host_launch_s_;
      c.hidden_s = c.backward_s - device_seconds(d, ops.backward);
    }
    return c;
  }

  // That a long kernel takes for each of its bytes.
  [[nodiscard]] double byte_s(const device_prices& d) const {
    const auto sum = elementwise(std::int64_t{1} << 28, 2, 1, number_format::fp32);
    return timer_(d.device, sum) / sum.traffic_bytes / d.efficiency;
  }

  void price(device_prices& d, const degrees& by) const {
    for (const auto& share : d.shares)
      if (share.of == by) return;
    auto& share = d.shares.emplace_back(share_prices{by, std::vector<detail::layer_compute>(kinds_.size())});
    for (std::size_t i = 0; i < kinds_.size(); ++i)
      if (kinds_[i] == static_cast<int>(i)) share.kinds[i] = compute(d, kinds_[i], share_of(by));
  }

  detail::parallel_costs costs_;
  Model model_;
  Timer timer_;
  double host_launch_s_;
  std::vector<int> kinds_;  // of each layer
  std::vector<device_prices> devices_;
};

/// The costs of a transformer: its kernels in the number format of options.precision, whatever `style` says of it, else as
/// `style` has them. Throws input_error as tile_cost_model and transformer_operators do.
template <operator_timer Timer = tile_timer>
[[nodiscard]] tile_cost_model<transformer_operators, Timer> make_tile_cost(cluster hardware, const transformer& model,
                                                                           const tile_cost_options& options = {},
                                                                           kernel_style style = {},
                                                                           granularity cut = granularity::block,
                                                                           Timer timer = {}) {
  style.format = format_of(options.precision);
  return tile_cost_model<transformer_operators, Timer>(std::move(hardware), transformer_operators(model, std::move(style), cut),
                                                       options, std::move(timer));
}

static_assert(additive_cost_model<tile_cost_model<transformer_operators>>);

}  // namespace hetsched
