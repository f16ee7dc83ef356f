// SPDX-License-Identifier: Apache-2.0
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../plan/stub_costs.hpp"
#include "../sanitizer_share.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Layers and boundaries of random times, on subclusters of one device each, with memory for a few microbatches.
struct instance {
  cluster hardware;
  stub_costs costs;
};

instance random_instance(random_source& random, int layers, int devices) {
  instance one{plain_cluster(devices, 1), {}};
  for (int i = 0; i < layers; ++i) {
    stage_cost c{.forward_s = random.uniform(0.5, 2),
                 .backward_s = random.uniform(1, 3),
                 .weight_bytes = mib,
                 .activation_bytes = 60 * mib};
    one.costs.layers.push_back(c);
    one.costs.updates.push_back(random.uniform(0, 0.5));
    if (i + 1 < layers) {
      const double seconds = random.uniform(0, 7);
      one.costs.boundaries.emplace_back(seconds);
    }
  }
  return one;
}

pipeline_plan on_own_subclusters(const std::vector<int>& sizes, int microbatches, std::vector<int> warmups = {}) {
  pipeline_plan line{.microbatches = microbatches, .schedule = {.name = "exact_1f1b"}};
  int layer = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    line.stages.push_back(on_device({layer, layer + sizes[i]}, static_cast<int>(i), 0, warmups.empty() ? 0 : warmups[i]));
    layer += sizes[i];
  }
  return line;
}

/// Iterations with noise of another generator, each as evaluate's of a plan with other times.
std::vector<double> independent_iterations(const cluster& hardware, const plan& p, double spread, int samples, unsigned seed) {
  std::mt19937_64 bits(seed);
  std::lognormal_distribution<double> factor(-spread * spread / 2, spread);
  std::vector<double> seconds;
  for (int n = 0; n < samples; ++n) {
    auto noisy = p;
    for (auto& line : noisy.pipelines) {
      for (auto& s : line.stages) {
        const double f = factor(bits);
        for (double* time : {&s.cost.forward_s, &s.cost.backward_s, &s.update_s}) *time *= f;
      }
      for (auto& b : line.boundaries) {
        b.forward_s *= factor(bits);
        b.backward_s *= factor(bits);
      }
    }
    seconds.push_back(detail::evaluate_priced(hardware, std::move(noisy), {})->plan.predicted.iteration_s);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

const auto by_size = [](const stub_costs& costs) { return [&costs](int) -> const stub_costs& { return costs; }; };

}  // namespace

TEST_CASE("without noise, iterations are those of evaluate") {
  random_source random(3);
  for (int n = 0; n < 20; ++n) {
    CAPTURE(n);
    auto one = random_instance(random, 6, 3);
    one.costs.sync_s = 0.3;
    auto p = plan_of({on_own_subclusters({2, 1, 3}, 5)});
    if (n % 3 == 1) p.pipelines.front().schedule.name = "gpipe";
    if (n % 3 == 2) p = plan_of({line_of({6}, 0, 0, 3, "1f1b"), line_of({6}, 1, 0, 2, "1f1b")});
    const auto judged = evaluate(one.hardware, one.costs, p);
    REQUIRE(judged);
    for (const double s : iterations_under_jitter(judged->plan, 0, 3))
      CHECK(s == doctest::Approx(judged->plan.predicted.iteration_s).epsilon(1e-12));
  }
}

TEST_CASE("quantiles are those of another generator's noise") {
  random_source random(4);
  constexpr int samples = hetsched::test::sanitizer_share > 1 ? 400 : 4000;
  for (int n = 0; n < 4; ++n) {
    CAPTURE(n);
    const auto one = random_instance(random, 6, 3);
    const auto judged = evaluate(one.hardware, one.costs, plan_of({on_own_subclusters({2, 1, 3}, 6)}));
    REQUIRE(judged);
    auto seconds = iterations_under_jitter(judged->plan, 0.2, samples, 5);
    std::sort(seconds.begin(), seconds.end());
    const auto others = independent_iterations(one.hardware, judged->plan, 0.2, samples, 6);
    for (const double share : {0.1, 0.5, 0.9})
      CHECK(quantile(seconds, share) == doctest::Approx(quantile(others, share)).epsilon(samples < 4000 ? 0.08 : 0.02));
  }
}

TEST_CASE("the search comes to the best of all cuts and warm-ups, or close to it, and other noise agrees that it is no worse") {
  random_source random(8);
  constexpr int layers = 6, instances = hetsched::test::sanitizer_share > 1 ? 2 : 8;
  int best_found = 0;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    const int devices = n % 4 == 3 ? 3 : 2, microbatches = devices == 2 ? 12 : 5;
    const auto one = random_instance(random, layers, devices);
    const robust_options options{.share = 0.9, .spread = 0.3, .samples = 200, .seed = 2};
    double least_s = 1e300;
    std::vector<plan> all;
    std::vector<double> iterations;
    // All ways to cut, each with all warm-ups that do not rise.
    const auto look_at = [&](const std::vector<int>& sizes, const std::vector<int>& warmups) {
      auto judged = evaluate(one.hardware, one.costs, plan_of({on_own_subclusters(sizes, microbatches, warmups)}));
      if (!judged || !judged->shortage.empty()) return;
      auto seconds = iterations_under_jitter(judged->plan, options.spread, options.samples, options.seed);
      std::sort(seconds.begin(), seconds.end());
      least_s = std::min(least_s, quantile(seconds, options.share));
      iterations.push_back(judged->plan.predicted.iteration_s);
      all.push_back(std::move(judged->plan));
    };
    for (int a = 1; a < layers; ++a)
      for (int u = 1; u <= microbatches; ++u)
        for (int v = 1; v <= u; ++v)
          if (devices == 2)
            look_at({a, layers - a}, {u, v});
          else
            for (int b = 1; a + b < layers; ++b)
              for (int w = 1; w <= v; ++w) look_at({a, b, layers - a - b}, {u, v, w});
    REQUIRE(all.size() > 50);
    // It begins with the plan that is best without noise.
    const auto fastest =
        all[static_cast<std::size_t>(std::min_element(iterations.begin(), iterations.end()) - iterations.begin())];
    const auto found = most_robust_plan(one.hardware, by_size(one.costs), {fastest}, options);
    REQUIRE(found);
    CHECK(found->searched_s >= least_s * (1 - 1e-12));
    CHECK(found->searched_s <= least_s * 1.03);
    best_found += found->searched_s <= least_s * (1 + 1e-12);
    CHECK(found->plan.predicted.iteration_s >= fastest.predicted.iteration_s * (1 - 1e-12));
    CHECK(found->quantile_s <= found->fastest_s);
    const auto robust = independent_iterations(one.hardware, found->plan, options.spread, 2000, 1);
    const auto plain = independent_iterations(one.hardware, fastest, options.spread, 2000, 1);
    CHECK(quantile(robust, options.share) == doctest::Approx(found->quantile_s).epsilon(0.08));
    CHECK(quantile(robust, options.share) <= quantile(plain, options.share) * 1.01);
  }
  CHECK(best_found >= instances / 2);
}

