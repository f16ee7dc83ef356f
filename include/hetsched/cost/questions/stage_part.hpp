// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/stage_parts_test.cpp.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// Equal devices of one subcluster that do alike in a stage whose devices are unlike, or that shares its axes unevenly; such a
/// stage has several parts. Either a part is data replicas with equally many samples each, and is priced as a stage that gets
/// microbatches of `samples`; or all parts together are one replica, and a part is tensor ranks with equally many slices of
/// every layer's heads and inner width each.
struct stage_part {
  placement where{};                    ///< where.degrees.data of the stage's replicas, or .tensor of the tensor ranks of one
  std::vector<device_group> devices{};  ///< where.mesh.device_count() of them
  int samples = 1;                      ///< of a microbatch, of all these replicas together
  int slices = 0;                       ///< of the cost model's slices, those of each tensor rank; 0: replicas
  friend bool operator==(const stage_part&, const stage_part&) = default;
};

/// Whether the parts of a stage are tensor ranks of one replica.
[[nodiscard]] inline bool are_sliced(std::span<const stage_part> parts) { return parts[0].slices > 0; }

/// What a stage costs whose parts compute side by side.
struct parts_cost {
  stage_cost slowest{};  ///< seconds: forward and backward each of the slowest part; bytes: the most that any part holds
  std::vector<stage_cost> parts{};
  std::vector<memory_overheads> overheads{};
};

namespace detail::cost_model {

void slices() = delete;
void sliced_stage() = delete;

struct slices_fn {
  template <class M>
  [[nodiscard]] constexpr int operator()(const M& model) const {
    if constexpr (requires { model.slices(); })
      return model.slices();
    else if constexpr (requires { slices(model); })
      return slices(model);
    else
      return 0;
  }
};

struct sliced_stage_fn {
  template <class M>
  [[nodiscard]] parts_cost operator()(const M& model, layer_range layers, std::span<const stage_part> parts) const {
    if constexpr (requires { model.sliced_stage(layers, parts); })
      return model.sliced_stage(layers, parts);
    else if constexpr (requires { sliced_stage(model, layers, parts); })
      return sliced_stage(model, layers, parts);
    else
      throw input_error("the cost model has no prices for uneven shares of the tensor axis");
  }
};

}  // namespace detail::cost_model

namespace cost_of {

/// Equal slices of a layer's heads and inner width that tensor ranks may have unevenly many of. Default: 0, they may not.
inline constexpr detail::cost_model::slices_fn slices{};
/// Cost of a range of layers on one replica whose parts have such slices: seconds of the stage, and bytes of each part. Asked
/// only of models that have slices.
inline constexpr detail::cost_model::sliced_stage_fn sliced_stage{};

}  // namespace cost_of

namespace detail {

void take_slower(stage_cost& all, const stage_cost& part);

template <class CostsFor>
[[nodiscard]] double reduction_between_s(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
  std::vector<placement> holders;
  for (const auto& p : parts) holders.push_back(p.where);
  return cost_of::gradient_sync(costs_for(parts.front().samples), layers, holders).seconds;
}

// Samples of a microbatch that come before each part, and all of them.
[[nodiscard]] inline std::vector<int> samples_before(std::span<const stage_part> parts) {
  std::vector<int> points{0};
  for (const auto& p : parts) points.push_back(points.back() + p.samples);
  return points;
}

// Of transfers with each part alone, the one that takes longest.
template <class Price>
[[nodiscard]] transfer_cost slowest_part(std::span<const stage_part> parts, Price price) {
  transfer_cost slowest = price(parts.subspan(0, 1));
  for (std::size_t k = 1; k < parts.size(); ++k)
    if (const transfer_cost c = price(parts.subspan(k, 1)); c.slower_way_s() > slowest.slower_way_s()) slowest = c;
  return slowest;
}

}  // namespace detail

