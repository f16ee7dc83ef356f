// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/channels.hpp>
#include <hetsched/schedule/deadlock.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/text.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

struct check_options {
  /// Under which channels the schedule must run.
  std::vector<channels> semantics = {channels::buffered, channels::rendezvous};
  /// Per rank, or empty (no limits): how many activations it may hold, each from its forward until its backward, or its
  /// backward_weight where the backward is split, has ended.
  std::vector<int> in_flight_caps = {};
  /// More than these are not listed one by one.
  std::size_t most_findings = 100;
};

namespace detail {

[[nodiscard]] inline std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

/// A list of sentences that ends in a remark once it is full.
class finding_list {
 public:
  explicit finding_list(std::size_t most) : most_(most) {}
  void add(std::string finding) {
    if (findings_.size() < most_)
      findings_.push_back(std::move(finding));
    else if (findings_.size() == most_)
      findings_.emplace_back("there is more, not listed");
  }
  [[nodiscard]] bool empty() const { return findings_.empty(); }
  [[nodiscard]] bool full() const { return findings_.size() > most_; }
  [[nodiscard]] std::vector<std::string> take() { return std::move(findings_); }

 private:
  std::size_t most_;
  std::vector<std::string> findings_;
};

/// Sizes, placement and lanes that do not make a schedule.
inline void shape_findings(const schedule& order, finding_list& findings) {
  if (order.ranks < 1) findings.add("the schedule has no ranks");
  if (order.stages < 1) findings.add("the schedule has no stages");
  if (order.microbatches < 1) findings.add("the schedule has no microbatches");
  if (order.replicas < 1) findings.add("the schedule has no replicas");
  if (!findings.empty()) return;
  const auto ranks = static_cast<std::size_t>(order.ranks);
  if (order.rank_of.size() != static_cast<std::size_t>(order.replicas) * static_cast<std::size_t>(order.stages))
    findings.add("the placement has " + std::to_string(order.rank_of.size()) + " entries for " + std::to_string(order.stages) +
                 " stages of " + std::to_string(order.replicas) + " replicas");
  for (const int r : order.rank_of)
    if (r < 0 || r >= order.ranks) findings.add("the placement names rank " + std::to_string(r));
  if (order.lanes.size() < ranks) findings.add("the schedule has fewer lanes than ranks");
  std::size_t actions = 0;
  for (std::size_t i = 0; i < order.lanes.size(); ++i) {
    const auto& l = order.lanes[i];
    actions += l.actions.size();
    const bool compute = l.stream == stream::compute;
    if (i < ranks ? !compute || l.rank != static_cast<int>(i) : compute || l.rank < 0 || l.rank >= order.ranks)
      findings.add("lane " + std::to_string(i) + " is not " +
                   (i < ranks ? "the compute stream of " + rank_text(static_cast<int>(i)) : "another stream of a rank"));
    const bool pairwise = l.stream == stream::send || l.stream == stream::receive || l.stream == stream::network;
    if (pairwise ? l.peer < 0 || l.peer >= order.ranks || l.peer == l.rank : l.peer != -1)
      findings.add("lane " + std::to_string(i) + " has peer " + std::to_string(l.peer));
    if (!l.actions.empty() && l.actions.front().joined)
      findings.add(rank_text(l.rank) + " " + to_text(l.actions.front()) + " is joined to nothing");
  }
  if (is_sparse(order, actions))
    findings.add("the schedule lists " + std::to_string(actions) + " actions only, for " + std::to_string(order.microbatches) +
                 " microbatches");
}

[[nodiscard]] inline bool stream_takes(stream s, action_kind k) {
  using enum action_kind;
  switch (s) {
    case stream::compute:
      return true;
    case stream::send:
      return is_send(k);
    case stream::receive:
      return is_receive(k);
    case stream::d2h:
      return k == d2h_activation || k == d2h_gradient;
    case stream::network:
      return k == network_activation || k == network_gradient;
    case stream::h2d:
      return k == h2d_activation || k == h2d_gradient;
    case stream::collective:
      return is_parameter(k) && k != optimizer;
  }
  return false;
}

/// Actions that the schedule cannot have, or not in that lane.
inline void action_findings(const schedule& order, finding_list& findings) {
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      const bool whole = is_parameter(a.kind);
      const auto says = [&](const std::string& what) { findings.add(rank_text(l.rank) + " " + to_text(a) + " " + what); };
      if (static_cast<int>(a.kind) >= action_kinds)
        findings.add(rank_text(l.rank) + " lists an action of no kind");
      else if (a.stage < 0 || a.stage >= order.stages)
        says("is not of one of " + std::to_string(order.stages) + " stages");
      else if (a.replica < 0 || a.replica >= order.replicas)
        says("is not of one of " + std::to_string(order.replicas) + " replicas");
      else if (whole ? a.microbatch != no_microbatch : a.microbatch < 0 || a.microbatch >= order.microbatches)
        says(whole ? "takes no microbatch" : "is not of one of " + std::to_string(order.microbatches) + " microbatches");
      else if (order.rank(a.replica, a.stage) != l.rank)
        says("belongs to rank " + std::to_string(order.rank(a.replica, a.stage)));
      else if (!stream_takes(l.stream, a.kind))
        says("does not belong to a " + std::string(stream_names[static_cast<std::size_t>(l.stream)]) + " stream");
      else if (is_transfer(a.kind)) {
        const int stage = peer_stage(a);
        if (stage < 0 || stage >= order.stages)
          says("crosses no boundary between stages");
        else if (order.rank(a.replica, stage) == l.rank)
          says("stays on its rank");
        else if (l.peer >= 0 && l.peer != order.rank(a.replica, stage))
          says("is listed in the lane for rank " + std::to_string(l.peer) + ", but goes to or comes from rank " +
               std::to_string(order.rank(a.replica, stage)));
      }
    }
}

