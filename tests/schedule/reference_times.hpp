// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched::test {

/// When every action of a compute-only schedule runs, straight from the definition: an action starts when the one before it
/// on its rank has ended and its inputs have arrived. It asks for nothing else of the library than the types.
struct reference_times {
  bool deadlock = false;
  std::vector<std::vector<double>> start;  ///< by lane and position; -1: never
  std::vector<std::vector<double>> end;
  double makespan = 0;
  std::vector<double> busy;   ///< per rank
  std::vector<double> first;  ///< start of the rank's first action
  std::vector<double> last;   ///< end of the rank's last action
  std::vector<double> peak;   ///< most bytes held at once

  [[nodiscard]] double span(int rank) const {
    return last[static_cast<std::size_t>(rank)] - first[static_cast<std::size_t>(rank)];
  }
  /// Idle time of a rank between its first and its last action.
  [[nodiscard]] double idle(int rank) const { return span(rank) - busy[static_cast<std::size_t>(rank)]; }
  /// The bubble where ranks need not start or stop together (zero bubble papers): of the rank that is idle longest within its
  /// span.
  [[nodiscard]] double span_bubble() const {
    double most = 0;
    for (std::size_t r = 0; r < busy.size(); ++r) most = std::max(most, idle(static_cast<int>(r)));
    return most;
  }
  /// The bubble over the whole iteration, of the rank that waits longest.
  [[nodiscard]] double bubble() const { return makespan - *std::min_element(busy.begin(), busy.end()); }
  [[nodiscard]] double most_held() const { return *std::max_element(peak.begin(), peak.end()); }
};

/// Transfers leave in the order in which their rank produces them. Preconditions: no wire carries transfers of two ranks.
inline reference_times times_of(const workload& w, const schedule& order) {
  using key = std::tuple<int, int, int>;  // direction, stage, microbatch
  std::map<key, double> activation_here, gradient_here, forward_end, input_end;
  std::vector<double> wire_free(w.wires.size(), 0.0);
  const auto carry = [&](const hop& h, double ready) {
    for (const int wire : h.wires)
      if (wire >= 0) ready = std::max(ready, wire_free[static_cast<std::size_t>(wire)]);
    for (const int wire : h.wires)
      if (wire >= 0) wire_free[static_cast<std::size_t>(wire)] = ready + h.occupied_s;
    return ready + h.occupied_s + h.latency_s;
  };
  const auto travel = [&](const tensor_path& way, double ready) {
    return way.staged ? carry(way.h2d, carry(way.network, carry(way.d2h, ready))) : carry(way.network, ready);
  };
  const auto seconds = [&](const action& a) {
    const auto& work = w.at(a.direction, a.stage);
    switch (a.kind) {
      case action_kind::forward:
        return work.forward_s;
      case action_kind::backward:
        return work.backward_s;
      case action_kind::backward_input:
        return work.backward_s - work.weight_backward_s;
      case action_kind::backward_weight:
        return work.weight_backward_s;
      default:
        return work.recompute_s;
    }
  };
  // Arrival of an action's inputs, or -1 while one of them is not there.
  const auto inputs = [&](const action& a) {
    double ready = 0;
    const auto need = [&](const std::map<key, double>& there, key k) {
      const auto it = there.find(k);
      ready = it == there.end() || ready < 0 ? -1 : std::max(ready, it->second);
    };
    const key own{a.direction, a.stage, a.microbatch};
    if (a.kind == action_kind::forward) {
      if (a.stage > 0) need(activation_here, own);
    } else if (a.kind == action_kind::backward_weight) {
      need(input_end, own);
    } else {
      need(forward_end, own);
      if (a.stage + 1 < order.stages) need(gradient_here, own);
    }
    return ready;
  };

  reference_times result;
  const auto lanes = order.lanes.size();
  result.start.resize(lanes);
  result.end.resize(lanes);
  result.busy.assign(lanes, 0);
  result.first.assign(lanes, 0);
  result.last.assign(lanes, 0);
  result.peak.assign(lanes, 0);
  for (std::size_t l = 0; l < lanes; ++l) {
    result.start[l].assign(order.lanes[l].actions.size(), -1);
    result.end[l].assign(order.lanes[l].actions.size(), -1);
  }
  std::vector<std::size_t> next(lanes, 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t l = 0; l < lanes; ++l) {
      const auto& list = order.lanes[l].actions;
      while (next[l] < list.size()) {
        std::size_t stop = next[l] + 1;
        while (stop < list.size() && list[stop].joined) ++stop;
        double begin = result.last[l], length = 0;
        for (std::size_t k = next[l]; k < stop && begin >= 0; ++k) {
          const double ready = inputs(list[k]);
          begin = ready < 0 ? -1 : std::max(begin, ready);
          length += seconds(list[k]);
        }
        if (begin < 0) break;
        if (stop - next[l] > 1) length *= w.fused_factor;
        const double finish = begin + length;
        if (next[l] == 0) result.first[l] = begin;
        result.last[l] = finish;
        result.busy[l] += length;
        for (std::size_t k = next[l]; k < stop; ++k) {
          const action& a = list[k];
          const key own{a.direction, a.stage, a.microbatch};
          result.start[l][k] = begin;
          result.end[l][k] = finish;
          if (a.kind == action_kind::forward) {
            forward_end[own] = finish;
            if (a.stage + 1 < order.stages)
              activation_here[{a.direction, a.stage + 1, a.microbatch}] = travel(w.activation(a.direction, a.stage), finish);
          } else if (a.kind == action_kind::backward || a.kind == action_kind::backward_input) {
            input_end[own] = finish;
            if (a.stage > 0)
              gradient_here[{a.direction, a.stage - 1, a.microbatch}] = travel(w.gradient(a.direction, a.stage - 1), finish);
          }
        }
        next[l] = stop;
        moved = true;
      }
      result.makespan = std::max(result.makespan, result.last[l]);
    }
  }
  for (std::size_t l = 0; l < lanes; ++l) {
    result.deadlock = result.deadlock || next[l] < order.lanes[l].actions.size();
    double held = 0;
    for (const action& a : order.lanes[l].actions) {
      const auto& work = w.at(a.direction, a.stage);
      if (a.kind == action_kind::forward) held += work.activation_bytes;
      if (a.kind == action_kind::backward) held -= work.activation_bytes;
      if (a.kind == action_kind::backward_input) held -= work.activation_bytes - work.weight_backward_bytes;
      if (a.kind == action_kind::backward_weight) held -= work.weight_backward_bytes;
      result.peak[l] = std::max(result.peak[l], held);
    }
  }
  return result;
}

