// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/detail/parallel_costs.hpp>

namespace hetsched::detail {

HETSCHED_INLINE parallel_costs::parallel_costs(hetsched::cluster hardware, layer_chain chain, const parallel_options& options)
    : cluster_(std::move(hardware)), links_(cluster_), chain_(std::move(chain)), options_(options) {
  validate(cluster_);
  validate(chain_);
  validate(options_.memory);
  validate(options_.activations);
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(what);
  };
  validate(options_.overheads);
  for (const double share : {options_.gather_overlap, options_.reduction_overlap, options_.update_overlap})
    require(share >= 0 && share <= 1, "overlaps must be shares, 0 to 1");
  require(options_.update_bandwidth > 0 && options_.update_bandwidth <= 1, "update_bandwidth must be a share above 0, up to 1");
  require(!options_.recompute.empty() && !options_.zero.empty(), "a cost model needs a recomputation and a ZeRO stage to offer");
  std::sort(options_.recompute.begin(), options_.recompute.end());
  std::sort(options_.zero.begin(), options_.zero.end());
  for (const int zero : options_.zero) validate_zero(zero);
  require(options_.microbatch_size >= 1, "microbatch_size must be at least 1");
  require(options_.batch >= 0, "batch must not be negative");
  require(options_.max_data >= 1 && options_.max_context >= 1 && options_.max_tensor >= 1 && options_.max_expert >= 1,
          "largest degrees must be at least 1");
  parameters_before_.push_back(0);
  experts_before_.push_back(0);
  for (const auto& l : chain_.layers) {
    parameters_before_.push_back(checked_add(parameters_before_.back(), held(l)));
    experts_before_.push_back(checked_add(experts_before_.back(), l.expert_parameters));
  }
  for (int j = 0; j < layer_count(); ++j)
    if (at(j).shared_parameters > 0) sharing_.push_back(j);
  for (int j = 0; j + 1 < layer_count(); ++j) largest_boundary_ = std::max(largest_boundary_, at(j).boundary_bytes);
  bool drops_some = options_.activations.selective_kept < 1;
  for (const auto& l : chain_.layers) drops_some = drops_some || l.selective_saved_bytes > 0;
  // Selective recomputation is none where nothing can be dropped.
  if (!drops_some && options_.recompute.front() == recomputation::none) std::erase(options_.recompute, recomputation::selective);
}

HETSCHED_INLINE std::vector<placement> parallel_costs::placements(const submesh& mesh) const {
  std::vector<placement> found;
  const int devices = mesh.device_count();
  for (int t = 1; t <= mesh.devices_per_node && t <= options_.max_tensor; ++t) {
    if (mesh.devices_per_node % t != 0 || (chain_.heads > 0 && chain_.heads % t != 0)) continue;
    for (int c = 1; c <= devices / t && c <= options_.max_context; ++c) {
      if (devices / t % c != 0 || (c > 1 && chain_.sequence % (t * c) != 0)) continue;
      const int d = devices / t / c;
      if (d > options_.max_data || options_.microbatch_size % d != 0) continue;
      for (int e = 1; e <= d && e <= options_.max_expert; ++e) {
        if (d % e != 0 || (e > 1 && (chain_.experts == 0 || chain_.experts % e != 0))) continue;
        const degrees all{.data = d, .context = c, .tensor = t, .expert = e};
        for (const auto recompute : options_.recompute)
          for (const int zero : zero_stages(all))
            found.push_back({.mesh = mesh, .degrees = all, .recompute = recompute, .zero = zero});
      }
    }
  }
  return found;
}