/// What keeps a schedule from listing everything that its microbatches need, once.
inline void completeness_findings(const schedule& order, const action_index& index, finding_list& findings) {
  using enum action_kind;
  int number = 0;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      const bool repeats = a.kind == all_gather || a.kind == release;
      const int m = is_parameter(a.kind) ? 0 : a.microbatch;
      if (!repeats && index.find(a.kind, a.replica, a.stage, m) != number) findings.add(to_text(a) + " is listed twice");
      ++number;
    }

  const bool direct = index.lists(send_activation) || index.lists(receive_activation) || index.lists(send_gradient) ||
                      index.lists(receive_gradient);
  bool staged = false;
  for (const auto k : {d2h_activation, network_activation, h2d_activation, d2h_gradient, network_gradient, h2d_gradient})
    staged = staged || index.lists(k);

  for (int m = 0; m < order.microbatches && !findings.full(); ++m) {
    const auto listed = [&](action_kind k, int c, int s) { return index.find(k, c, s, m) >= 0; };
    const auto missing = [&](action_kind k, int c, int s) {
      findings.add(to_text({.kind = k, .replica = static_cast<std::int16_t>(c), .stage = s, .microbatch = m}) + " is missing");
    };
    // A microbatch belongs to the replica that starts it, or else to the first that has any part of it.
    int own = -1;
    for (int c = 0; c < order.replicas; ++c)
      if (listed(forward, c, 0)) {
        if (own >= 0)
          findings.add("microbatch " + std::to_string(m) + " runs through replicas " + std::to_string(own) + " and " +
                       std::to_string(c));
        else
          own = c;
      }
    for (int c = 0; c < order.replicas && own < 0; ++c)
      for (int s = 0; s < order.stages && own < 0; ++s)
        for (const auto k : {forward, backward, backward_input, backward_weight})
          if (listed(k, c, s)) own = c;
    own = std::max(own, 0);

    for (int c = 0; c < order.replicas; ++c)
      for (int s = 0; s < order.stages; ++s) {
        if (c != own) {
          for (const auto k : {forward, backward, backward_input, backward_weight, recompute})
            if (listed(k, c, s))
              findings.add(to_text({.kind = k, .replica = static_cast<std::int16_t>(c), .stage = s, .microbatch = m}) +
                           " is of a microbatch that runs through replica " + std::to_string(own));
          continue;
        }
        if (!listed(forward, c, s)) missing(forward, c, s);
        const bool whole = listed(backward, c, s), input = listed(backward_input, c, s), weight = listed(backward_weight, c, s);
        if (whole && (input || weight))
          findings.add(to_text({.kind = backward, .replica = static_cast<std::int16_t>(c), .stage = s, .microbatch = m}) +
                       " is listed whole and in parts");
        else if (!whole && !input && !weight)
          missing(backward, c, s);
        else if (!whole && !input)
          missing(backward_input, c, s);
        else if (!whole && !weight)
          missing(backward_weight, c, s);
      }
    if (!direct && !staged) continue;
    for (int c = 0; c < order.replicas; ++c)
      for (int s = 0; s + 1 < order.stages; ++s) {
        if (order.rank(c, s) == order.rank(c, s + 1)) continue;
        const auto crossing = [&](int from, int to, action_kind send, action_kind receive, action_kind d2h, action_kind network,
                                  action_kind h2d) {
          const bool one_leg = listed(send, c, from) || listed(receive, c, to);
          const bool three_legs = listed(d2h, c, from) || listed(network, c, from) || listed(h2d, c, to);
          if (one_leg && three_legs)
            findings.add(to_text({.kind = forward, .replica = static_cast<std::int16_t>(c), .stage = from, .microbatch = m}) +
                         ": what it sends to stage " + std::to_string(to) + " is listed in one leg and in three");
          if (c != own) {
            if (one_leg || three_legs)
              findings.add("microbatch " + std::to_string(m) + " runs through replica " + std::to_string(own) +
                           ", but is sent to stage " + std::to_string(to) + " of replica " + std::to_string(c));
            return;
          }
          if (three_legs) {
            if (!listed(d2h, c, from)) missing(d2h, c, from);
            if (!listed(network, c, from)) missing(network, c, from);
            if (!listed(h2d, c, to)) missing(h2d, c, to);
          } else {
            if (!listed(send, c, from)) missing(send, c, from);
            if (!listed(receive, c, to)) missing(receive, c, to);
          }
        };
        crossing(s, s + 1, send_activation, receive_activation, d2h_activation, network_activation, h2d_activation);
        crossing(s + 1, s, send_gradient, receive_gradient, d2h_gradient, network_gradient, h2d_gradient);
      }
  }
  for (int s = 0; s < order.stages && index.lists(reduce_gradients); ++s) {
    int listed = 0;
    for (int c = 0; c < order.replicas; ++c) listed += index.find(reduce_gradients, c, s, 0) >= 0;
    if (listed != 0 && listed != order.replicas)
      findings.add(std::to_string(s) + "REDUCE_GRAD is listed for " + std::to_string(listed) + " of " +
                   std::to_string(order.replicas) + " replicas");
  }
}