/// Seconds after the last backward: the slowest part's own update, and up to ZeRO stage 1 the reduction between parts that are
/// replicas, as between pipelines. Tensor ranks of one replica each take what their slices take of the whole.
/// Requires: at least one part. Returns: infinity where no link joins parts. O(parts) questions.
template <class CostsFor>
[[nodiscard]] double update_of_parts(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
  double slowest_s = 0;
  if (are_sliced(parts)) {
    const auto& costs = costs_for(parts.front().samples);
    for (const auto& p : parts) {
      const double of_even = static_cast<double>(p.slices) * p.where.degrees.tensor / cost_of::slices(costs);
      slowest_s = std::max(slowest_s, of_even * cost_of::update(costs, layers, p.where));
    }
    return slowest_s;
  }
  for (const auto& p : parts) slowest_s = std::max(slowest_s, double{cost_of::update(costs_for(p.samples), layers, p.where)});
  const bool between = parts.size() > 1 && parts.front().where.zero < 2;
  return slowest_s + (between ? detail::reduction_between_s(costs_for, layers, parts) : 0);
}

/// What a range of layers costs each part of a stage, and together. The slowest part counts. Tensor ranks of one replica cost
/// what the model says of slices. From ZeRO stage 2 on, which shards inside each part, every backward of replicas also waits for
/// a reduction between the parts, and at stage 3 both ways wait for one more, in place of gathering weights. `costs_for`: the
/// cost model for a microbatch size.
/// Requires: at least one part. Returns: seconds may be infinite where no link joins parts. O(parts) questions.
template <class CostsFor>
[[nodiscard]] parts_cost cost_of_parts(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
  if (are_sliced(parts)) return cost_of::sliced_stage(costs_for(parts.front().samples), layers, parts);
  parts_cost all;
  for (const auto& p : parts) {
    const auto& costs = costs_for(p.samples);
    all.parts.push_back(cost_of::stage(costs, layers, p.where));
    all.overheads.push_back(cost_of::overheads(costs, p.where));
  }
  all.slowest = all.parts.front();
  if (parts.size() == 1) return all;
  for (const auto& c : all.parts) detail::take_slower(all.slowest, c);
  all.slowest.gradient_bytes = all.slowest.optimizer_bytes = 0;  // told by part
  const int zero = parts.front().where.zero;
  if (zero < 2) return all;
  const double between_s = detail::reduction_between_s(costs_for, layers, parts);
  all.slowest.backward_s += between_s;
  if (zero == 3) {
    all.slowest.forward_s += between_s;
    all.slowest.backward_s += between_s;
  }
  return all;
}

/// What it takes to move a microbatch's activation from the parts of a stage to those of the next, and its gradient back: two
/// parts exchange the samples that both have. Each part does its transfers one after the other, and the parts work at once; the
/// busiest counts (in an open shop with interruptions nothing else does; Gonzalez and Sahni 1976). Tensor ranks of one replica
/// count as if the slowest of its parts did all. O(parts of both) questions.
/// `one(p, q, samples)`: the transfer of so many samples from part p to part q.
template <class One>
[[nodiscard]] transfer_cost transfer_of_parts(std::span<const stage_part> from, std::span<const stage_part> to, One&& one) {
  if (from.size() == 1 && to.size() == 1) return one(from[0], to[0], to[0].samples);
  if (from.size() > 1 && are_sliced(from))
    return detail::slowest_part(from, [&](const auto& only) { return transfer_of_parts(only, to, one); });
  if (to.size() > 1 && are_sliced(to))
    return detail::slowest_part(to, [&](const auto& only) { return transfer_of_parts(from, only, one); });
  const auto sent = detail::samples_before(from), received = detail::samples_before(to);
  struct load {
    double forward_s = 0, backward_s = 0;
  };
  std::vector<load> loads(from.size() + to.size());
  transfer_cost all;
  all.strategy = "by_part";
  for (std::size_t p = 0; p < from.size(); ++p)
    for (std::size_t q = 0; q < to.size(); ++q) {
      const int common = std::min(sent[p + 1], received[q + 1]) - std::max(sent[p], received[q]);
      if (common <= 0) continue;
      const transfer_cost cost = one(from[p], to[q], common);
      for (const auto at : {p, from.size() + q}) {
        loads[at].forward_s += cost.forward_s;
        loads[at].backward_s += cost.backward_s;
      }
      all.bytes = checked_add(all.bytes, cost.bytes);
      all.extra_bytes = std::max(all.extra_bytes, cost.extra_bytes);
    }
  for (const auto& l : loads) {
    all.forward_s = std::max(all.forward_s, l.forward_s);
    all.backward_s = std::max(all.backward_s, l.backward_s);
  }
  return all;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/questions/stage_part.ipp>
#endif
