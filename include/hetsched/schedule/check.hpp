// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

namespace detail {

[[nodiscard]] inline std::string to_text(action a) {
  return (a.kind == action_kind::forward ? "forward " : "backward ") + std::to_string(a.microbatch);
}

[[nodiscard]] inline std::string stage_text(std::size_t stage) { return "stage " + std::to_string(stage); }

/// What keeps a schedule from being a list of every forward and backward, each once per stage.
[[nodiscard]] inline std::vector<std::string> completeness_findings(const schedule& order) {
  std::vector<std::string> findings;
  if (order.microbatches < 1) findings.emplace_back("the schedule has no microbatches");
  if (order.stages.empty()) findings.emplace_back("the schedule has no stages");
  if (!findings.empty()) return findings;
  const auto microbatches = static_cast<std::size_t>(order.microbatches);
  std::vector<int> seen;
  for (std::size_t i = 0; i < order.stages.size(); ++i) {
    seen.assign(2 * microbatches, 0);
    for (const action a : order.stages[i]) {
      if (a.kind != action_kind::forward && a.kind != action_kind::backward)
        findings.push_back(stage_text(i) + " lists a transfer; a schedule holds forwards and backwards only");
      else if (a.microbatch < 0 || a.microbatch >= order.microbatches)
        findings.push_back(stage_text(i) + ": " + to_text(a) + " is not one of " + std::to_string(order.microbatches) +
                           " microbatches");
      else
        ++seen[2 * static_cast<std::size_t>(a.microbatch) + (a.kind == action_kind::backward)];
    }
    for (std::size_t k = 0; k < seen.size(); ++k) {
      if (seen[k] == 1) continue;
      const action a{k % 2 == 0 ? action_kind::forward : action_kind::backward, static_cast<int>(k / 2)};
      findings.push_back(stage_text(i) + ": " + to_text(a) +
                         (seen[k] == 0 ? " is missing" : " appears " + std::to_string(seen[k]) + " times"));
    }
  }
  return findings;
}

/// Runs stages until none can go on. `step(i)` does the next action of stage i if it can, and says whether it did;
/// it may enable the neighbours of i, nothing else. O(actions).
template <class Step>
void run_stages(std::size_t stages, Step step) {
  std::vector<std::size_t> ready;
  std::vector<char> listed(stages, 0);
  const auto list = [&](std::size_t i) {
    if (!std::exchange(listed[i], char{1})) ready.push_back(i);
  };
  for (std::size_t i = stages; i-- > 0;) list(i);
  while (!ready.empty()) {
    const std::size_t i = ready.back();
    ready.pop_back();
    listed[i] = 0;
    if (!step(i)) continue;
    while (step(i)) {
    }
    if (i > 0) list(i - 1);
    if (i + 1 < stages) list(i + 1);
  }
}

/// Deadlocks of a complete schedule in which every backward follows its forward, with channels that hold nothing: a send
/// and its receive are one event, and a receive waits until its stage has come to the action that needs it.
[[nodiscard]] inline std::vector<std::string> deadlock_findings(const schedule& order) {
  struct progress {
    std::vector<int> forwards, backwards;  // microbatches in the stage's order, which is the order of its sends
    std::size_t forwards_done = 0, backwards_done = 0;
  };
  const std::size_t count = order.stages.size();
  std::vector<progress> stages(count);
  for (std::size_t i = 0; i < count; ++i)
    for (const action a : order.stages[i])
      (a.kind == action_kind::forward ? stages[i].forwards : stages[i].backwards).push_back(a.microbatch);

  const auto next = [&](std::size_t i) { return order.stages[i][stages[i].forwards_done + stages[i].backwards_done]; };
  const auto finished = [&](std::size_t i) {
    return stages[i].forwards_done + stages[i].backwards_done == order.stages[i].size();
  };
  // The neighbour that sends what the next action of stage i needs; stage i itself when nothing is needed.
  const auto sender = [&](std::size_t i) {
    if (next(i).kind == action_kind::forward) return i > 0 ? i - 1 : i;
    return i + 1 < count ? i + 1 : i;
  };
  // What the sender's channel delivers next, and whether it has been computed.
  const auto offered = [&](std::size_t i) -> std::pair<int, bool> {
    const auto& from = stages[sender(i)];
    if (next(i).kind == action_kind::forward) {
      const std::size_t k = stages[i].forwards_done;
      return {from.forwards[k], from.forwards_done > k};
    }
    const std::size_t k = stages[i].backwards_done;
    return {from.backwards[k], from.backwards_done > k};
  };

  run_stages(count, [&](std::size_t i) {
    if (finished(i)) return false;
    const action a = next(i);
    if (sender(i) != i && offered(i) != std::pair{a.microbatch, true}) return false;
    ++(a.kind == action_kind::forward ? stages[i].forwards_done : stages[i].backwards_done);
    return true;
  });

  // Every stuck stage waits for a neighbour, so the causes are channels with unlike orders at their ends, and pairs of
  // neighbours that wait for each other. All other stuck stages wait for one of these.
  std::vector<std::string> findings;
  for (std::size_t i = 0; i < count; ++i) {
    if (finished(i)) continue;
    const action a = next(i);
    const std::size_t from = sender(i);
    const int first = offered(i).first;
    if (first != a.microbatch) {
      findings.push_back("deadlock: " + stage_text(from) + " sends the result of " + to_text({a.kind, first}) +
                         " before that of " + to_text(a) + ", but " + stage_text(i) + " takes them the other way round");
    } else if (from == i + 1 && !finished(from) && sender(from) == i && offered(from).first == next(from).microbatch) {
      const action b = next(from);  // a is a backward that waits for the next stage, b a forward that waits for this one
      findings.push_back("deadlock: " + stage_text(i) + " " + to_text(a) + " waits for " + stage_text(from) + " " + to_text(a) +
                         ", which comes after " + stage_text(from) + " " + to_text(b) + ", which waits for " + stage_text(i) +
                         " " + to_text(b) + ", which comes after " + stage_text(i) + " " + to_text(a));
    }
  }
  return findings;
}

}  // namespace detail

