// SPDX-License-Identifier: Apache-2.0
#include <hetsched/evaluate/detail/played_plan.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/evaluate/sends.hpp>
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
    for (const auto sends : {send_mode::grouped, send_mode::blocking})
      CHECK(iterations_under_jitter(judged->plan, 0, 1, 1, sends).front() ==
            doctest::Approx(iteration_under(*judged, sends_under(judged->plan, sends))).epsilon(1e-12));
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

TEST_CASE("sends that hold ranks up: the search comes to the best of all cuts and warm-ups, and bounds stay bounds") {
  random_source random(11);
  constexpr int layers = 6, microbatches = 8;
  int changed = 0;
  for (int n = 0; n < 6; ++n) {
    CAPTURE(n);
    const auto trainer = n % 2 == 0 ? send_mode::grouped : send_mode::blocking;
    const auto one = random_instance(random, layers, 2);
    std::vector<plan> all;
    double least_s = 1e300;  // with sends
    for (int a = 1; a < layers; ++a)
      for (int u = 1; u <= microbatches; ++u)
        for (int v = 1; v <= u; ++v) {
          auto judged = evaluate(one.hardware, one.costs, plan_of({on_own_subclusters({a, layers - a}, microbatches, {u, v})}));
          if (!judged || !judged->shortage.empty()) continue;
          least_s = std::min(least_s, iteration_under(*judged, trainer));
          all.push_back(std::move(judged->plan));
        }
    auto fastest = *std::min_element(
        all.begin(), all.end(), [](const plan& a, const plan& b) { return a.predicted.iteration_s < b.predicted.iteration_s; });
    fastest.setting.sequence = 77;
    fastest.evidence = search_evidence{
        .objective_value = fastest.predicted.iteration_s, .objective_bound = fastest.predicted.iteration_s, .complete = true};
    const auto found = fastest_with_sends(one.hardware, by_size(one.costs), {fastest}, trainer);
    REQUIRE(found);
    CHECK(found->iteration_s >= least_s * (1 - 1e-12));
    CHECK(found->iteration_s <= least_s * 1.05);
    CHECK(found->iteration_s <= found->first_s);
    const auto judged = evaluate(one.hardware, one.costs, found->plan);
    REQUIRE(judged);
    CHECK(iteration_under(*judged, trainer) == doctest::Approx(found->iteration_s).epsilon(1e-12));
    CHECK(found->plan.setting == fastest.setting);
    REQUIRE(found->plan.evidence);
    CHECK(found->plan.evidence->objective_bound <= found->iteration_s);
    CHECK(found->plan.evidence->objective_value == found->plan.predicted.iteration_s);
    changed += !(found->plan.pipelines == fastest.pipelines);
    // Of the iteration with sends nothing is proven, unless it is as short as the shortest without; asynchronously it is.
    CHECK(found->iteration_s > 1.001 * fastest.predicted.iteration_s);
    CHECK_FALSE(found->plan.evidence->complete);
    CHECK(fastest_with_sends(one.hardware, by_size(one.costs), {fastest}, send_mode::asynchronous)->plan.evidence->complete);
    // Nothing that a trainer does not run, and no more than is asked for.
    const sends_options none{.runs = [](const plan&) { return false; }}, few{.most_plans = 3};
    CHECK(fastest_with_sends(one.hardware, by_size(one.costs), {fastest}, trainer, none)->plan.pipelines == fastest.pipelines);
    CHECK(fastest_with_sends(one.hardware, by_size(one.costs), {fastest}, trainer, few)->plans == 3);
  }
  CHECK(changed > 0);
  const auto one = random_instance(random, layers, 2);
  CHECK_THROWS_AS((void)fastest_with_sends(one.hardware, by_size(one.costs), {}, send_mode::grouped), input_error);
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

TEST_CASE("sends that hold ranks up: stages in a row become one, and warm-ups of other rules are looked at") {
  // Two layers on two devices of a node; between them, and between stages, a tensor takes 2 s.
  shared_costs costs;
  for (int l = 0; l < 4; ++l)
    costs.layers.push_back({.forward_s = 1, .backward_s = 2, .weight_bytes = mib, .activation_bytes = mib});
  costs.boundaries = {2.0, 2.0, 2.0};
  const auto hardware = plain_cluster(2, 2);
  const auto by = [&costs](int) -> const shared_costs& { return costs; };
  constexpr int microbatches = 6;
  const auto apart = evaluate(hardware, costs, plan_of({line_of({2, 2}, 0, 0, microbatches, "1f1b")}));
  REQUIRE(apart);
  const auto found = fastest_with_sends(hardware, by, {apart->plan}, send_mode::blocking);
  REQUIRE(found);
  REQUIRE(found->plan.pipelines.front().stages.size() == 1);
  CHECK(found->iteration_s == doctest::Approx(microbatches * 4 * 3 * 1.05 / 2));
  CHECK(found->iteration_s < found->first_s);
  // On devices that do not follow each other in a node stages stay apart, and are no slower than under any rule.
  auto line = line_of({1, 3}, 0, 0, microbatches, "1f1b");
  line.stages[1].devices[0].mesh.subcluster = 1;
  int asked = 0;
  const auto as_judged = [&](const plan& p) {
    ++asked;
    return p.pipelines == evaluate(hardware, costs, p)->plan.pipelines;
  };
  const auto other = fastest_with_sends(hardware, by, {evaluate(hardware, costs, plan_of({line}))->plan}, send_mode::grouped,
                                        {.runs = as_judged});
  REQUIRE(other);
  CHECK(asked > 0);
  CHECK(other->plan.pipelines.front().stages.size() == 2);
  for (const char* rule : {"1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b"}) {
    line.schedule.name = rule;
    const auto judged = evaluate(hardware, costs, plan_of({line}));
    REQUIRE(judged);
    CHECK(other->iteration_s <= iteration_under(*judged, send_mode::grouped) * (1 + 1e-9));
  }
  // Noise of none: the plan that is fastest with its sends, of two that are the other way round without.
  const auto together = evaluate(hardware, costs, found->plan);
  REQUIRE(apart->plan.predicted.iteration_s > 0);
  const auto robust =
      most_robust_plan(hardware, by, {apart->plan, together->plan}, {.spread = 0, .samples = 1, .sends = send_mode::blocking});
  REQUIRE(robust);
  CHECK(robust->plan.pipelines == together->plan.pipelines);
  CHECK(robust->fastest_s == doctest::Approx(found->iteration_s));
}

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

namespace {

/// Costs that devices divide by their speed.
struct speed_costs : stub_costs {
  std::vector<double> speeds = {};  // of subclusters
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto c = stub_costs::layer(index, where);
    const double speed = speeds[static_cast<std::size_t>(where.mesh.subcluster)];
    c.forward_s /= speed, c.backward_s /= speed;
    return c;
  }
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const { return sum_of_layers(*this, range, where); }
};

}  // namespace

