// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// What one virtual stage costs on its rank: seconds per microbatch, and bytes that stay on the rank meanwhile.
/// Any unit will do for bytes, as long as capacities are in the same.
struct stage_work {
  double forward_s = 0;
  double backward_s = 0;         ///< whole
  double weight_backward_s = 0;  ///< of backward_s, the part that backward_weight takes
  double recompute_s = 0;
  double activation_bytes = 1;       ///< from forward (or recompute) to backward
  double weight_backward_bytes = 1;  ///< of these, what a backward_input leaves for its backward_weight
  double checkpoint_bytes = 0;       ///< kept from forward to recompute where the schedule lists a recompute
  double all_gather_s = 0;           ///< this and what follows: once per iteration and listed action
  double reduce_scatter_s = 0;
  double reduce_gradients_s = 0;
  double optimizer_s = 0;
  friend bool operator==(const stage_work&, const stage_work&) = default;
};

/// One leg of a transfer. It starts when each of its wires has room, occupies them all for occupied_s, and arrives latency_s
/// later.
struct hop {
  std::array<int, 3> wires{-1, -1, -1};  ///< positions in workload::wires, -1: none (sender's port, wire, receiver's port, say)
  double occupied_s = 0;
  double latency_s = 0;
  friend bool operator==(const hop&, const hop&) = default;
};

/// How a tensor crosses a boundary between two virtual stages: in one leg, or by way of both hosts in three.
struct route {
  bool staged = false;
  hop d2h;      ///< only if staged
  hop network;  ///< the only leg unless staged
  hop h2d;      ///< only if staged
  friend bool operator==(const route&, const route&) = default;
};

/// Something that carries transfers: first come, first served, at most `capacity` at a time.
struct wire {
  std::string name;
  int capacity = 1;
  friend bool operator==(const wire&, const wire&) = default;
};

/// What the actions of a schedule cost. Transfers between stages of one rank cost nothing and need no route.
struct workload {
  int ranks = 0;
  int stages = 0;
  int replicas = 1;
  std::vector<stage_work> work;    ///< replicas x stages
  std::vector<route> activations;  ///< replicas x (stages - 1): from stage s to s + 1
  std::vector<route> gradients;    ///< replicas x (stages - 1): from stage s + 1 to s
  std::vector<wire> wires;
  std::vector<double> memory_capacity;  ///< per rank, or empty: no limits
  /// Time of a fused forward and backward over the sum of their times.
  double fused_factor = 1;