/// Stages of one rank share its times and bytes equally; every rank takes f, b (whole) and w (of b) per microbatch, transfers
/// take nothing, and a microbatch counts as one byte on a rank.
inline workload equal_work(const schedule& order, double f, double b, double weight, double fused_factor = 1) {
  const auto ranks = static_cast<std::size_t>(order.ranks);
  pipeline p{.forward_s = std::vector<double>(ranks, f),
             .backward_s = std::vector<double>(ranks, b),
             .transfer_s = std::vector<double>(ranks - 1, 0.0),
             .weight_backward_s = std::vector<double>(ranks, weight)};
  auto w = make_workload(p, order);
  w.fused_factor = fused_factor;
  return w;
}

/// What is wrong with a compute-only schedule, or "": every microbatch passes every stage of exactly one direction once, on the
/// rank of that stage, with its backward whole or in two parts; joined actions are a backward after a forward.
inline std::string defect(const schedule& order) {
  if (static_cast<int>(order.lanes.size()) != order.ranks) return "one compute lane per rank expected";
  std::map<std::tuple<int, int, int>, int> seen;  // stage, microbatch, kind -> times
  std::map<int, int> direction_of;
  for (const auto& l : order.lanes)
    for (std::size_t k = 0; k < l.actions.size(); ++k) {
      const auto& a = l.actions[k];
      const std::string name = "rank " + std::to_string(l.rank) + ", position " + std::to_string(k);
      if (a.direction < 0 || a.direction >= order.directions || a.stage < 0 || a.stage >= order.stages)
        return name + ": no such stage";
      if (a.microbatch < 0 || a.microbatch >= order.microbatches) return name + ": no such microbatch";
      if (order.rank(a.direction, a.stage) != l.rank) return name + ": stage of another rank";
      if (direction_of.emplace(a.microbatch, a.direction).first->second != a.direction)
        return name + ": microbatch in two directions";
      if (a.joined && (k == 0 || a.kind != action_kind::backward || l.actions[k - 1].kind != action_kind::forward))
        return name + ": joined to what is no forward";
      if (++seen[{a.stage, a.microbatch, static_cast<int>(a.kind)}] > 1) return name + ": listed twice";
    }
  for (int s = 0; s < order.stages; ++s)
    for (int m = 0; m < order.microbatches; ++m) {
      const auto has = [&](action_kind k) { return seen.count({s, m, static_cast<int>(k)}) > 0; };
      const bool whole = has(action_kind::backward);
      if (!has(action_kind::forward) || whole == has(action_kind::backward_input) || whole == has(action_kind::backward_weight))
        return "stage " + std::to_string(s) + ", microbatch " + std::to_string(m) + ": not complete";
    }
  return "";
}

/// One line per rank: F0 for a forward of the rank's first stage, f0 of its second, I/i and W/w for the parts of a backward.
inline std::string lines(const schedule& order) {
  std::string out;
  for (const auto& l : order.lanes) {
    int first = order.stages;
    for (const auto& a : l.actions) first = std::min(first, a.stage);
    for (const auto& a : l.actions) {
      const bool second = order.directions > 1 ? a.direction != 0 : a.stage != first;
      const int kind = static_cast<int>(a.kind);
      out += std::string(a.joined                            ? "+"
                         : out.empty() || out.back() == '\n' ? ""
                                                             : " ") +
             (second ? "fbiwr" : "FBIWR")[kind] + std::to_string(a.microbatch);
    }
    out += "\n";
  }
  return out;
}

}  // namespace hetsched::test
