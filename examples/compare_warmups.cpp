// SPDX-License-Identifier: Apache-2.0
// How many microbatches should be in flight? Warm-up rules of the 1F1B family on random pipelines of unequal stages and links.
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <hetsched/hetsched.hpp>

namespace {

/// Stages of 2 to 3 s, links from none to as slow as a stage.
hetsched::pipeline random_pipeline(hetsched::random_source& random, int stages) {
  hetsched::pipeline p;
  for (int i = 0; i < stages; ++i) {
    const double compute_s = random.uniform(2, 3);
    p.forward_s.push_back(compute_s / 3);
    p.backward_s.push_back(2 * compute_s / 3);
    if (i > 0) p.transfer_s.push_back(random.uniform() < 0.7 ? random.uniform(0, 0.3) : random.uniform(0, 3));
  }
  return p;
}

/// A name, and how many forwards each stage starts before its first backward.
struct contender {
  std::string name;
  std::function<std::vector<int>(const hetsched::pipeline&)> warmups;
};

}  // namespace

int main() {
  using hetsched::warmup_rule;
  constexpr int pipelines = 100, stages = 8, microbatches = 64;

  const auto rule = [](warmup_rule r, double epsilon = hetsched::default_epsilon) {
    return [=](const hetsched::pipeline& p) { return hetsched::warmup_counts(r, p, epsilon); };
  };
  // A memory limit: the shortest period that it allows, and the fewest microbatches in flight for that.
  const auto exact_within = [](int cap) {
    return [cap](const hetsched::pipeline& p) {
      return hetsched::exact_warmups(p, hetsched::fastest_period(p, std::vector<int>(p.forward_s.size(), cap)));
    };
  };
  const contender contenders[] = {{"1f1b", rule(warmup_rule::one_f_one_b)},
                                  {"eager", rule(warmup_rule::eager)},
                                  {"h1f1b, tolerance 10 %", rule(warmup_rule::h1f1b)},
                                  {"h1f1b, tolerance 0", rule(warmup_rule::h1f1b, 0)},
                                  {"exact", rule(warmup_rule::exact)},
                                  {"exact, at most 10", exact_within(10)}};

  std::printf("Means over %d pipelines of %d stages, %d microbatches; in flight: all stages together\n", pipelines, stages,
              microbatches);
  std::printf("%-21s  period / best  makespan / bound  in flight  bubble\n", "warm-up rule");
  for (const auto& c : contenders) {
    double period = 0, makespan = 0, in_flight = 0, bubble = 0;
    hetsched::random_source random(2024);  // the same pipelines for every rule
    for (int k = 0; k < pipelines; ++k) {
      const auto p = random_pipeline(random, stages);
      const auto warmups = c.warmups(p);
      const auto played = hetsched::simulate(p, hetsched::one_f_one_b(warmups, microbatches));
      period += hetsched::period(p, warmups) / hetsched::best_period(p);
      makespan += played.makespan_s / hetsched::makespan_lower_bound(p, microbatches);
      in_flight += std::accumulate(played.peak_in_flight.begin(), played.peak_in_flight.end(), 0.0);
      bubble += played.bubble_ratio;
    }
    std::printf("%-21s  %13.3f  %16.3f  %9.1f  %4.1f %%\n", c.name.c_str(), period / pipelines, makespan / pipelines,
                in_flight / pipelines, 100 * bubble / pipelines);
  }
  return 0;
}