TEST_CASE(
    "least regret: the worst loss is the least of all plans in all corners, and the search comes to it from the best of each") {
  random_source random(12);
  constexpr int layers = 10;
  constexpr int instances = hetsched::test::sanitizer_share > 1 ? 2 : 12;
  const std::vector<std::vector<double>> corners{{1, 1},     {0.8, 1},   {1.2, 1},   {1, 0.8},  {1, 1.2},
                                                 {0.8, 0.8}, {1.2, 0.8}, {0.8, 1.2}, {1.2, 1.2}};
  int as_good = 0, robust_is_other = 0;
  for (int n = 0; n < instances; ++n) {
    CAPTURE(n);
    auto one = random_instance(random, layers, 2);
    for (auto& l : one.costs.layers) l.activation_bytes = mib;  // all plans fit
    one.hardware.subclusters[1].device.name = "other";
    one.hardware.subclusters[1].device.speed = 2;  // and stays relative to that
    const auto costs_at = [&](const cluster& c) {
      speed_costs costs{one.costs};
      for (const auto& s : c.subclusters) costs.speeds.push_back(s.device.speed);
      return costs;
    };
    const costs_on_cluster costs_on = [&](const cluster& c) -> costs_by_size {
      return [costs = costs_at(c)](int) -> any_cost_model { return costs; };
    };
    const auto cases = speed_cases(one.hardware, 0.2);
    REQUIRE(cases.size() == corners.size());
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const auto same = [&](const speed_case& k) {
        return k.speed == corners[c] && k.hardware.subclusters[0].device.speed == corners[c][0] &&
               k.hardware.subclusters[1].device.speed == 2 * corners[c][1];
      };
      CHECK(std::count_if(cases.begin(), cases.end(), same) == 1);
    }
    // All cuts with all orders, in all corners, by evaluate alone.
    std::vector<plan> all;
    std::vector<std::vector<double>> seconds;
    std::vector<double> least(corners.size(), 1e300);
    for (int cut = 1; cut < layers; ++cut)
      for (const bool back : {false, true}) {
        auto line = on_own_subclusters({cut, layers - cut}, 8);
        line.schedule.name = "1f1b";
        if (back) std::swap(line.stages[0].devices, line.stages[1].devices);
        all.push_back(plan_of({line}));
        seconds.emplace_back();
        for (std::size_t c = 0; c < corners.size(); ++c) {
          auto turned = one.hardware;
          turned.subclusters[0].device.speed = corners[c][0];
          turned.subclusters[1].device.speed = 2 * corners[c][1];
          const auto judged = evaluate(turned, costs_at(turned), all.back());
          REQUIRE(judged);
          REQUIRE(judged->shortage.empty());
          seconds.back().push_back(judged->plan.predicted.iteration_s);
          least[c] = std::min(least[c], seconds.back().back());
        }
      }
    const auto loss_of = [&](const std::vector<double>& s) {
      double worst = 0;
      for (std::size_t c = 0; c < s.size(); ++c) worst = std::max(worst, s[c] / least[c] - 1);
      return worst;
    };
    double best_loss = 1e300;
    std::size_t fastest = 0;
    for (std::size_t p = 0; p < all.size(); ++p) {
      best_loss = std::min(best_loss, loss_of(seconds[p]));
      if (seconds[p][0] < seconds[fastest][0]) fastest = p;
    }
    const auto found = least_regret_plan(cases, costs_on, all, {.how = {}, .moves = false, .go_on = {}});
    REQUIRE(found);
    CHECK(found->plans == static_cast<int>(all.size()));
    CHECK(found->worst_loss == doctest::Approx(best_loss).epsilon(1e-9));
    CHECK(found->fastest_loss == doctest::Approx(loss_of(seconds[fastest])).epsilon(1e-9));
    robust_is_other += found->worst_loss < found->fastest_loss * (1 - 1e-9);
    // What it says of itself is so.
    std::vector<double> own;
    for (const auto& c : corners) {
      auto turned = one.hardware;
      turned.subclusters[0].device.speed = c[0];
      turned.subclusters[1].device.speed = 2 * c[1];
      own.push_back(evaluate(turned, costs_at(turned), found->plan)->plan.predicted.iteration_s);
    }
    CHECK(loss_of(own) == doctest::Approx(best_loss).epsilon(1e-9));
    CHECK(found->worst_s == doctest::Approx(*std::max_element(own.begin(), own.end())));
    REQUIRE(found->doubts.size() == 2);
    const auto gain = [&](std::size_t slow, std::size_t fast) {
      return std::max(1 - least[slow] / own[slow], 1 - least[fast] / own[fast]);
    };
    for (const auto& d : found->doubts)
      CHECK(d.gain == doctest::Approx(d.device == "other" ? gain(3, 4) : gain(1, 2)).epsilon(1e-9));
    CHECK(found->doubts[0].gain >= found->doubts[1].gain);
    // From the best plan of each corner alone.
    std::vector<plan> optima;
    for (std::size_t c = 0; c < corners.size(); ++c)
      for (std::size_t p = 0; p < all.size(); ++p)
        if (seconds[p][c] == least[c]) optima.push_back(all[p]);
    const auto moved = least_regret_plan(cases, costs_on, optima);
    REQUIRE(moved);
    CHECK(moved->worst_loss <= found->worst_loss + 0.02);
    as_good += moved->worst_loss <= found->worst_loss + 1e-9;
  }
  CHECK(as_good >= (instances + 1) / 2);
  CHECK((robust_is_other > 0 || instances < 12));
}

