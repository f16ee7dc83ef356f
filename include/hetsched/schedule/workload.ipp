// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const workload& w) {
  const auto size = [](int n) { return as_size(n); };
  if (w.ranks < 1 || w.stages < 1 || w.directions < 1)
    throw input_error("a workload needs at least one rank, stage and direction");
  if (w.work.size() != size(w.directions) * size(w.stages))
    throw input_error("a workload needs work for every stage and direction");
  if (w.activations.size() != size(w.directions) * size(w.stages - 1) || w.gradients.size() != w.activations.size())
    throw input_error("a workload needs paths both ways over every boundary of every direction");
  if (!w.memory_capacity.empty() && w.memory_capacity.size() != size(w.ranks))
    throw input_error("memory_capacity needs one entry per rank, or none");
  const auto time = [](double seconds, const char* name) {
    if (!(seconds >= 0 && seconds < longest_time_s))
      throw input_error(std::string(name) + " of a workload is not a finite time >= 0");
  };
  for (const auto& s : w.work) {
    time(s.forward_s, "forward_s");
    time(s.backward_s, "backward_s");
    time(s.weight_backward_s, "weight_backward_s");
    time(s.backward_s - s.weight_backward_s, "backward_s less weight_backward_s");
    time(s.recompute_s, "recompute_s");
    time(s.all_gather_s, "all_gather_s");
    time(s.reduce_scatter_s, "reduce_scatter_s");
    time(s.reduce_gradients_s, "reduce_gradients_s");
    time(s.optimizer_s, "optimizer_s");
  }
  time(w.fused_factor, "fused_factor");
  for (const auto* paths : {&w.activations, &w.gradients})
    for (const auto& r : *paths)
      for (const auto* h : {&r.d2h, &r.network, &r.h2d}) {
        time(h->occupied_s, "occupied_s");
        time(h->latency_s, "latency_s");
        for (const int at : h->wires)
          if (at < -1 || at >= static_cast<int>(w.wires.size()))
            throw input_error("a path of a workload takes wire " + std::to_string(at) + " of " + std::to_string(w.wires.size()));
      }
  for (const auto& at : w.wires)
    if (at.capacity < 1) throw input_error("wire '" + at.name + "' has no room for a transfer");
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE double seconds_of(const stage_work& w, action_kind kind) {
  using enum action_kind;
  switch (kind) {
    case forward:
      return w.forward_s;
    case backward:
      return w.backward_s;
    case backward_input:
      return w.backward_s - w.weight_backward_s;
    case backward_weight:
      return w.weight_backward_s;
    case recompute:
      return w.recompute_s;
    case all_gather:
      return w.all_gather_s;
    case reduce_scatter:
      return w.reduce_scatter_s;
    case reduce_gradients:
      return w.reduce_gradients_s;
    case optimizer:
      return w.optimizer_s;
    default:
      return 0;
  }
}

HETSCHED_INLINE void expect_work(const workload& w) {
  if (w.stages < 1 || w.directions < 1 || w.work.size() != as_size(w.directions) * as_size(w.stages))
    throw input_error("a workload needs work for every stage and direction");
}

HETSCHED_INLINE void validate_fit(const workload& w, const schedule& order) {
  if (w.ranks == order.ranks && w.stages == order.stages && w.directions == order.directions) return;
  throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks, " + std::to_string(order.stages) + " stages and " +
                    std::to_string(order.directions) + " directions does not fit a workload of " + std::to_string(w.ranks) +
                    ", " + std::to_string(w.stages) + " and " + std::to_string(w.directions));
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE workload make_workload(const pipeline& p, const schedule& order) {
  validate(p);
  detail::validate_shape(order);
  if (order.ranks != p.stages())
    throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks does not fit a pipeline of " +
                      std::to_string(p.stages()) + " stages");
  workload w{.ranks = order.ranks,
             .stages = order.stages,
             .directions = order.directions,
             .work = {},
             .activations = {},
             .gradients = {},
             .wires = {},
             .memory_capacity = {},
             .fused_factor = 1};
  const auto ranks = as_size(order.ranks);
  double slowest_s = 0, longest_occupied_s = 0;
  for (int i = 0; i + 1 < p.stages(); ++i) {
    slowest_s = std::max(slowest_s, p.slower_way_s(i));
    longest_occupied_s = std::max(longest_occupied_s, p.occupied_s(i));
  }

  std::vector<int> wire_of(ranks * ranks, -1);
  const auto leg = [&](int from, int to) {
    hop h;
    if (from == to) return tensor_path{.staged = false, .d2h = {}, .network = h, .h2d = {}};
    int& position = wire_of[as_size(from) * ranks + as_size(to)];
    if (position < 0) {
      position = static_cast<int>(w.wires.size());
      w.wires.push_back({.name = "rank " + std::to_string(from) + " to " + std::to_string(to), .capacity = 1});
    }
    h.wires[0] = position;
    const double seconds = to == from + 1 ? p.activation_s(from) : from == to + 1 ? p.gradient_s(to) : slowest_s;
    h.occupied_s = to == from + 1   ? p.activation_occupied_s(from)
                   : from == to + 1 ? p.gradient_occupied_s(to)
                                    : longest_occupied_s;
    h.latency_s = seconds - h.occupied_s;
    return tensor_path{.staged = false, .d2h = {}, .network = h, .h2d = {}};
  };
  std::vector<int> share(ranks);
  for (int c = 0; c < order.directions; ++c) {
    std::fill(share.begin(), share.end(), 0);
    for (int s = 0; s < order.stages; ++s) ++at(share, order.rank(c, s));
    for (int s = 0; s < order.stages; ++s) {
      const auto r = as_size(order.rank(c, s));
      const double n = share[r];
      stage_work work;
      work.forward_s = p.forward_s[r] / n;
      work.backward_s = p.backward_s[r] / n;
      work.weight_backward_s = p.weight_backward_s.empty() ? 0 : p.weight_backward_s[r] / n;
      work.activation_bytes = (p.activation_bytes.empty() ? 1 : p.activation_bytes[r]) / n;
      work.weight_backward_bytes = work.activation_bytes;
      w.work.push_back(work);
    }
  }
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      w.activations.push_back(leg(order.rank(c, s), order.rank(c, s + 1)));
      w.gradients.push_back(leg(order.rank(c, s + 1), order.rank(c, s)));
    }
  return w;
}

}  // namespace hetsched
