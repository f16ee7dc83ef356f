// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/detail/structure.hpp>
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
struct tensor_path {
  bool staged = false;
  hop d2h;      ///< only if staged
  hop network;  ///< the only leg unless staged
  hop h2d;      ///< only if staged
  friend bool operator==(const tensor_path&, const tensor_path&) = default;
};

/// Something that carries transfers: first come, first served, at most `capacity` at a time.
struct wire {
  std::string name;
  int capacity = 1;
  friend bool operator==(const wire&, const wire&) = default;
};

/// What the actions of a schedule cost. Transfers between stages of one rank cost nothing and need no path.
struct workload {
  int ranks = 0;
  int stages = 0;
  int directions = 1;
  std::vector<stage_work> work;          ///< directions x stages
  std::vector<tensor_path> activations;  ///< directions x (stages - 1): from stage s to s + 1
  std::vector<tensor_path> gradients;    ///< directions x (stages - 1): from stage s + 1 to s
  std::vector<wire> wires;
  std::vector<double> memory_capacity;  ///< per rank, or empty: no limits
  /// Time of a fused forward and backward over the sum of their times.
  double fused_factor = 1;

  /// Position in `work`.
  [[nodiscard]] std::size_t place(int direction, int stage) const {
    return static_cast<std::size_t>(direction) * static_cast<std::size_t>(stages) + static_cast<std::size_t>(stage);
  }
  [[nodiscard]] const stage_work& at(int direction, int stage) const { return work[place(direction, stage)]; }
  [[nodiscard]] const tensor_path& activation(int direction, int boundary) const {
    return activations[edge(direction, boundary)];
  }
  [[nodiscard]] const tensor_path& gradient(int direction, int boundary) const { return gradients[edge(direction, boundary)]; }
  friend bool operator==(const workload&, const workload&) = default;

 private:
  [[nodiscard]] std::size_t edge(int direction, int boundary) const {
    return static_cast<std::size_t>(direction) * (static_cast<std::size_t>(stages) - 1) + static_cast<std::size_t>(boundary);
  }
};

/// Checks a workload.
/// Throws: input_error unless the sizes agree, wires have room for one transfer at least, and every time is finite and not
/// negative.
/// Complexity: O(directions * stages + wires).
inline void validate(const workload& w) {
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  if (w.ranks < 1 || w.stages < 1 || w.directions < 1)
    throw input_error("a workload needs at least one rank, stage and direction");
  if (w.work.size() != size(w.directions) * size(w.stages))
    throw input_error("a workload needs work for every stage and direction");
  if (w.activations.size() != size(w.directions) * size(w.stages - 1) || w.gradients.size() != w.activations.size())
    throw input_error("a workload needs paths both ways over every boundary of every direction");
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

namespace detail {

/// Seconds that a rank takes for an action by itself, not joined with others.
[[nodiscard]] inline double seconds_of(const stage_work& w, action_kind kind) {
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

/// Checks that both belong together.
/// Throws: input_error unless the workload is one of the schedule's ranks, stages and directions.
inline void validate_fit(const workload& w, const schedule& order) {
  if (w.ranks == order.ranks && w.stages == order.stages && w.directions == order.directions) return;
  throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks, " + std::to_string(order.stages) + " stages and " +
                    std::to_string(order.directions) + " directions does not fit a workload of " + std::to_string(w.ranks) +
                    ", " + std::to_string(w.stages) + " and " + std::to_string(w.directions));
}

}  // namespace detail

/// The workload of a schedule whose rank r does, per microbatch and direction, what stage r of the pipeline does, however many
/// virtual stages it is cut into: they share the stage's times and bytes equally. A microbatch of a bidirectional schedule
/// costs a rank the same in either direction. Neighbouring ranks use the pipeline's links, one wire per direction, which a
/// transfer leaves to the next one before it arrives where it occupies them for less than all its time; ranks that are no
/// neighbours (the way back to the first rank in interleaved schedules) one as slow as the pipeline's slowest, by either number.
/// Throws: input_error for an invalid pipeline, or one whose stages are not the schedule's ranks.
/// Complexity: O(directions * stages + ranks^2).
[[nodiscard]] inline workload make_workload(const pipeline& p, const schedule& order) {
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
  const auto ranks = static_cast<std::size_t>(order.ranks);
  double slowest_s = 0, longest_occupied_s = 0;
  for (int i = 0; i + 1 < p.stages(); ++i) {
    slowest_s = std::max(slowest_s, p.slower_way_s(i));
    longest_occupied_s = std::max(longest_occupied_s, p.occupied_s(i));
  }

  std::vector<int> wire_of(ranks * ranks, -1);
  const auto leg = [&](int from, int to) {
    hop h;
    if (from == to) return tensor_path{.staged = false, .d2h = {}, .network = h, .h2d = {}};
    int& position = wire_of[static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to)];
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
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      w.activations.push_back(leg(order.rank(c, s), order.rank(c, s + 1)));
      w.gradients.push_back(leg(order.rank(c, s + 1), order.rank(c, s)));
    }
  return w;
}

}  // namespace hetsched