TEST_CASE("least regret: plans that do not fit are refused, kinds are told apart by name, and wrong arguments") {
  random_source random(13);
  auto one = random_instance(random, 6, 3);
  const costs_on_cluster costs_on = [&](const cluster&) -> costs_by_size { return by_size(one.costs); };
  CHECK(speed_cases(one.hardware, 0.1).size() == 3);  // one kind
  for (int i = 0; i < 3; ++i) one.hardware.subclusters[static_cast<std::size_t>(i)].device.name = std::to_string(i);
  CHECK(speed_cases(one.hardware, 0.1).size() == 1 + 6 + 8);
  const auto start = plan_of({on_own_subclusters({2, 2, 2}, 5)});
  const auto cases = speed_cases(one.hardware, 0.1);
  for (const double bias : {0.0, 1.0, -0.1, std::nan("")}) CHECK_THROWS_AS((void)speed_cases(one.hardware, bias), input_error);
  CHECK_THROWS_AS((void)least_regret_plan(cases, costs_on, {}), input_error);
  CHECK_THROWS_AS((void)least_regret_plan({}, costs_on, {start}), input_error);
  // Costs that no speed changes leave nothing to lose, and nothing to measure.
  const auto same = least_regret_plan(cases, costs_on, {start});
  REQUIRE(same);
  for (const auto& d : same->doubts) CHECK(d.gain == 0);
  int asked = 0;
  const auto stopped = least_regret_plan(cases, costs_on, {start, start, start},
                                         {.how = {}, .moves = true, .go_on = [&](int, double) { return ++asked < 1; }});
  REQUIRE(stopped);
  CHECK(stopped->plans == 1);
  for (auto& l : one.costs.layers) l.weight_bytes = 2 * gib;
  const auto none = least_regret_plan(cases, costs_on, {start});
  REQUIRE_FALSE(none);
  CHECK(none.why_not().reason.find("needs") != std::string::npos);
}