namespace {

/// Devices that share a stage take 5 % more than their part.
struct shared_costs : stub_costs {
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto c = stub_costs::layer(index, where);
    if (const int n = where.mesh.device_count(); n > 1) c.forward_s *= 1.05 / n, c.backward_s *= 1.05 / n;
    return c;
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const { return sum_of_layers(*this, range, where); }
};

}  // namespace

TEST_CASE("six stages in a row are the fastest, and with noise the slowest of them makes a stage of six devices better") {
  if (hetsched::test::sanitizer_share > 1) return;  // thousands of iterations of 120 microbatches
  shared_costs costs;
  for (int i = 0; i < 6; ++i) costs.layers.push_back({.forward_s = 1, .backward_s = 2});
  const auto hardware = plain_cluster(1, 6);
  constexpr int microbatches = 120;
  const auto row = plan_of({line_of({1, 1, 1, 1, 1, 1}, 0, 0, microbatches, "1f1b")});
  auto joint = plan_of({line_of({6}, 0, 0, microbatches, "1f1b")});
  joint.pipelines.front().stages.front().devices = {{{0, 1, 6}, 0}};
  joint.pipelines.front().stages.front().degrees = {.data = 6};
  joint.pipelines.front().microbatch_size = 6;
  auto shared_row = row;
  shared_row.pipelines.front().microbatch_size = 6;
  const auto costs_for = [&](int) -> const shared_costs& { return costs; };
  const auto little = most_robust_plan(hardware, costs_for, {shared_row, joint}, {.spread = 0.001, .samples = 400});
  REQUIRE(little);
  CHECK(little->plan.pipelines.front().stages.size() == 6);
  for (const double spread : {0.2}) {
    CAPTURE(spread);
    const auto found = most_robust_plan(hardware, costs_for, {shared_row, joint}, {.spread = spread, .samples = 250});
    REQUIRE(found);
    REQUIRE(found->plan.pipelines.front().stages.size() == 1);
    // The 90 % quantiles of one factor, and of the largest of six.
    const auto quantile_of = [&](double z) { return std::exp(spread * z - spread * spread / 2); };
    CHECK(found->quantile_s == doctest::Approx(microbatches * 3 * 1.05 * quantile_of(1.2816)).epsilon(0.05));
    CHECK(found->fastest_s == doctest::Approx((microbatches + 5) * 3 * quantile_of(2.1100)).epsilon(0.07));
  }
}

TEST_CASE("plans that do not fit are not taken, and the search ends when it is told") {
  random_source random(9);
  auto one = random_instance(random, 6, 3);
  const auto start = plan_of({on_own_subclusters({2, 2, 2}, 5)});
  int asked = 0;
  robust_options options{.samples = 20};
  options.go_on = [&](int plans, double best_s) {
    CHECK(plans == ++asked);
    CHECK(best_s > 0);
    return plans < 3;
  };
  const auto stopped = most_robust_plan(one.hardware, by_size(one.costs), {start}, options);
  REQUIRE(stopped);
  CHECK(stopped->plans == 3);
  for (auto& l : one.costs.layers) l.weight_bytes = 2 * gib;
  const auto none = most_robust_plan(one.hardware, by_size(one.costs), {start});
  REQUIRE_FALSE(none);
  CHECK(none.why_not().reason.find("needs") != std::string::npos);
  CHECK_THROWS_AS((void)most_robust_plan(one.hardware, by_size(one.costs), {}), input_error);
  CHECK_THROWS_AS((void)most_robust_plan(one.hardware, by_size(one.costs), {start}, {.share = 0}), input_error);
}
