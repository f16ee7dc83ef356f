// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/action.hpp>

#include "../sanitizer_share.hpp"

namespace hetsched::test {

struct sound_options {
  bool transfers = false;     ///< list them
  bool groups = false;        ///< let some of them take place together
  bool fused = false;         ///< let some forwards and backwards be one event
  bool parameters = false;    ///< list gatherings, reductions and optimizers
  bool out_of_order = false;  ///< let microbatches overtake each other on boundaries between ranks
};

inline sound_options random_sound_options(random_source& random) {
  sound_options options;
  options.transfers = random.integer(0, 2) > 0;
  options.groups = random.integer(0, 1) == 1;
  options.fused = random.integer(0, 1) == 1;
  options.parameters = random.integer(0, 3) == 0;
  return options;
}

/// Plain, interleaved, in a V, anywhere, or in both directions.
inline schedule random_map(random_source& random) {
  const int ranks = random.integer(1, 5), microbatches = random.integer(1, 6);
  const int way = random.integer(0, 4);
  std::vector<int> rank_of;
  if (way == 3)
    for (int s = random.integer(1, 2 * ranks); s > 0; --s) rank_of.push_back(random.integer(0, ranks - 1));
  else
    for (int s = 0; s < (way == 0 ? ranks : 2 * ranks); ++s)
      rank_of.push_back(s < ranks ? s : way == 1 ? s - ranks : 2 * ranks - 1 - s);
  return make_schedule(ranks, microbatches, rank_of, way == 4 ? 2 : 1);
}

/// A sound schedule: the record of a random execution. Whoever can do something next is drawn by lot; transfers take place at
/// both ends at once and in the order of their channel; and unless out_of_order, tensors are taken in the order in which their
/// boundary brings them.
inline schedule sound_schedule(random_source& random, const sound_options& options) {
  using enum action_kind;
  schedule order = random_map(random);
  const auto rank_of = [&](int c, int s) { return order.rank(c, s); };

  struct tensor {
    int direction, stage, microbatch;
    bool gradient;
  };
  struct stage_state {
    std::deque<int> inbox[2];                       // activations and gradients that have come
    std::vector<int> forwards, recomputed, inputs;  // done and not used up
    bool splits = false, recomputes = false;
    std::vector<int>& ready() { return recomputes ? recomputed : forwards; }
  };
  std::map<std::array<int, 2>, stage_state> states;         // by direction and stage
  std::map<std::pair<int, int>, std::deque<tensor>> wires;  // by rank and rank
  const double eagerness = random.uniform(0.1, 1.0);        // of forwards

  const auto list = [&](int c, int s, action_kind kind, int m, bool joined) {
    order.lanes[static_cast<std::size_t>(rank_of(c, s))].actions.push_back({kind, joined, static_cast<std::int16_t>(c), s, m});
  };
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s < order.stages; ++s) {
      states[{c, s}].splits = random.integer(0, 1) == 1;
      states[{c, s}].recomputes = random.integer(0, 3) == 0;
      if (options.parameters) list(c, s, all_gather, no_microbatch, false);
    }
  for (int m = 0; m < order.microbatches; ++m) {
    auto& queue = states[{random.integer(0, order.directions - 1), 0}].inbox[0];
    queue.insert(queue.begin() + random.integer(0, static_cast<int>(queue.size())), m);
  }

  const auto arrive = [&](const tensor& t) { states[{t.direction, t.stage}].inbox[t.gradient].push_back(t.microbatch); };
  const auto dispatch = [&](const tensor& t) {
    const int from = rank_of(t.direction, t.stage + (t.gradient ? 1 : -1)), to = rank_of(t.direction, t.stage);
    if (from != to && options.transfers)
      wires[{from, to}].push_back(t);
    else
      arrive(t);
  };
  const auto draw = [&](auto& queue, bool any) {
    const int at = any ? random.integer(0, static_cast<int>(queue.size()) - 1) : 0;
    const auto m = queue[static_cast<std::size_t>(at)];
    queue.erase(queue.begin() + at);
    return m;
  };

