// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/simulate/detail/event_graph.hpp>
#include <hetsched/schedule/simulate/detail/event_run.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched::detail::unchecked {

HETSCHED_INLINE workload with_factors(workload w, const schedule& order, const std::vector<double>& ranks,
                                      const std::vector<double>& wires) {
  for (std::size_t k = 0; k < w.work.size(); ++k) {
    const double factor = at(ranks, order.rank_of[k]);
    auto& s = w.work[k];
    for (double* time : {&s.forward_s, &s.backward_s, &s.weight_backward_s, &s.recompute_s, &s.optimizer_s}) *time *= factor;
  }
  for (auto* paths : {&w.activations, &w.gradients})
    for (auto& path : *paths)
      for (auto* leg : {&path.d2h, &path.network, &path.h2d}) {
        double factor = 0;
        for (const int wire : leg->wires)
          if (wire >= 0) factor = std::max(factor, at(wires, wire));
        if (factor > 0) leg->occupied_s *= factor, leg->latency_s *= factor;
      }
  return w;
}

}  // namespace hetsched::detail::unchecked

namespace hetsched {

HETSCHED_INLINE workload with_factors(workload w, const schedule& order, const std::vector<double>& ranks,
                                      const std::vector<double>& wires) {
  validate(w);
  detail::validate_shape(order);
  detail::validate_fit(w, order);
  detail::expect_size(ranks.size(), as_size(order.ranks), "factors of ranks", "one per rank");
  detail::expect_size(wires.size(), w.wires.size(), "factors of wires", "one per wire");
  detail::expect_naturals(ranks, "factors of ranks");
  detail::expect_naturals(wires, "factors of wires");
  return detail::unchecked::with_factors(std::move(w), order, ranks, wires);
}

HETSCHED_INLINE std::vector<double> makespans_under_jitter(const workload& w, const schedule& order,
                                                           const jitter_options& options) {
  detail::expect_natural(options.spread, "spread");
  detail::expect_count(options.samples, "samples", 0);
  const auto graph = detail::make_event_graph(order);
  validate(w);
  detail::validate_fit(w, order);
  random_source random(options.seed);
  std::vector<double> makespans_s, ranks(as_size(order.ranks)), wires(w.wires.size());
  for (int i = 0; i < options.samples; ++i) {
    if (options.progress) options.progress(i);
    for (auto* factors : {&ranks, &wires})
      for (double& f : *factors) f = detail::noise_factor(random, options.spread);
    const auto noisy = detail::unchecked::with_factors(w, order, ranks, wires);
    makespans_s.push_back(detail::event_run(graph, noisy, options.semantics, false).makespan_s);
  }
  return makespans_s;
}

HETSCHED_INLINE double quantile(const std::vector<double>& ordered, double share) {
  if (ordered.empty()) throw input_error("there are no values to take a quantile of");
  if (!(share >= 0 && share <= 1)) throw input_error("share is " + detail::number_text(share) + ", expected 0 to 1");
  const auto count = static_cast<double>(ordered.size());
  const auto rank = std::max(std::ceil(share * count - tolerance::sums), 1.0);
  return ordered[static_cast<std::size_t>(rank) - 1];
}

}  // namespace hetsched
