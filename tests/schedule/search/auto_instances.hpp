// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "judge.hpp"

namespace hetsched::test {

/// Small mixed pipelines: 3 or 4 ranks whose speeds differ by up to 2.4, 4 to 6 microbatches, transfers of 0 to 3 forwards of
/// the fastest rank per boundary, caps of 1 to 2 p microbatches on each rank, or of at least `least_cap`.
inline judge_instance random_auto_instance(random_source& random, int least_cap = 1) {
  judge_instance p;
  const int ranks = random.integer(3, 4);
  p.microbatches = random.integer(4, 6);
  for (int i = 0; i < ranks; ++i) {
    const double factor = random.uniform(1.0, 2.4);
    p.f.push_back(factor);
    p.b.push_back(factor * random.uniform(0.8, 1.3));
    p.w.push_back(factor * random.uniform(0.6, 1.1));
    p.caps.push_back(random.integer(least_cap, 2 * ranks));
    if (i > 0) p.a.push_back(random.uniform(0.0, 3.0));
  }
  p.g = p.a;
  return p;
}

/// The set that automatic schedules are judged on; the same on every machine.
inline std::vector<judge_instance> auto_instances(int count = 500, int least_cap = 1) {
  random_source random(20240517);
  std::vector<judge_instance> set;
  for (int n = 0; n < count; ++n) set.push_back(random_auto_instance(random, least_cap));
  return set;
}

/// The instance as the library says it; its caps are the memory capacities that go with it, as bytes of 1 per microbatch.
/// Precondition: held == 1.
inline pipeline to_pipeline(const judge_instance& p) {
  pipeline result{.forward_s = p.f,
                  .backward_s = p.b,
                  .transfer_s = p.a,
                  .gradient_transfer_s = p.g,
                  .weight_backward_s = p.w,
                  .activation_bytes = std::vector<double>(p.f.size(), 1.0),
                  .transfer_occupied_s = p.a_occupied,
                  .gradient_transfer_occupied_s = p.g_occupied};
  for (std::size_t i = 0; i < p.w.size(); ++i) result.backward_s[i] += p.w[i];
  return result;
}

/// The judge's orders as a schedule.
inline schedule to_schedule(const judge_words& words) {
  const int ranks = static_cast<int>(words.size());
  std::vector<int> rank_of;
  for (int r = 0; r < ranks; ++r) rank_of.push_back(r);
  const auto microbatches = std::count(words[0].begin(), words[0].end(), 'F');
  auto result = make_schedule(ranks, static_cast<int>(microbatches), rank_of);
  for (int r = 0; r < ranks; ++r) {
    int done[3] = {0, 0, 0};
    for (const char c : words[static_cast<std::size_t>(r)]) {
      const auto kind = c == 'F' ? action_kind::forward : c == 'B' ? action_kind::backward_input : action_kind::backward_weight;
      const int microbatch = done[c == 'F' ? 0 : c == 'B' ? 1 : 2]++;
      result.lanes[static_cast<std::size_t>(r)].actions.push_back(
          {.kind = kind, .joined = false, .direction = 0, .stage = r, .microbatch = microbatch});
    }
  }
  return result;
}

/// How far from the optimum a scheduler is, over a set of instances.
struct optimality {
  double mean = 0, worst = 0;  ///< makespan over the optimum
  int optimal = 0;             ///< instances where they are equal
  int below = 0;               ///< instances where the makespan is less than the optimum: one of the two is wrong
  int unproved = 0;            ///< instances that the judge gave up; not counted in the others
  std::string worst_instance, below_instance;
};

/// Judges `makespan(instance) -> double`.
template <class Makespan>
optimality compare_with_optimum(const std::vector<judge_instance>& set, Makespan makespan) {
  optimality result;
  int judged = 0;
  for (const auto& p : set) {
    const auto best = optimum(p);
    if (!best.proved) {
      ++result.unproved;
      continue;
    }
    ++judged;
    const double ratio = makespan(p) / best.optimum;
    result.mean += ratio;
    if (ratio > result.worst) result.worst = ratio, result.worst_instance = text(p) + " optimum " + text(best.words);
    if (ratio < 1 + 1e-9) ++result.optimal;
    if (ratio < 1 - 1e-9) ++result.below, result.below_instance = text(p);
  }
  result.mean /= std::max(1, judged);
  return result;
}

}  // namespace hetsched::test