HETSCHED_INLINE stage_cost parallel_costs::layer(int index, const placement& where, const layer_compute& compute) const {
  const auto& l = at(index);
  const auto& d = where.degrees;
  const double batch = static_cast<double>(samples(d));
  const auto tensor_group = group(where, 1, d.tensor);
  const auto context_group = group(where, d.tensor, d.context);
  const double tensor_s = tensor_group.collective_s(2, static_cast<double>(l.tensor_reduce_bytes) * batch / d.context);
  const double context_s = context_group.collective_s(1, static_cast<double>(l.context_gather_bytes) * batch / d.tensor);
  // Every tensor rank sends all tokens, for its part of the experts' width.
  const double expert_s = 2 * all_to_all_s(cluster_, where.mesh, d.context * d.tensor, d.expert,
                                           static_cast<double>(l.expert_exchange_bytes) * batch / d.context);

  const auto& state = options_.memory;
  const auto [dense, experts] = on_device(held(l), l.expert_parameters, d);
  // From ZeRO stage 2 on sums are of the device's shard, which is in one piece.
  const int copies = where.zero >= 2 ? static_cast<int>(replicas(d)) : 1;
  stage_cost cost = seconds(
      l, where.recompute, compute, tensor_s + context_s + expert_s, tensor_s + 2 * context_s + expert_s,
      {.whole = dense + experts, .own = dense / copies + experts / std::max(1, copies / d.expert), .one_by_one = where.zero < 2});
  if (where.zero >= 2) {
    const double gather_s = where.zero == 3 ? among_replicas_s(where, 1, dense, experts, state.weight_bytes) : 0;
    const double reduce_s = among_replicas_s(where, 1, dense, experts, state.reduced_bytes);
    const double hidden_s = options_.gather_overlap * gather_s;
    cost.forward_s += gather_s - std::min(hidden_s, cost.forward_s);
    cost.backward_s += gather_s + reduce_s - std::min(hidden_s + options_.reduction_overlap * reduce_s, cost.backward_s);
  }
  const auto memory = layer_memory(chain_, index, held(l), where, samples(d), state, options_.activations);
  cost.weight_bytes = memory.weight_bytes;
  cost.gradient_bytes = memory.gradient_bytes;
  cost.optimizer_bytes = memory.optimizer_bytes;
  cost.activation_bytes = memory.activation_bytes;
  cost.temporary_bytes = memory.temporary_bytes;
  return cost;
}

HETSCHED_INLINE double parallel_costs::update_behind(layer_range layers, const placement& where, double backward_s) const {
  const auto of_experts = hetsched::at(experts_before_, layers.last) - hetsched::at(experts_before_, layers.first);
  const auto [dense, experts] = on_device(held_in(layers), of_experts, where.degrees);
  const auto& m = options_.memory;
  double seconds = 0;
  if (where.zero == 0) seconds += among_replicas_s(where, 2, dense, experts, m.reduced_bytes);
  if (where.zero == 1) seconds += among_replicas_s(where, 1, dense, experts, m.reduced_bytes);
  seconds -= std::min(options_.update_overlap * seconds, backward_s);
  if (where.zero == 1 || where.zero == 2) seconds += among_replicas_s(where, 1, dense, experts, m.weight_bytes);
  const int copies = static_cast<int>(replicas(where.degrees));
  const double stepped = where.zero >= 1 ? dense / copies + experts / (copies / where.degrees.expert) : dense + experts;
  const double touched = stepped * (2.0 * m.optimizer_bytes + m.gradient_bytes + m.weight_bytes);
  return seconds + touched / (options_.update_bandwidth * subcluster_of(cluster_, where.mesh).device.memory_bandwidth);
}

