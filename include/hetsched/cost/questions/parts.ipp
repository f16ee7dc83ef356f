// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/parts.hpp>

namespace hetsched {

namespace detail {

inline void take_slower(stage_cost& all, const stage_cost& part) {
  if (part.backward_s > all.backward_s) {
    all.backward_s = part.backward_s;
    all.weight_backward_s = part.weight_backward_s;
    all.sums_s = part.sums_s;
    all.staged_sums_s = part.staged_sums_s;
  }
  all.forward_s = std::max(all.forward_s, part.forward_s);
  all.weight_bytes = std::max(all.weight_bytes, part.weight_bytes);
  all.activation_bytes = std::max(all.activation_bytes, part.activation_bytes);
  all.temporary_bytes = std::max(all.temporary_bytes, part.temporary_bytes);
}

[[nodiscard]] inline double reduction_between_s(const costs_by_size& costs_for, layer_range layers,
                                                std::span<const stage_part> parts) {
  std::vector<placement> holders;
  for (const auto& p : parts) holders.push_back(p.where);
  return cost_of::gradient_sync(costs_for(parts.front().samples), layers, holders).seconds;
}

inline void check_parts(std::span<const stage_part> parts) {
  if (parts.empty()) throw input_error("a stage needs at least one part");
  for (const auto& p : parts)
    if (p.samples < 1 || p.slices < 0 || (p.slices > 0) != are_sliced(parts))
      throw input_error("parts of a stage must have at least 1 sample each, and slices all or none of them");
}

// Samples of a microbatch that come before each part, and all of them.
[[nodiscard]] inline std::vector<int> samples_before(std::span<const stage_part> parts) {
  std::vector<int> points{0};
  for (const auto& p : parts) {
    if (p.samples > INT_MAX - points.back()) throw input_error("the parts of a stage have more samples than an int holds");
    points.push_back(points.back() + p.samples);
  }
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

HETSCHED_INLINE double update_of_parts(const costs_by_size& costs_for, layer_range layers, std::span<const stage_part> parts) {
  detail::check_parts(parts);
  double slowest_s = 0;
  if (are_sliced(parts)) {
    const auto costs = costs_for(parts.front().samples);
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

HETSCHED_INLINE parts_cost cost_of_parts(const costs_by_size& costs_for, layer_range layers, std::span<const stage_part> parts) {
  detail::check_parts(parts);
  if (are_sliced(parts)) return cost_of::sliced_stage(costs_for(parts.front().samples), layers, parts);
  parts_cost all;
  for (const auto& p : parts) {
    const auto costs = costs_for(p.samples);
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

HETSCHED_INLINE void charge_sums(parts_cost& c, std::span<const stage_part> parts, double microbatches, double of_batch,
                                 bool several_stages) {
  if (c.parts.size() == 1 || are_sliced(parts)) return charge_sums(c.slowest, microbatches, of_batch, several_stages);
  stage_cost priced, charged;
  for (auto part : c.parts) {
    detail::take_slower(priced, part);
    charge_sums(part, microbatches, of_batch, several_stages);
    detail::take_slower(charged, part);
  }
  c.slowest.backward_s += charged.backward_s - priced.backward_s;  // reductions between parts stay
  c.slowest.weight_backward_s = charged.weight_backward_s;
  c.slowest.sums_s = c.slowest.staged_sums_s = 0;
}

HETSCHED_INLINE transfer_cost transfer_of_parts(std::span<const stage_part> from, std::span<const stage_part> to,
                                                function_ref<transfer_cost(const stage_part&, const stage_part&, int)> one) {
  detail::check_parts(from);
  detail::check_parts(to);
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