/// The most that a rank's compute lane holds at once, and where that is first reached.
struct memory_peak {
  double amount = 0;
  int at = -1;  ///< position in the lane, -1: it never holds anything
};

/// Prefix sums over a compute lane of what change(action) takes and gives back; an event takes all before it gives back.
template <class Change>
[[nodiscard]] memory_peak peak_of(const lane& l, Change change) {
  memory_peak peak;
  double held = 0, given_back = 0;
  for (std::size_t k = 0; k < l.actions.size(); ++k) {
    const auto& a = l.actions[k];
    if (!a.joined) held -= std::exchange(given_back, 0.0);
    if (!is_compute(a.kind)) continue;
    const std::pair<double, double> c = change(a);
    held += c.first;
    given_back += c.second;
    if (held > peak.amount) peak = {held, static_cast<int>(k)};
  }
  return peak;
}

[[nodiscard]] inline memory_peak in_flight_peak(const lane& l) {
  return peak_of(l, [](const action& a) {
    const auto c = change_of(stage_work{}, a.kind, false);
    return std::pair<double, double>(c.begun, c.ended);
  });
}

[[nodiscard]] inline memory_peak bytes_peak(const lane& l, const action_index& index, const workload& costs) {
  return peak_of(l, [&](const action& a) {
    const bool recomputed = index.find(action_kind::recompute, a.replica, a.stage, a.microbatch) >= 0;
    const auto c = change_of(costs.at(a.replica, a.stage), a.kind, recomputed);
    return std::pair<double, double>(c.taken, c.given_back);
  });
}