  struct step {
    int c, s;
    action_kind kind;
  };
  const auto possible = [&](int rank) {
    std::vector<step> steps;
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s < order.stages; ++s) {
        if (rank_of(c, s) != rank) continue;
        auto& state = states[{c, s}];
        if (!state.inbox[0].empty()) steps.push_back({c, s, forward});
        if (state.recomputes && !state.forwards.empty()) steps.push_back({c, s, recompute});
        const auto& gradients = state.inbox[1];
        if (s == order.stages - 1
                ? !state.ready().empty()
                : !gradients.empty() && std::count(state.ready().begin(), state.ready().end(), gradients.front()) > 0)
          steps.push_back({c, s, backward});
        if (!state.inputs.empty()) steps.push_back({c, s, backward_weight});
      }
    return steps;
  };
  // Lists a step; what it sends leaves after its event.
  const auto run = [&](const step& x, bool joined, std::vector<tensor>& sent) {
    const auto [c, s, kind] = x;
    auto& state = states[{c, s}];
    int m = 0;
    if (kind == forward) {
      const bool any = s > 0 && (options.out_of_order || options.transfers || rank_of(c, s - 1) == rank_of(c, s));
      m = draw(state.inbox[0], any);
      state.forwards.push_back(m);
      if (s + 1 < order.stages) sent.push_back({c, s + 1, m, false});
    } else if (kind == recompute) {
      m = draw(state.forwards, true);
      state.recomputed.push_back(m);
    } else if (kind == backward) {
      auto& ready = state.ready();
      if (s == order.stages - 1) {
        m = draw(ready, true);
      } else {
        m = draw(state.inbox[1], false);
        ready.erase(std::find(ready.begin(), ready.end(), m));
      }
      if (state.splits) state.inputs.push_back(m);
      if (s > 0) sent.push_back({c, s - 1, m, true});
    } else {
      m = draw(state.inputs, true);
    }
    list(c, s, kind == backward && state.splits ? backward_input : kind, m, joined);
  };

  while (true) {
    std::vector<std::pair<int, int>> loaded;
    for (const auto& [pair, queue] : wires)
      if (!queue.empty()) loaded.push_back(pair);
    std::vector<int> workers;
    for (int r = 0; r < order.ranks; ++r)
      if (!possible(r).empty()) workers.push_back(r);
    if (workers.empty() && loaded.empty()) break;

    if (!loaded.empty() && (workers.empty() || random.integer(0, 2) == 0)) {
      std::vector<char> grouped(static_cast<std::size_t>(order.ranks), 0);
      for (int more = options.groups ? random.integer(1, 4) : 1; more > 0 && !loaded.empty(); --more) {
        const auto [from, to] = loaded[static_cast<std::size_t>(random.integer(0, static_cast<int>(loaded.size()) - 1))];
        const auto t = draw(wires[{from, to}], false);
        const int sender = t.stage + (t.gradient ? 1 : -1);
        list(t.direction, sender, t.gradient ? send_gradient : send_activation, t.microbatch,
             std::exchange(grouped[static_cast<std::size_t>(from)], char{1}) != 0);
        list(t.direction, t.stage, t.gradient ? receive_gradient : receive_activation, t.microbatch,
             std::exchange(grouped[static_cast<std::size_t>(to)], char{1}) != 0);
        arrive(t);
        std::erase_if(loaded, [&](const auto& pair) { return wires[pair].empty(); });
      }
      continue;
    }

    const int rank = workers[static_cast<std::size_t>(random.integer(0, static_cast<int>(workers.size()) - 1))];
    const auto steps = possible(rank);
    const auto lot = [&] { return steps[static_cast<std::size_t>(random.integer(0, static_cast<int>(steps.size()) - 1))]; };
    auto x = lot();
    if (x.kind == forward && random.uniform() > eagerness) x = lot();
    std::vector<tensor> sent;
    run(x, false, sent);
    const auto fusible = [](action_kind k) { return k == forward || k == backward; };
    if (options.fused && fusible(x.kind) && random.integer(0, 2) == 0)
      for (const auto& y : steps)  // of before x, so not what x makes possible
        if (fusible(y.kind) && y.kind != x.kind && (y.c != x.c || y.s != x.s)) {
          run(y, true, sent);
          break;
        }
    for (const auto& t : sent) dispatch(t);
  }

  for (int s = 0; s < order.stages && options.parameters; ++s) {
    const bool scatters = random.integer(0, 1) == 1, optimizes = random.integer(0, 1) == 1;
    const bool reduces = order.directions == 2 || random.integer(0, 1) == 1;
    const auto every_direction = [&](action_kind kind) {
      for (int c = 0; c < order.directions; ++c) list(c, s, kind, no_microbatch, false);
    };
    every_direction(release);
    if (scatters) every_direction(reduce_scatter);
    if (reduces) every_direction(reduce_gradients);
    if (optimizes) every_direction(optimizer);
  }
  return order;
}

}  // namespace hetsched::test
