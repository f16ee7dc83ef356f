// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched::test {

inline std::string text(const workload& w) {
  const auto times = [](std::initializer_list<double> all) {
    std::string out;
    for (const double t : all) out += " " + std::to_string(t).substr(0, 6);
    return out;
  };
  const auto leg = [&](const hop& h) {
    std::string out = "[";
    for (const int wire : h.wires) out += std::to_string(wire) + " ";
    return out + times({h.occupied_s, h.latency_s}) + "]";
  };
  const auto way = [&](const tensor_path& r) { return r.staged ? leg(r.d2h) + leg(r.network) + leg(r.h2d) : leg(r.network); };
  std::string out = "fused " + std::to_string(w.fused_factor) + "\n";
  for (const auto& s : w.work) out += "work" + times({s.forward_s, s.backward_s, s.weight_backward_s, s.recompute_s}) + "\n";
  for (const auto& r : w.activations) out += "activation " + way(r) + "\n";
  for (const auto& r : w.gradients) out += "gradient " + way(r) + "\n";
  for (const auto& at : w.wires) out += "wire of " + std::to_string(at.capacity) + "\n";
  return out;
}

/// What random_schedule may list.
struct random_schedule_options {
  bool transfers = true;  ///< none or all transfers, in compute lanes or their own, staged, in groups
  bool parameters = true;
  bool swaps = true;  ///< exchange neighbours now and then: some schedules deadlock
};

/// A complete schedule of up to four ranks, six virtual stages anywhere and two directions, with everything that the language
/// has, in an order in which it could run one action at a time but for what is exchanged afterwards.
inline schedule random_schedule(random_source& random, const random_schedule_options& options = {}) {
  using enum action_kind;
  const int ranks = random.integer(1, 4), directions = random.integer(0, 3) == 0 ? 2 : 1;
  const int stages = random.integer(1, 6), microbatches = random.integer(1, 4);
  std::vector<int> rank_of;
  const bool regular = random.integer(0, 1) == 0;
  for (int c = 0; c < directions; ++c)
    for (int s = 0; s < stages; ++s) rank_of.push_back(regular ? (s + c) % ranks : random.integer(0, ranks - 1));
  auto order = make_schedule(ranks, microbatches, rank_of, directions);

  // How tensors cross each boundary: 0 not listed, 1 send and receive, 2 by way of the hosts.
  const int listed = options.transfers ? random.integer(0, 3) : 0;  // none, all sends, all staged, mixed
  std::vector<int> crossing(static_cast<std::size_t>(directions * stages * 2));
  for (int& x : crossing) x = listed == 3 ? random.integer(1, 2) : listed;
  const bool own_lanes = random.integer(0, 1) == 0;
  const int split = random.integer(0, 2), recomputing = random.integer(0, 3);  // never, sometimes, always (the rest: never)

  const auto lane_of = [&](int rank, stream s, int peer) -> lane& {
    if (!own_lanes) return order.lanes[static_cast<std::size_t>(rank)];
    for (std::size_t l = static_cast<std::size_t>(ranks); l < order.lanes.size(); ++l)
      if (order.lanes[l].rank == rank && order.lanes[l].stream == s && order.lanes[l].peer == peer) return order.lanes[l];
    order.lanes.push_back({.rank = rank, .stream = s, .peer = peer, .actions = {}});
    return order.lanes.back();
  };
  const auto list = [&](action_kind kind, int c, int s, int m, stream to, int peer = -1) {
    const int rank = order.rank(c, s);
    auto& l = to == stream::compute ? order.lanes[static_cast<std::size_t>(rank)] : lane_of(rank, to, peer);
    l.actions.push_back({kind, false, static_cast<std::int16_t>(c), s, m});
  };
  // Receiving ends are listed with their sending ends, or just before the computation that takes the tensor.
  const bool late = random.integer(0, 1) == 0;
  const auto cross = [&](int c, int from, int to, int m, bool sending) {
    const int a = order.rank(c, from), b = order.rank(c, to);
    if (a == b) return;
    const bool gradient = to < from;
    const int how = crossing[static_cast<std::size_t>((c * stages + from) * 2 + gradient)];
    if (how == 1 && sending) list(gradient ? send_gradient : send_activation, c, from, m, stream::send, b);
    if (how == 2 && sending) {
      list(gradient ? d2h_gradient : d2h_activation, c, from, m, stream::d2h);
      list(gradient ? network_gradient : network_activation, c, from, m, stream::network, b);
    }
    if (sending == late) return;
    if (how == 1) list(gradient ? receive_gradient : receive_activation, c, to, m, stream::receive, a);
    if (how == 2) list(gradient ? h2d_gradient : h2d_activation, c, to, m, stream::h2d);
  };

  if (options.parameters && random.integer(0, 3) == 0)
    for (int c = 0; c < directions; ++c)
      for (int s = 0; s < stages; ++s) list(all_gather, c, s, no_microbatch, stream::collective);

  // Per microbatch, what it has to do in its order; weight gradients can be put off.
  struct step {
    action_kind kind;
    int stage;
  };
  std::vector<int> direction_of;
  std::vector<std::vector<step>> todo(static_cast<std::size_t>(microbatches)), later(todo);
  for (int m = 0; m < microbatches; ++m) {
    auto& steps = todo[static_cast<std::size_t>(m)];
    direction_of.push_back(random.integer(0, directions - 1));
    for (int s = 0; s < stages; ++s) steps.push_back({forward, s});
    for (int s = stages; s-- > 0;) {
      if (recomputing == 2 || (recomputing == 1 && random.integer(0, 1) == 0)) steps.push_back({recompute, s});
      const bool halves = split == 2 || (split == 1 && random.integer(0, 1) == 0);
      steps.push_back({halves ? backward_input : backward, s});
    }
  }
  while (true) {
    std::vector<std::size_t> open;
    for (std::size_t m = 0; m < todo.size(); ++m)
      for (int k = 0; k < 3; ++k)
        if (k < 2 ? !todo[m].empty() : !later[m].empty()) open.push_back(m);
    if (open.empty()) break;
    const auto m = open[static_cast<std::size_t>(random.integer(0, static_cast<int>(open.size()) - 1))];
    const bool weight = !later[m].empty() && (todo[m].empty() || random.integer(0, 2) == 0);
    auto& from = weight ? later[m] : todo[m];
    const step next = from.front();
    from.erase(from.begin());
    const int c = direction_of[m], batch = static_cast<int>(m);
    const bool gradient = next.kind == backward || next.kind == backward_input;
    if (late && next.kind == forward && next.stage > 0) cross(c, next.stage - 1, next.stage, batch, false);
    if (late && gradient && next.stage + 1 < stages) cross(c, next.stage + 1, next.stage, batch, false);
    list(next.kind, c, next.stage, batch, stream::compute);
    if (next.kind == forward && next.stage + 1 < stages) cross(c, next.stage, next.stage + 1, batch, true);
    if (gradient && next.stage > 0) cross(c, next.stage, next.stage - 1, batch, true);
    if (next.kind == backward_input) later[m].push_back({backward_weight, next.stage});
  }
  if (options.parameters && random.integer(0, 1) == 0) {
    const bool scatter = random.integer(0, 1) == 0, reduce = random.integer(0, 1) == 0;
    for (int s = 0; s < stages; ++s)
      for (int c = 0; c < directions; ++c) {
        if (scatter) list(reduce_scatter, c, s, no_microbatch, stream::collective);
        if (reduce) list(reduce_gradients, c, s, no_microbatch, stream::collective);
        list(optimizer, c, s, no_microbatch, stream::compute);
      }
  }

  if (options.swaps && random.integer(0, 2) == 0)
    for (int k = random.integer(1, 4); k > 0; --k) {
      auto& actions = order.lanes[static_cast<std::size_t>(random.integer(0, static_cast<int>(order.lanes.size()) - 1))].actions;
      if (actions.size() < 2) continue;
      const auto at = static_cast<std::size_t>(random.integer(0, static_cast<int>(actions.size()) - 2));
      std::swap(actions[at], actions[at + 1]);
    }
  // Groups of transfers or reductions, and fused computations.
  const auto apart = [](action_kind k) { return is_transfer(k) || k == reduce_gradients; };
  if (random.integer(0, 1) == 0)
    for (auto& l : order.lanes)
      for (std::size_t k = 1; k < l.actions.size(); ++k)
        l.actions[k].joined = apart(l.actions[k].kind) == apart(l.actions[k - 1].kind) && random.integer(0, 4) == 0;
  return order;
}

