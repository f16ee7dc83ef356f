// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/activation_memory.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/check/detail/deadlock.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>

namespace hetsched::detail {

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
    const bool recomputed = index.find(action_kind::recompute, a.direction, a.stage, a.microbatch) >= 0;
    const auto c = change_of(costs.at(a.direction, a.stage), a.kind, recomputed);
    return std::pair<double, double>(c.taken, c.given_back);
  });
}

HETSCHED_INLINE std::vector<std::string> check(const schedule& order, const workload* costs, const check_options& options) {
  if (!options.in_flight_caps.empty() && std::cmp_not_equal(options.in_flight_caps.size(), order.ranks))
    throw input_error("in-flight caps need one entry per rank");
  if (costs) validate_fit(*costs, order);
  if (costs) expect_work(*costs);
  if (costs && !costs->memory_capacity.empty() && costs->memory_capacity.size() != as_size(order.ranks))
    throw input_error("memory capacities need one entry per rank");

  finding_list findings(options.most_findings);
  const auto sound = structure_findings(order, findings);
  if (!sound) return findings.take();
  const action_index& index = *sound;

  for (int r = 0; r < order.ranks; ++r) {
    const auto i = as_size(r);
    const auto where = [&](const memory_peak& peak) {
      return " from " + to_text(at(order.lanes[i].actions, peak.at)) + " on, its cap is ";
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
      if (peak.at >= 0 && peak.amount > costs->memory_capacity[i] * (1 + tolerance::sums))
        findings.add(rank_text(r) + " holds activations of " + amount_text(peak.amount) + where(peak) +
                     amount_text(costs->memory_capacity[i]));
    }
  }

  const auto asked = [&](send_semantics under) {
    return std::find(options.semantics.begin(), options.semantics.end(), under) != options.semantics.end();
  };
  // What runs with rendezvous runs with buffers, what gets stuck with buffers gets stuck with rendezvous.
  const char* how = "deadlock (rendezvous): ";
  auto stuck =
      asked(send_semantics::rendezvous) ? deadlocks(order, index, send_semantics::rendezvous) : std::vector<std::string>{};
  if (asked(send_semantics::buffered) && (!stuck.empty() || !asked(send_semantics::rendezvous)))
    if (auto buffered = deadlocks(order, index, send_semantics::buffered); !buffered.empty()) {
      stuck = std::move(buffered);
      how = "deadlock (buffered): ";
    }
  for (const auto& cycle : stuck) findings.add(how + cycle);
  return findings.take();
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<double> peak_memory(const schedule& order, const workload& costs) {
  detail::expect_work(costs);
  detail::validate_fit(costs, order);
  detail::validate_shape(order);
  const action_index index(order);
  std::vector<double> peaks;
  for (int r = 0; r < order.ranks; ++r) peaks.push_back(detail::bytes_peak(at(order.lanes, r), index, costs).amount);
  return peaks;
}

}  // namespace hetsched
