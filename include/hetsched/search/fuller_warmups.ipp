// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/search/fuller_warmups.hpp>

namespace hetsched {

HETSCHED_INLINE played_warmups shortest_warmups(const pipeline& p, std::span<const int> caps, int microbatches,
                                                std::int64_t most_actions) {
  validate(p);
  detail::expect_size(caps.size(), p.forward_s.size(), "caps", "one for each stage");
  for (const int cap : caps) detail::expect_count(cap, "a cap of warm-ups");
  detail::expect_count(microbatches, "microbatches");
  played_warmups best;
  const double shortest = detail::unchecked::best_period(p);
  const auto stages = static_cast<int>(caps.size());
  std::vector<int> before;
  const auto play = [&](std::vector<int> counts) {
    int most = microbatches;  // never more than the stage before
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = most = std::min({counts[i], caps[i], most});
    if (counts == before || counts == best.counts) return false;
    const double seconds = detail::unchecked::quick_makespan(p, counts, microbatches);
    before = counts;
    // Fewer in flight where it does not matter.
    if (!(seconds < best.makespan_s * (1 - tolerance::sums))) return false;
    best = {std::move(counts), seconds};
    return true;
  };
  const bool quick = most_actions == 0;
  static constexpr double shares[]{1.0, 0.72, 0.5, 0.35, 0.85, 0.6, 0.42, 0.28, 0.2, 0.1};
  constexpr std::size_t few = 4;
  if (shortest > 0)
    for (const double share : std::span(shares).first(quick ? few : std::size(shares)))
      (void)play(detail::unchecked::exact_warmups(p, shortest * share));
  if (quick && best.makespan_s < infinity) return best;
  (void)play(one_f_one_b_warmups(stages));
  (void)play(eager_warmups(stages));
  if (shortest > 0) (void)play(detail::unchecked::h1f1b_warmups(p, shortest, default_epsilon));
  // Single microbatches more or less, where that takes no time.
  std::int64_t actions = 0;
  for (bool better = true; better;) {
    better = false;
    for (int i = 0; i < stages; ++i)
      for (const int by : {1, -1}) {
        if ((actions += std::int64_t{stages} * microbatches) > most_actions) return best;
        auto counts = best.counts;
        const int own = at(counts, i) + by;
        if (own < 1 || own > at(caps, i) || own > microbatches) continue;
        // Those before never hold less.
        for (int j = 0; j <= i; ++j) at(counts, j) = std::max(at(counts, j), j == i ? 1 : own);
        at(counts, i) = own;
        better = play(std::move(counts)) || better;
      }
  }
  return best;
}

HETSCHED_INLINE bool fill_warmups(plan& evaluated) {
  struct filled {
    pipeline bare;
    std::vector<int> caps, counts;
    int microbatches;
    std::vector<int> better;  // empty where the counts are as good
  };
  std::vector<filled> known;  // of copies one is looked at
  const auto better_than = [&](pipeline bare, std::vector<int> caps, std::vector<int> counts, int microbatches) {
    const auto same = std::find_if(known.begin(), known.end(), [&](const filled& f) {
      return f.microbatches == microbatches && f.counts == counts && f.caps == caps && f.bare == bare;
    });
    if (same != known.end()) return same->better;
    auto best = shortest_warmups(bare, caps, microbatches);
    if (!(best.makespan_s < makespan(bare, counts, microbatches) * (1 - tolerance::sums))) best.counts.clear();
    known.push_back({std::move(bare), std::move(caps), std::move(counts), microbatches, best.counts});
    return std::move(best.counts);
  };
  bool changed = false;
  for (auto& line : evaluated.pipelines) {
    if (!has_warmups(line.schedule) || line.stages.empty()) continue;
    std::vector<int> caps, counts;
    for (const auto& s : line.stages) {
      const double each = static_cast<double>(s.cost.activation_bytes);
      const double room = activation_room(s);
      const double fit = each > 0 ? room / each : line.microbatches;
      caps.push_back(std::max(s.warmup, static_cast<int>(std::min<double>(fit * (1 - tolerance::sums), line.microbatches))));
      counts.push_back(s.warmup);
    }
    if (*std::min_element(caps.begin(), caps.end()) < 1) continue;
    const auto better = better_than(to_pipeline(line), std::move(caps), std::move(counts), line.microbatches);
    for (std::size_t i = 0; i < better.size(); ++i) line.stages[i].warmup = better[i];
    changed = changed || !better.empty();
  }
  return changed;
}

HETSCHED_INLINE std::optional<plan> evaluate_filled(const cluster& hardware, const any_cost_model& costs, plan p,
                                                    const evaluate_options& options) {
  auto judged = evaluate(hardware, costs, std::move(p), options);
  if (!judged || !judged->shortage.empty()) return std::nullopt;
  auto filled = judged->plan;
  if (fill_warmups(filled)) {
    auto again = evaluate(hardware, costs, std::move(filled), options);
    if (again && again->shortage.empty() && again->plan.predicted.iteration_s < judged->plan.predicted.iteration_s)
      judged = std::move(again);
  }
  return std::move(judged->plan);
}

}  // namespace hetsched
