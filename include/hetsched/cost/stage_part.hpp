// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/stage_parts_test.cpp.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/concepts.hpp>
#include <hetsched/cost/memory.hpp>
#include <hetsched/cost/stage_cost.hpp>

namespace hetsched {

/// Data replicas of a stage that are alike: equal devices of one subcluster, each with equally many samples. A stage whose
/// devices are unlike, or that shares its samples unevenly, has several; each is priced as a stage that gets microbatches of
/// `samples`.
struct stage_part {
  placement where{};                    ///< where.degrees.data of the stage's replicas
  std::vector<device_group> devices{};  ///< where.mesh.device_count() of them
  int samples = 1;                      ///< of a microbatch, of all these replicas together
  friend bool operator==(const stage_part&, const stage_part&) = default;
};

/// What a stage costs whose parts compute their samples side by side.
struct parts_cost {
  stage_cost slowest{};  ///< seconds: forward and backward each of the slowest part; bytes: the most that any part holds
  std::vector<stage_cost> parts{};
  std::vector<memory_overheads> overheads{};
};

namespace detail {

inline void take_slower(stage_cost& all, const stage_cost& part) {
  if (part.backward_s > all.backward_s) {
    all.backward_s = part.backward_s;
    all.weight_backward_s = part.weight_backward_s;
  }
  all.forward_s = std::max(all.forward_s, part.forward_s);
  all.weight_bytes = std::max(all.weight_bytes, part.weight_bytes);
  all.activation_bytes = std::max(all.activation_bytes, part.activation_bytes);
  all.temporary_bytes = std::max(all.temporary_bytes, part.temporary_bytes);
}

template <class CostsFor>
[[nodiscard]] double reduction_between_s(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
  std::vector<placement> holders;
  for (const auto& p : parts) holders.push_back(p.where);
  return cost_of::gradient_sync(costs_for(parts.front().samples), layers, holders).seconds;
}

// Samples of a microbatch that come before each part, and all of them.
template <std::same_as<stage_part> Part>
[[nodiscard]] std::vector<int> samples_before(std::span<const Part> parts) {
  std::vector<int> points{0};
  for (const auto& p : parts) points.push_back(points.back() + p.samples);
  return points;
}

}  // namespace detail

/// Seconds after the last backward: the slowest part's own update, and up to ZeRO stage 1 the reduction between the parts, as
/// between pipelines. Requires: at least one part. Returns: infinity where no link joins parts. O(parts) questions.
template <class CostsFor>
[[nodiscard]] double update_of_parts(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
  double slowest_s = 0;
  for (const auto& p : parts) slowest_s = std::max(slowest_s, double{cost_of::update(costs_for(p.samples), layers, p.where)});
  const bool between = parts.size() > 1 && parts.front().where.zero < 2;
  return slowest_s + (between ? detail::reduction_between_s(costs_for, layers, parts) : 0);
}

/// What a range of layers costs each part of a stage, and together. The slowest part counts. From ZeRO stage 2 on, which shards
/// inside each part, every backward also waits for a reduction between the parts, and at stage 3 both ways wait for one more, in
/// place of gathering weights. `costs_for`: the cost model for a microbatch size.
/// Requires: at least one part. Returns: seconds may be infinite where no link joins parts. O(parts) questions.
template <class CostsFor>
[[nodiscard]] parts_cost cost_of_parts(CostsFor&& costs_for, layer_range layers, std::span<const stage_part> parts) {
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
/// busiest counts (in an open shop with interruptions nothing else does; Gonzalez and Sahni 1976). O(parts of both) questions.
/// `one(p, q, samples)`: the transfer of so many samples from part p to part q.
template <class One>
[[nodiscard]] transfer_cost transfer_of_parts(std::span<const stage_part> from, std::span<const stage_part> to, One&& one) {
  if (from.size() == 1 && to.size() == 1) return one(from[0], to[0], to[0].samples);
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