/// Costs in whole numbers, few wires for all.
inline workload random_workload(random_source& random, const schedule& order) {
  workload w{.ranks = order.ranks,
             .stages = order.stages,
             .directions = order.directions,
             .work = {},
             .activations = {},
             .gradients = {},
             .wires = {},
             .memory_capacity = {},
             .fused_factor = random.integer(0, 1) == 0 ? 1.0 : 0.5};
  const auto even = [&](int most) { return 2.0 * random.integer(0, most / 2); };
  for (int k = 0; k < order.directions * order.stages; ++k) {
    stage_work s;
    s.forward_s = even(6);
    s.weight_backward_s = even(4);
    s.backward_s = s.weight_backward_s + even(6);
    s.recompute_s = even(4);
    s.activation_bytes = random.integer(1, 5);
    s.weight_backward_bytes = random.integer(0, static_cast<int>(s.activation_bytes));
    s.checkpoint_bytes = random.integer(0, 1);
    s.all_gather_s = even(4);
    s.reduce_scatter_s = even(4);
    s.reduce_gradients_s = even(4);
    s.optimizer_s = even(4);
    w.work.push_back(s);
  }
  const int wires = random.integer(0, 5);
  for (int k = 0; k < wires; ++k) w.wires.push_back({"wire " + std::to_string(k), random.integer(0, 2) == 0 ? 2 : 1});
  const auto leg = [&] {
    hop h;
    for (std::size_t k = 0; k < 3; ++k) {
      const int wire = random.integer(-1, wires - 1);
      if (std::find(h.wires.begin(), h.wires.end(), wire) == h.wires.end()) h.wires[k] = wire;
    }
    h.occupied_s = random.integer(0, 5);
    h.latency_s = random.integer(0, 3) == 0 ? random.integer(1, 3) : 0;
    return h;
  };
  const auto way = [&] { return tensor_path{.staged = random.integer(0, 3) == 0, .d2h = leg(), .network = leg(), .h2d = leg()}; };
  for (int k = 0; k < order.directions * (order.stages - 1); ++k) {
    w.activations.push_back(way());
    w.gradients.push_back(way());
  }
  return w;
}

}  // namespace hetsched::test
