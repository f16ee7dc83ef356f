// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders.hpp>
#include <hetsched/schedule/check.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// When each stage ends its last backward under the 1F1B family (GPipe: warm-up `microbatches` on every stage), in seconds
/// after the first forward. Equal bit for bit to simulate(p, one_f_one_b(warmups, microbatches)).stage_end_s, without a timeline.
/// Throws input_error for an invalid pipeline and as validate_warmups. O(S * microbatches) time, O(S + warmups[0]) memory.
[[nodiscard]] inline std::vector<double> stage_ends(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  validate(p);
  validate_warmups(warmups, microbatches);
  const auto count = warmups.size();
  if (count != p.forward_s.size()) throw input_error("a pipeline needs one warm-up count per stage");

  // Links belong to the stage that sends over them; the missing ones at both ends take no time.
  struct stage {
    double forward_s, backward_s, activation_s, gradient_s;
    double free_s = 0, activation_free_s = 0, gradient_free_s = 0;
    std::size_t slot = 0, ring_first = 0, ring_last = 0;
  };
  const auto capped = [&](std::size_t i) { return static_cast<std::size_t>(std::min(warmups[i], microbatches)); };
  std::vector<stage> stages;
  stages.reserve(count);
  // When activations that are on their way reach the next stage: one ring per sender, with room for those that the next
  // stage has not taken after a full round and for one more.
  std::vector<double> rings;
  rings.reserve(count + capped(0));
  std::vector<double> arrivals(capped(0), 0.0);

  for (std::size_t i = 0; i < count; ++i) {
    const auto k = static_cast<int>(i);
    const bool last = i + 1 == count;
    stage s{p.forward_s[i], p.backward_s[i], last ? 0.0 : p.activation_s(k), i == 0 ? 0.0 : p.gradient_s(k - 1)};
    for (std::size_t m = 0; m < capped(i); ++m) {
      s.free_s = std::max(s.free_s, arrivals[m]) + s.forward_s;
      s.activation_free_s = std::max(s.activation_free_s, s.free_s) + s.activation_s;
      arrivals[m] = s.activation_free_s;
    }
    s.slot = s.ring_first = rings.size();
    rings.push_back(0);
    if (!last)
      for (std::size_t m = capped(i + 1); m < capped(i); ++m) rings.push_back(arrivals[m]);
    s.ring_last = rings.size();
    stages.push_back(s);
  }

  // The oldest activation on its way from s; what s sent in this round is in its slot already.
  const auto take = [&](stage& s) {
    if (++s.slot == s.ring_last) s.slot = s.ring_first;
    return rings[s.slot];
  };
  std::size_t first_forward = 0;  // first stage with forwards left: counts never grow downstream
  for (std::size_t round = 0; round < static_cast<std::size_t>(microbatches); ++round) {
    double gradient = 0;
    for (std::size_t i = count; i-- > 0;) {
      stage& s = stages[i];
      s.free_s = std::max(s.free_s, gradient) + s.backward_s;
      gradient = s.gradient_free_s = std::max(s.gradient_free_s, s.free_s) + s.gradient_s;
    }
    while (first_forward < count && round + capped(first_forward) >= static_cast<std::size_t>(microbatches)) ++first_forward;
    if (first_forward == count) continue;
    double activation = first_forward == 0 ? 0.0 : take(stages[first_forward - 1]);
    for (std::size_t i = first_forward; i < count; ++i) {
      stage& s = stages[i];
      s.free_s = std::max(s.free_s, activation) + s.forward_s;
      s.activation_free_s = std::max(s.activation_free_s, s.free_s) + s.activation_s;
      rings[s.slot] = s.activation_free_s;
      activation = take(s);
    }
  }
  std::vector<double> ends;
  for (const auto& s : stages) ends.push_back(s.free_s);
  return ends;
}

/// Seconds from the first forward to the last backward: stage_ends of the first stage, which ends last.
[[nodiscard]] inline double makespan(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return stage_ends(p, warmups, microbatches).front();
}

/// A predicted iteration.
struct simulation {
  double makespan_s = 0;
  double bubble_ratio = 0;          ///< share of stages * makespan in which no stage computes
  double overlap_ratio = 1;         ///< share of the transfers' time in which the receiver was not idle for them
  std::vector<int> peak_in_flight;  ///< per stage: most microbatches between forward and backward
  std::vector<double> stage_end_s;  ///< per stage: end of its last action
  hetsched::timeline timeline;
};