/// What is wrong with a schedule, one sentence each; empty if it is sound: every stage does every forward and backward once,
/// each backward after its forward, never more than in_flight_caps[i] microbatches between forward and backward on stage i
/// (no caps given: no limit), and no deadlock even with channels that hold nothing. There a send and its receive are one
/// event, one channel per boundary and direction delivers in the order of the sends, and a stage receives when it has come
/// to the action that needs the input; sends never block the sender's computation. A deadlock is reported with its cycle.
/// Findings of an incomplete schedule stop there, and so do those of a stage whose backward precedes its forward (itself a
/// deadlock). Throws input_error if caps are given but not one per stage. O(actions).
[[nodiscard]] inline std::vector<std::string> check(const schedule& order, const std::vector<int>& in_flight_caps = {}) {
  if (!in_flight_caps.empty() && in_flight_caps.size() != order.stages.size())
    throw input_error("in-flight caps need one entry per stage");
  auto findings = detail::completeness_findings(order);
  if (!findings.empty()) return findings;

  bool ordered = true;
  std::vector<char> started;
  for (std::size_t i = 0; i < order.stages.size(); ++i) {
    started.assign(static_cast<std::size_t>(order.microbatches), 0);
    int in_flight = 0, peak = 0;
    action at{};
    for (const action a : order.stages[i]) {
      if (a.kind == action_kind::forward) {
        started[static_cast<std::size_t>(a.microbatch)] = 1;
        if (++in_flight > peak) peak = in_flight, at = a;
      } else {
        --in_flight;
        if (started[static_cast<std::size_t>(a.microbatch)]) continue;
        ordered = false;
        findings.push_back(detail::stage_text(i) + ": " + detail::to_text(a) + " comes before " +
                           detail::to_text({action_kind::forward, a.microbatch}));
      }
    }
    if (!in_flight_caps.empty() && peak > in_flight_caps[i])
      findings.push_back(detail::stage_text(i) + " has " + std::to_string(peak) + " microbatches in flight from " +
                         detail::to_text(at) + " on, its cap is " + std::to_string(in_flight_caps[i]));
  }
  if (ordered)
    for (auto& finding : detail::deadlock_findings(order)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace hetsched
