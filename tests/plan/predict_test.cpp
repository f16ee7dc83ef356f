// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/predict.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/simulate.hpp>

using namespace hetsched;

namespace {

/// Two subclusters: 4 devices of 100 TFLOP/s (fp16), 2 nodes of 2 of 300.
cluster two_kinds() {
  cluster hardware;
  for (const double tera : {100.0, 300.0}) {
    subcluster s;
    s.name = tera == 100 ? "slow" : "fast";
    s.nodes = tera == 100 ? 1 : 2;
    s.devices_per_node = tera == 100 ? 4 : 2;
    s.device = {
        .name = s.name, .peak_flops = {tera * 1e12 / 10, 0, tera * 1e12, 0}, .memory_bytes = gib, .memory_bandwidth = 1e12};
    hardware.subclusters.push_back(s);
  }
  return hardware;
}

stage_plan stage(int subcluster, int nodes, int width, double forward, double backward, double transfer, int warmup,
                 double update = 0) {
  stage_plan s;
  s.where = {{subcluster, nodes, width}, {1, 1, nodes * width}};
  s.forward_s = forward;
  s.backward_s = backward;
  s.transfer_s = transfer;
  s.warmup = warmup;
  s.update_s = update;
  return s;
}

plan plan_of(std::vector<stage_plan> stages, int microbatches, int microbatch_size) {
  plan p;
  p.microbatches = microbatches;
  p.pipelines = {{microbatches, microbatch_size, std::move(stages)}};
  return p;
}

}  // namespace

TEST_CASE("load balance by hand") {
  // 4 slow devices work 3 s, 2 fast ones 2 s: 1 - (1 s * 600) / (3 s * (400 + 600)).
  const auto p = plan_of({stage(0, 1, 4, 1, 2, 0, 2), stage(1, 1, 2, 0.5, 1.5, 0, 1)}, 4, 1);
  CHECK(load_balance(two_kinds(), p.pipelines[0]) == doctest::Approx(1 - 600.0 / 3000));
  // In fp32 all peaks are a tenth, and the shares the same; an idle second fast node does not count.
  CHECK(load_balance(two_kinds(), p.pipelines[0], precision::fp32) == doctest::Approx(0.8));
  CHECK(peak_flops(two_kinds(), p) == doctest::Approx(1000e12));
  CHECK(peak_flops(two_kinds(), p, precision::fp32) == doctest::Approx(100e12));
  // Three stages: 3, 2 and 1 s on 400, 300 and 600.
  const auto q = plan_of({stage(0, 1, 4, 1, 2, 0, 3), stage(1, 1, 1, 1, 1, 0, 2), stage(1, 1, 2, 0, 1, 0, 1)}, 4, 1);
  CHECK(load_balance(two_kinds(), q.pipelines[0]) == doctest::Approx(1 - (1 * 300.0 + 2 * 600.0) / (3 * 1300.0)));
  const auto equal = plan_of({stage(0, 1, 2, 1, 2, 0, 2), stage(1, 1, 2, 1.5, 1.5, 0, 1)}, 4, 1);
  CHECK(load_balance(two_kinds(), equal.pipelines[0]) == doctest::Approx(1));
  CHECK(load_balance(two_kinds(), plan_of({stage(0, 1, 1, 0, 0, 0, 1)}, 4, 1).pipelines[0]) == 0);
}

TEST_CASE("a prediction by hand: one stage, and two equal ones") {
  const auto one = predict(two_kinds(), plan_of({stage(0, 1, 4, 1, 2, 0, 1, 0.5)}, 8, 2));
  CHECK(one.iteration_s == doctest::Approx(8 * 3 + 0.5));
  CHECK(one.lower_bound_s == doctest::Approx(8 * 3));
  CHECK(one.period_s == doctest::Approx(3));
  CHECK(one.samples_per_s == doctest::Approx(16 / 24.5));
  CHECK(one.load_balance == doctest::Approx(1));
  CHECK(one.mfu == 0);

  // 1F1B without transfers: sum of t + (M - 1) t. The first stage ends last, so its update counts, not the longer one behind it.
  const auto two = plan_of({stage(0, 1, 4, 1, 2, 0, 2, 0.25), stage(1, 1, 2, 1, 2, 0, 1, 1.0)}, 8, 1);
  CHECK(predict(two_kinds(), two).iteration_s == doctest::Approx(6 + 7 * 3 + 0.25));
  // A long one does count: the last stage ends one backward, 2 s, earlier.
  auto late = two;
  late.pipelines[0].stages[1].update_s = 10;
  CHECK(predict(two_kinds(), late).iteration_s == doctest::Approx(6 + 7 * 3 - 2 + 10));
}

TEST_CASE("MFU by hand") {
  auto p = plan_of({stage(0, 1, 4, 1, 2, 0, 1)}, 8, 2);
  p.predicted = predict(two_kinds(), p);
  // 16 samples in 24 s, 300 TFLOP each: 200 TFLOP/s of 400.
  CHECK(mfu(two_kinds(), p, 300e12) == doctest::Approx(0.5));
  CHECK(mfu(two_kinds(), plan{}, 300e12) == 0);
}

TEST_CASE("iteration: simulated makespan, and updates on top") {
  random_source random(71);
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    std::vector<stage_plan> stages;
    const int count = random.integer(1, 6);
    int warmup = 2 * count;
    for (int i = 0; i < count; ++i) {
      warmup -= random.integer(1, 2);
      stages.push_back(
          stage(0, 1, 1, random.uniform(), random.uniform(), i + 1 < count ? random.uniform() : 0, i + 1 < count ? warmup : 1));
    }
    auto p = plan_of(stages, random.integer(1, 20), random.integer(1, 4));
    auto& pipe = p.pipelines[0];
    for (auto& s : pipe.stages) s.warmup = std::min(s.warmup, p.microbatches);
    const double simulated = makespan(to_pipeline(pipe), warmups(pipe), p.microbatches);
    CHECK(iteration_s(pipe) == doctest::Approx(simulated).epsilon(1e-12));
    const auto bare = predict(two_kinds(), p);
    CHECK(bare.iteration_s >= bare.lower_bound_s * (1 - 1e-12));

    // Equal updates everywhere add once; in general at most the longest is added, and at least that of the first stage.
    for (auto& s : pipe.stages) s.update_s = 2;
    CHECK(iteration_s(pipe) == doctest::Approx(simulated + 2).epsilon(1e-12));
    double longest = 0;
    for (auto& s : pipe.stages) longest = std::max(longest, s.update_s = random.uniform(0, 3));
    const auto with_updates = predict(two_kinds(), p);
    CHECK(with_updates.iteration_s <= simulated + longest + 1e-12);
    CHECK(with_updates.iteration_s >= simulated + pipe.stages[0].update_s - 1e-12);
    CHECK(with_updates.samples_per_s == doctest::Approx(p.microbatches * pipe.microbatch_size / with_updates.iteration_s));
    CHECK(with_updates.period_s == bare.period_s);
  }
}

TEST_CASE("only plans of one pipeline are predicted") {
  auto p = plan_of({stage(0, 1, 1, 1, 1, 0, 1)}, 2, 1);
  p.pipelines.push_back(p.pipelines.front());
  CHECK_THROWS_AS((void)predict(two_kinds(), p), input_error);
  p.pipelines.clear();
  CHECK_THROWS_AS((void)predict(two_kinds(), p), input_error);
}