HETSCHED_INLINE stage_cost parallel_costs::seconds(const hetsched::layer& l, recomputation mode, const layer_compute& compute,
                                                   double there_s, double back_s, const summed_parameters& summed) const {
  stage_cost cost;
  // Each microbatch counts as their mean: of m the first one adds to nothing. A stage then computes as long as it does in all.
  const double later = options_.batch > 0 ? std::max(0.0, 1 - 1.0 * options_.microbatch_size / options_.batch) : 1;
  const auto added_s = [&](int bytes, double parameters, bool one_by_one) {
    if (bytes == 0) return 0.0;
    const double own_s = std::max(0.0, bytes * parameters * compute.byte_s - compute.hidden_s);
    return later * (one_by_one ? std::max(own_s, compute.host_s - compute.backward_s) : own_s);
  };
  cost.sums_s = added_s(options_.memory.accumulation_bytes, summed.own, summed.one_by_one);
  // A sum over stages counts what is less, so that it stays a bound on both.
  if (const int staged = options_.memory.staged_accumulation_bytes; staged > 0) {
    cost.staged_sums_s = added_s(staged, summed.whole, true);
    cost.sums_s = std::min(cost.sums_s, cost.staged_sums_s);
  }
  cost.forward_s = compute.forward_s + compute.overhead_s + there_s;
  cost.weight_backward_s = compute.weight_backward_s;
  cost.backward_s = compute.backward_s + (compute.overhead_s + back_s);
  if (mode == recomputation::full && l.recomputable)
    cost.backward_s += cost.forward_s;
  else if (mode != recomputation::none)
    cost.backward_s += compute.selective_s + (l.recomputable ? (1 - options_.activations.selective_kept) * compute.forward_s : 0);
  cost.backward_s += cost.sums_s;
  if (compute.weight_backward_s > 0) cost.weight_backward_s += cost.sums_s;
  return cost;
}

HETSCHED_INLINE std::vector<parameter_copy> parallel_costs::copies(const placement& where) const {
  std::vector<parameter_copy> found;
  const auto& state = options_.memory;
  for (const int i : sharing_) {
    const auto& l = at(i);
    // What the layer holds more for them, rounding included.
    const auto more = [&](int bytes_each, int sharded_from) {
      const auto of = [&](std::int64_t parameters) {
        return parameter_share(parameters, l.expert_parameters, bytes_each, where.degrees, where.zero, sharded_from);
      };
      return of(held(l)) - of(l.parameters);
    };
    const bytes_t gradients = more(state.gradient_bytes, 2), optimizer = more(state.optimizer_bytes, 1);
    found.push_back({.owner = l.owner,
                     .layer = i,
                     .weight_bytes = more(state.held_weight_bytes(where.zero), 3) + gradients + optimizer,
                     .gradient_bytes = gradients,
                     .optimizer_bytes = optimizer,
                     .reduction_bytes = checked_mul(l.shared_parameters, std::int64_t{state.reduced_bytes})});
  }
  return found;
}

HETSCHED_INLINE stage_cost parallel_costs::sliced_memory(int index, std::int64_t parameters, recomputation mode,
                                                         std::int64_t samples, int own, int slices) const {
  const auto of = [&](int tensor) {
    return layer_memory(chain_, index, parameters, {.degrees = {.tensor = tensor}, .recompute = mode}, samples, options_.memory,
                        options_.activations);
  };
  auto held = of(slices);
  const auto whole = of(1);
  const auto grow = [&](bytes_t& bytes, bytes_t most) {
    bytes += ceil_div(checked_mul(most - bytes, own - 1), std::int64_t{slices - 1});
  };
  grow(held.weight_bytes, whole.weight_bytes);
  grow(held.gradient_bytes, whole.gradient_bytes);
  grow(held.optimizer_bytes, whole.optimizer_bytes);
  grow(held.activation_bytes, whole.activation_bytes);
  grow(held.temporary_bytes, whole.temporary_bytes);
  return held;
}

HETSCHED_INLINE double parallel_costs::among_parts_s(std::span<const stage_part> parts, int ranks, double bytes) const {
  double slowest_s = 0;
  for (std::size_t a = 0; a < parts.size(); ++a) {
    const auto& mesh = parts[a].where.mesh;
    const auto along = [&](const link& hop) { slowest_s = std::max(slowest_s, ring{ranks, hop}.collective_s(2, bytes)); };
    if (mesh.device_count() > 1) along(ring_on(cluster_, mesh, 1, mesh.device_count()).hop);
    for (std::size_t b = a + 1; b < parts.size(); ++b) {
      for (const auto& over :
           {link_between(cluster_, mesh, parts[b].where.mesh), link_between(cluster_, parts[b].where.mesh, mesh)}) {
        if (!over) return infinity;
        along(*over);
      }
    }
  }
  return slowest_s;
}

}  // namespace hetsched::detail
