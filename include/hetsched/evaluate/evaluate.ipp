// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/evaluate.hpp>

namespace hetsched {

HETSCHED_INLINE outcome<evaluation> evaluate(const cluster& hardware, const costs_by_size& models, plan p,
                                             const evaluate_options& options) {
  detail::expect_training(p.objective);
  if (p.pipelines.empty()) throw input_error("a plan needs at least one pipeline");
  detail::expect_natural(options.flops_per_sample, "flops_per_sample");
  if (!(options.epsilon >= 0 && options.epsilon <= 1)) throw input_error("epsilon must lie in [0, 1]");
  std::vector<std::pair<int, any_cost_model>> known;
  const costs_by_size costs_for = [&](int size) -> const any_cost_model& {
    for (const auto& k : known)
      if (k.first == size) return k.second;
    return known.emplace_back(size, models(size)).second;
  };
  std::vector<std::vector<detail::priced_parts>> priced(p.pipelines.size());
  const int size = p.pipelines.front().microbatch_size;
  validate(hardware, p, costs_for(size).layer_count());
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    if (auto why = detail::price(hardware, costs_for, p, l, priced[l])) return *std::move(why);
    if (auto why = detail::price_copies(hardware, costs_for, p, l, priced[l])) return *std::move(why);
  }
  if (auto why = detail::price_reductions(costs_for(size), p)) return *std::move(why);
  auto found = detail::evaluate_priced(hardware, std::move(p), options);
  if (!found) return found;
  bool several = false;
  for (std::size_t l = 0; l < priced.size(); ++l)
    for (std::size_t i = 0; i < priced[l].size(); ++i) {
      if (priced[l][i].parts.size() == 1) continue;
      detail::tell_fullest(hardware, *found, l, i, priced[l][i]);
      several = true;
    }
  if (several) found->shortage = detail::shortage_of(*found, hardware);
  return found;
}

HETSCHED_INLINE outcome<evaluation> evaluate(const cluster& hardware, const any_cost_model& costs, plan p,
                                             const evaluate_options& options) {
  detail::require_one_size(p);
  return evaluate(
      hardware, [&](int) { return costs; }, std::move(p), options);
}

}  // namespace hetsched