  [[nodiscard]] const stage_work& at(int replica, int stage) const {
    return work[static_cast<std::size_t>(replica) * static_cast<std::size_t>(stages) + static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const route& activation(int replica, int boundary) const { return activations[edge(replica, boundary)]; }
  [[nodiscard]] const route& gradient(int replica, int boundary) const { return gradients[edge(replica, boundary)]; }
  friend bool operator==(const workload&, const workload&) = default;

 private:
  [[nodiscard]] std::size_t edge(int replica, int boundary) const {
    return static_cast<std::size_t>(replica) * (static_cast<std::size_t>(stages) - 1) + static_cast<std::size_t>(boundary);
  }
};

namespace detail {

/// Throws input_error unless the placement has a rank for every stage of every replica, and lane r is rank r's compute stream.
/// O(replicas * stages + lanes).
inline void validate_shape(const schedule& order) {
  const auto in_range = [&](int rank) { return rank >= 0 && rank < order.ranks; };
  if (order.ranks < 1 || order.stages < 1 || order.replicas < 1 || order.microbatches < 1)
    throw input_error("a schedule needs at least one rank, stage, replica and microbatch");
  if (order.rank_of.size() != static_cast<std::size_t>(order.replicas) * static_cast<std::size_t>(order.stages) ||
      !std::all_of(order.rank_of.begin(), order.rank_of.end(), in_range))
    throw input_error("a schedule needs a rank for each of its " + std::to_string(order.stages) + " stages and " +
                      std::to_string(order.replicas) + " replicas");
  if (order.lanes.size() < static_cast<std::size_t>(order.ranks))
    throw input_error("a schedule needs a compute lane for each of its " + std::to_string(order.ranks) + " ranks");
  for (std::size_t l = 0; l < order.lanes.size(); ++l) {
    const lane& at = order.lanes[l];
    const bool first_lane = l < static_cast<std::size_t>(order.ranks);
    if (first_lane ? at.rank != static_cast<int>(l) || at.stream != stream::compute
                   : !in_range(at.rank) || at.stream == stream::compute)
      throw input_error("lane " + std::to_string(l) + " of the schedule is not " +
                        (first_lane ? "the compute lane of that rank" : "a lane behind the compute lane of a rank"));
  }
}

}  // namespace detail

/// Throws input_error unless the sizes agree, wires have room for one transfer at least, and every time is finite and not
/// negative. O(replicas * stages + wires).
inline void validate(const workload& w) {
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  if (w.ranks < 1 || w.stages < 1 || w.replicas < 1) throw input_error("a workload needs at least one rank, stage and replica");
  if (w.work.size() != size(w.replicas) * size(w.stages)) throw input_error("a workload needs work for every stage and replica");
  if (w.activations.size() != size(w.replicas) * size(w.stages - 1) || w.gradients.size() != w.activations.size())
    throw input_error("a workload needs routes both ways over every boundary of every replica");
  if (!w.memory_capacity.empty() && w.memory_capacity.size() != size(w.ranks))
    throw input_error("memory_capacity needs one entry per rank, or none");
  const auto time = [](double seconds, const char* name) {
    if (!(seconds >= 0 && seconds < 1e300)) throw input_error(std::string(name) + " of a workload is not a finite time >= 0");
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
  for (const auto* routes : {&w.activations, &w.gradients})
    for (const auto& r : *routes)
      for (const auto* h : {&r.d2h, &r.network, &r.h2d}) {
        time(h->occupied_s, "occupied_s");
        time(h->latency_s, "latency_s");
        for (const int at : h->wires)
          if (at < -1 || at >= static_cast<int>(w.wires.size()))
            throw input_error("a route of a workload takes wire " + std::to_string(at) + " of " + std::to_string(w.wires.size()));
      }
  for (const auto& at : w.wires)
    if (at.capacity < 1) throw input_error("wire '" + at.name + "' has no room for a transfer");
}

/// The workload of a schedule whose rank r does, per microbatch and replica, what stage r of the pipeline does, however many
/// virtual stages it is cut into: they share the stage's times and bytes equally. A microbatch of a bidirectional schedule
/// costs a rank the same in either replica. Neighbouring ranks use the pipeline's links, one wire per direction; ranks that
/// are no neighbours (the way back to the first rank in interleaved schedules) the pipeline's slowest.
/// Throws input_error for an invalid pipeline, or one whose stages are not the schedule's ranks. O(replicas * stages + ranks^2).
[[nodiscard]] inline workload make_workload(const pipeline& p, const schedule& order) {
  validate(p);
  detail::validate_shape(order);
  if (order.ranks != p.stages())
    throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks does not fit a pipeline of " +
                      std::to_string(p.stages()) + " stages");
  workload w{.ranks = order.ranks,
             .stages = order.stages,
             .replicas = order.replicas,
             .work = {},
             .activations = {},
             .gradients = {},
             .wires = {},
             .memory_capacity = {},
             .fused_factor = 1};
  const auto ranks = static_cast<std::size_t>(order.ranks);
  double slowest_s = 0;
  for (int i = 0; i + 1 < p.stages(); ++i) slowest_s = std::max(slowest_s, p.slower_way_s(i));

  std::vector<int> wire_of(ranks * ranks, -1);
  const auto leg = [&](int from, int to) {
    hop h;
    if (from == to) return route{.staged = false, .d2h = {}, .network = h, .h2d = {}};
    int& position = wire_of[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)];
    if (position < 0) {
      position = static_cast<int>(w.wires.size());
      w.wires.push_back({.name = "rank " + std::to_string(from) + " to " + std::to_string(to), .capacity = 1});
    }
    h.wires[0] = position;
    h.occupied_s = to == from + 1 ? p.activation_s(from) : from == to + 1 ? p.gradient_s(to) : slowest_s;
    return route{.staged = false, .d2h = {}, .network = h, .h2d = {}};
  };
  std::vector<int> share(ranks);
  for (int c = 0; c < order.replicas; ++c) {
    std::fill(share.begin(), share.end(), 0);
    for (int s = 0; s < order.stages; ++s) ++share[static_cast<std::size_t>(order.rank(c, s))];
    for (int s = 0; s < order.stages; ++s) {
      const auto r = static_cast<std::size_t>(order.rank(c, s));
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
  for (int c = 0; c < order.replicas; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      w.activations.push_back(leg(order.rank(c, s), order.rank(c, s + 1)));
      w.gradients.push_back(leg(order.rank(c, s + 1), order.rank(c, s)));
    }
  return w;
}

}  // namespace hetsched