[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const workload* costs, const check_options& options) {
  if (!options.in_flight_caps.empty() && options.in_flight_caps.size() != static_cast<std::size_t>(order.ranks))
    throw input_error("in-flight caps need one entry per rank");
  if (costs && (costs->ranks != order.ranks || costs->stages != order.stages || costs->replicas != order.replicas))
    throw input_error("the workload is one of other ranks, stages or replicas than the schedule's");
  if (costs && !costs->memory_capacity.empty() && costs->memory_capacity.size() != static_cast<std::size_t>(order.ranks))
    throw input_error("memory capacities need one entry per rank");

  finding_list findings(options.most_findings);
  shape_findings(order, findings);
  if (findings.empty()) action_findings(order, findings);
  if (!findings.empty()) return findings.take();
  const action_index index(order);
  completeness_findings(order, index, findings);
  if (!findings.empty()) return findings.take();

  for (int r = 0; r < order.ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const auto where = [&](const memory_peak& peak) {
      return " from " + to_text(order.lanes[i].actions[static_cast<std::size_t>(peak.at)]) + " on, its cap is ";
    };
    if (!options.in_flight_caps.empty()) {
      const auto peak = in_flight_peak(order.lanes[i]);
      if (peak.at >= 0 && peak.amount > options.in_flight_caps[i])
        findings.add(rank_text(r) + " has " + amount_text(peak.amount) + " microbatches in flight" + where(peak) +
                     std::to_string(options.in_flight_caps[i]));
    }
    if (costs && !costs->memory_capacity.empty()) {
      const auto peak = bytes_peak(order.lanes[i], index, *costs);
      // Sums of shares of a whole round differently from the whole.
      if (peak.at >= 0 && peak.amount > costs->memory_capacity[i] * (1 + 1e-9))
        findings.add(rank_text(r) + " holds activations of " + amount_text(peak.amount) + where(peak) +
                     amount_text(costs->memory_capacity[i]));
    }
  }

  const auto asked = [&](channels under) {
    return std::find(options.semantics.begin(), options.semantics.end(), under) != options.semantics.end();
  };
  // What runs with rendezvous runs with buffers, what gets stuck with buffers gets stuck with rendezvous.
  const char* how = "deadlock (rendezvous): ";
  auto stuck = asked(channels::rendezvous) ? deadlocks(order, index, channels::rendezvous) : std::vector<std::string>{};
  if (asked(channels::buffered) && (!stuck.empty() || !asked(channels::rendezvous)))
    if (auto buffered = deadlocks(order, index, channels::buffered); !buffered.empty()) {
      stuck = std::move(buffered);
      how = "deadlock (buffered): ";
    }
  for (const auto& cycle : stuck) findings.add(how + cycle);
  return findings.take();
}

}  // namespace detail

/// What is wrong with a schedule, one sentence each; empty if it is sound:
/// * complete and unique: every microbatch passes through the stages of one replica, on the ranks of the placement, with one
///   forward and either a backward or a backward_input and a backward_weight; and if any transfer is listed, all are, both ends;
/// * no rank holds more than its cap;
/// * free of deadlock under `channels`, buffered and rendezvous. The finding names the cycle: each action waits for the next,
///   or is behind it in its lane. A deadlock with buffers is one under rendezvous, too, and is reported as the former only.
/// Of a schedule that is not complete the rest is not checked. Where no transfer is listed, under rendezvous a rank receives
/// when it has come to the action that takes the tensor, and a boundary delivers in the order in which its tensors were
/// computed. Legs through host memory (network, h2d) do not wait for each other's ranks.
/// Throws input_error for caps that are not one per rank. O(actions + replicas * stages * microbatches).
[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const check_options& options = {}) {
  return detail::check(order, nullptr, options);
}

/// The same, and that no rank's activations exceed the workload's memory capacity. Throws input_error for a workload of other
/// ranks, stages or replicas.
[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const workload& costs,
                                                    const check_options& options = {}) {
  return detail::check(order, &costs, options);
}

/// Per rank, the most activation bytes held at once, in the workload's unit: prefix sums over the compute lanes, which is what
/// any execution reaches. Precondition: check(order) is empty. O(actions).
[[nodiscard]] inline std::vector<double> peak_memory(const schedule& order, const workload& costs) {
  const action_index index(order);
  std::vector<double> peaks;
  for (int r = 0; r < order.ranks; ++r)
    peaks.push_back(detail::bytes_peak(order.lanes[static_cast<std::size_t>(r)], index, costs).amount);
  return peaks;
}

}  // namespace hetsched