/// Plays a schedule in any order of forwards and backwards. An action starts when its stage is free, everything before it
/// in the stage's order is done and its input has arrived. Links are full duplex; each direction moves one transfer at a
/// time, in the order in which they were produced, while stages compute. Arrived inputs wait in memory without limit.
/// Throws input_error for an invalid pipeline, an incomplete schedule, or one that does not fit the pipeline, and for a
/// deadlock, with the stages and actions that are stuck. O(actions).
[[nodiscard]] inline simulation simulate(const pipeline& p, const schedule& order) {
  validate(p);
  if (order.stages.size() != p.forward_s.size())
    throw input_error("a schedule of " + std::to_string(order.stages.size()) + " stages does not fit a pipeline of " +
                      std::to_string(p.forward_s.size()));
  if (const auto findings = detail::completeness_findings(order); !findings.empty()) throw input_error(findings.front());

  const std::size_t count = order.stages.size();
  const auto microbatches = static_cast<std::size_t>(order.microbatches);
  struct message {
    double sent_s = -1, arrived_s = -1;  // -1: not yet
  };
  struct stage {
    std::size_t forwards = 0, backwards = 0;
    double free_s = 0, activation_free_s = 0, gradient_free_s = 0;  // of the links over which it sends
  };
  std::vector<stage> stages(count);
  // Inputs of forwards and backwards by stage and microbatch. The first stage has its inputs from the start, the last one
  // gets those of its backwards from its own forwards.
  std::vector<message> activations(count * microbatches), gradients(count * microbatches);
  std::fill_n(activations.begin(), microbatches, message{0, 0});

  simulation result;
  result.peak_in_flight.assign(count, 0);
  result.timeline = {static_cast<int>(count), order.microbatches, {}};
  auto& actions = result.timeline.actions;
  actions.resize((4 * count - 2) * microbatches);
  // Every kind has one block of actions per place, which fills in order of time.
  const auto record = [&](action_kind kind, std::size_t place, std::size_t index, int microbatch, double start, double end) {
    actions[(4 * place + static_cast<std::size_t>(kind)) * microbatches + index] = {kind, static_cast<int>(place), microbatch,
                                                                                    start, end};
  };

  double exposed_s = 0;
  detail::run_stages(count, [&](std::size_t i) {
    stage& s = stages[i];
    if (s.forwards + s.backwards == order.stages[i].size()) return false;
    const auto [kind, microbatch] = order.stages[i][s.forwards + s.backwards];
    const bool forward = kind == action_kind::forward;
    const std::size_t slot = i * microbatches + static_cast<std::size_t>(microbatch);
    const message input = forward ? activations[slot] : gradients[slot];
    if (input.arrived_s < 0) return false;

    exposed_s += std::max(0.0, input.arrived_s - std::max(s.free_s, input.sent_s));
    const double start = std::max(s.free_s, input.arrived_s);
    const double end = s.free_s = start + (forward ? p.forward_s[i] : p.backward_s[i]);
    const std::size_t index = forward ? s.forwards++ : s.backwards++;
    record(kind, i, index, microbatch, start, end);
    if (s.forwards > s.backwards)
      result.peak_in_flight[i] = std::max(result.peak_in_flight[i], static_cast<int>(s.forwards - s.backwards));

    const auto send = [&](action_kind transfer, std::size_t boundary, double duration, double& link_free, message& to) {
      to.sent_s = std::max(link_free, end);
      to.arrived_s = link_free = to.sent_s + duration;
      record(transfer, boundary, index, microbatch, to.sent_s, to.arrived_s);
    };
    const auto k = static_cast<int>(i);
    if (forward && i + 1 < count)
      send(action_kind::send_activation, i, p.activation_s(k), s.activation_free_s, activations[slot + microbatches]);
    else if (forward)
      gradients[slot] = {end, end};
    else if (i > 0)
      send(action_kind::send_gradient, i - 1, p.gradient_s(k - 1), s.gradient_free_s, gradients[slot - microbatches]);
    return true;
  });

  std::string stuck;
  double compute_s = 0, transfer_s = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t done = stages[i].forwards + stages[i].backwards;
    if (done < order.stages[i].size())
      stuck +=
          (stuck.empty() ? "deadlock: " : ", ") + detail::stage_text(i) + " waits at " + detail::to_text(order.stages[i][done]);
    result.stage_end_s.push_back(stages[i].free_s);
    result.makespan_s = std::max(result.makespan_s, stages[i].free_s);
    compute_s += p.compute_s(static_cast<int>(i));
    if (i + 1 < count) transfer_s += p.round_trip_s(static_cast<int>(i));
  }
  if (!stuck.empty()) throw input_error(stuck);
  const auto m = static_cast<double>(order.microbatches);
  if (result.makespan_s > 0)
    result.bubble_ratio = std::max(0.0, 1 - m * compute_s / (static_cast<double>(count) * result.makespan_s));
  if (transfer_s > 0) result.overlap_ratio = std::max(0.0, 1 - exposed_s / (m * transfer_s));
  return result;
}

/// The same for the 1F1B family with these warm-up counts.
[[nodiscard]] inline simulation simulate(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return simulate(p, one_f_one_b(warmups, microbatches));
}

}  // namespace hetsched
