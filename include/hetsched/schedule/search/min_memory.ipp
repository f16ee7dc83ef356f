// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/search/detail/order_bound.hpp>
#include <hetsched/schedule/search/min_memory.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<min_memory_result> min_memory(const pipeline& p, int microbatches, double makespan_s,
                                                      const auto_options& options) {
  if (!(makespan_s >= 0)) throw input_error("the makespan to keep is not a time >= 0");
  const double in_time_s = makespan_s * (1 + tolerance::rounding);
  const auto unlimited = auto_schedule(p, microbatches, options);
  if (!unlimited) return unlimited.why_not();
  if (unlimited->makespan_s > in_time_s)
    return refusal{.why = refusal::kind::infeasible,
                   .reason = "no schedule was found that ends within " + std::to_string(makespan_s) + " s: the best takes " +
                             std::to_string(unlimited->makespan_s) + " s, none less than " +
                             std::to_string(unlimited->lower_bound_s) + " s"};

  const auto largest = [](const std::vector<double>& peaks) { return *std::max_element(peaks.begin(), peaks.end()); };
  std::vector<double> candidates;
  for (std::size_t i = 0; i < p.forward_s.size(); ++i)
    for (int k = 1; k <= microbatches; ++k) candidates.push_back(k * (p.activation_bytes.empty() ? 1 : p.activation_bytes[i]));
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());

  const auto limited = [&](double cap) {
    auto_options tighter = options;
    if (tighter.memory_capacity.empty()) tighter.memory_capacity.assign(p.forward_s.size(), cap);
    for (auto& c : tighter.memory_capacity) c = std::min(c, cap);
    return tighter;
  };
  // First the proof: the least memory for which the bound allows the makespan. No schedule is looked for below it.
  // The bound knows one stage per rank only.
  auto low =
      options.cut_stages ? candidates.begin() : std::partition_point(candidates.begin(), candidates.end(), [&](double cap) {
        return detail::order_bound(detail::make_order_problem(p, microbatches, limited(cap))).seconds() > in_time_s;
      });
  min_memory_result result{.best = *unlimited, .peak_memory = largest(unlimited->peak_memory), .memory_lower_bound = 0};
  // Parts of activations make peaks between the candidates: then only the one below is ruled out.
  const bool whole = options.weight_backward_share == 0 || options.weight_backward_share == 1;
  if (!options.cut_stages && low != candidates.end() && (whole || low != candidates.begin()))
    result.memory_lower_bound = whole ? *low : *(low - 1);
  auto high = std::lower_bound(low, candidates.end(), result.peak_memory);
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    auto tried = auto_schedule(p, microbatches, limited(*middle));
    if (tried && tried->makespan_s <= in_time_s) {
      result.best = *std::move(tried);
      result.peak_memory = largest(result.best.peak_memory);
      high = std::lower_bound(low, middle, result.peak_memory);
    } else {
      low = middle + 1;
    }
  }
  return result;
}

HETSCHED_INLINE outcome<auto_result> auto_with_little_memory(const pipeline& p, int microbatches, const auto_options& options) {
  auto best = auto_schedule(p, microbatches, options);
  if (!best || options.memory_capacity.empty()) return best;
  const double in_time_s = best->makespan_s * 1.001, bound_s = best->lower_bound_s;
  const auto rank_of = best->order.rank_of;
  double enough = 1;
  for (double step = 0.5; step >= 1.0 / 32; step /= 2) {
    if (options.progress && !options.progress(best->makespan_s, bound_s)) break;
    auto less = options;
    for (auto& c : less.memory_capacity) c *= enough - step;
    auto tried = auto_schedule(p, microbatches, less);
    if (!tried || tried->makespan_s > in_time_s) continue;
    best = std::move(tried);
    enough -= step;
  }
  if (best->order.rank_of == rank_of) best->lower_bound_s = std::min(bound_s, best->makespan_s);
  return best;
}

}  // namespace hetsched
