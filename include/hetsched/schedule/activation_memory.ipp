// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/activation_memory.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string amount_text(double x) {
  if (x > -1e15 && x < 1e15 && x == static_cast<double>(static_cast<long long>(x)))
    return std::to_string(static_cast<long long>(x));
  auto text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

HETSCHED_INLINE memory_change change_of(const stage_work& w, action_kind kind, bool recomputed) {
  switch (kind) {
    case action_kind::forward:
      return {.taken = recomputed ? w.checkpoint_bytes : w.activation_bytes, .begun = 1};
    case action_kind::recompute:
      return {.taken = w.activation_bytes - w.checkpoint_bytes};
    case action_kind::backward:
      return {.given_back = w.activation_bytes, .ended = 1};
    case action_kind::backward_input:
      return {.given_back = w.activation_bytes - w.weight_backward_bytes};
    case action_kind::backward_weight:
      return {.given_back = w.weight_backward_bytes, .ended = 1};
    default:
      return {};
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<std::vector<memory_step>> memory_over_time(const workload& w, const timeline& t) {
  detail::expect_work(w);
  detail::validate(t);
  for (const auto& a : t.actions)
    if (is_compute(a.what.kind) && (a.what.direction >= w.directions || a.what.stage >= w.stages || a.what.microbatch < 0 ||
                                    a.what.microbatch >= t.microbatches))
      throw input_error("a timeline of " + std::to_string(t.microbatches) + " microbatches lists " + to_text(a.what) +
                        ", the workload has " + std::to_string(w.stages) + " stages and " + std::to_string(w.directions) +
                        " directions");
  const auto slot = [&](const action& a) {
    return (as_size(a.direction) * as_size(w.stages) + as_size(a.stage)) * as_size(t.microbatches) + as_size(a.microbatch);
  };
  std::vector<std::size_t> recomputed;
  for (const auto& a : t.actions)
    if (a.what.kind == action_kind::recompute) recomputed.push_back(slot(a.what));
  std::sort(recomputed.begin(), recomputed.end());

  std::vector<std::vector<memory_step>> result(as_size(t.ranks));
  std::vector<double> held(as_size(t.ranks));
  const auto change = [&](int rank, double time_s, double bytes) {
    if (bytes == 0) return;
    const auto r = as_size(rank);
    held[r] += bytes;
    result[r].push_back({time_s, held[r]});
  };
  for (std::size_t first = 0, end = 0; first < t.actions.size(); first = end) {
    end = first + 1;
    if (!is_compute(t.actions[first].what.kind)) continue;
    const auto& event = t.actions[first];
    while (end < t.actions.size() && t.actions[end].what.joined && t.actions[end].rank == event.rank &&
           t.actions[end].start_s == event.start_s)
      ++end;
    double taken = 0, given_back = 0;
    for (std::size_t k = first; k < end; ++k) {
      const action& a = t.actions[k].what;
      if (!is_compute(a.kind)) continue;
      const auto c = detail::change_of(w.at(a.direction, a.stage), a.kind,
                                       std::binary_search(recomputed.begin(), recomputed.end(), slot(a)));
      taken += c.taken;
      given_back += c.given_back;
    }
    change(event.rank, event.start_s, taken);
    change(event.rank, event.end_s, -given_back);
  }
  return result;
}

}  // namespace hetsched
