// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/breakdown.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/search/pack_devices.hpp>

#include "../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A stage of a plan of one layer per stage, and what it costs.
struct simple_stage {
  submesh mesh;
  double forward_s, backward_s, transfer_s;
  int warmup = 0;
  double update_s = 0;
};

struct simple_case {
  plan whole;
  stub_costs costs;
};

simple_case case_of(const std::vector<simple_stage>& stages, int microbatches, int microbatch_size) {
  simple_case made;
  auto& line = made.whole.pipelines.emplace_back();
  line.microbatches = microbatches;
  line.microbatch_size = microbatch_size;
  line.schedule.name = "h1f1b";
  std::vector<submesh> shapes;
  for (const auto& s : stages) shapes.push_back(s.mesh);
  const auto groups = pack_devices(two_kinds(), shapes);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& s = stages[i];
    const int n = static_cast<int>(i);
    line.stages.push_back(
        {.layers = {n, n + 1}, .devices = {groups[i]}, .degrees = {.tensor = s.mesh.device_count()}, .warmup = s.warmup});
    made.costs.layers.push_back({.forward_s = s.forward_s, .backward_s = s.backward_s});
    if (i + 1 < stages.size()) made.costs.boundaries.emplace_back(s.transfer_s);
    made.costs.updates.push_back(s.update_s);
  }
  return made;
}

prediction predicted(const simple_case& c, const evaluate_options& options = {}) {
  const auto found = evaluate(two_kinds(), c.costs, c.whole, options);
  REQUIRE(found);
  return found->plan.predicted;
}

double load_balance(const std::vector<simple_stage>& stages, precision arithmetic = precision::fp16) {
  return predicted(case_of(stages, 4, 1), {.arithmetic = arithmetic}).load_balance;
}

/// Peak of the devices in use, as the MFU tells it.
double peak_flops(const simple_case& c, precision arithmetic) {
  const auto p = predicted(c, {.flops_per_sample = 1e12, .arithmetic = arithmetic});
  return 1e12 * p.samples_per_s / p.mfu;
}

template <class Call>
std::string why(Call call) {
  try {
    call();
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

cluster two_subclusters() {
  cluster c;
  c.subclusters.push_back({"v100", catalogue_device("V100-SXM2-16GB"), 1, 4, {5e-6, 150e9}, {}});
  c.subclusters.push_back({"a100", catalogue_device("A100-SXM4-40GB"), 1, 2, {5e-6, 300e9}, {}});
  connect(c, "v100", "a100", {1e-4, 2e9});
  return c;
}

analytic_cost_model costs_of(const cluster& c) {
  return {
      c, make_chain(gpt({.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50257, .sequence = 1024}), granularity::block), {}};
}

/// The same plan under another schedule of its rule's own warm-ups.
plan under(plan p, const std::string& schedule) {
  for (auto& line : p.pipelines) {
    line.schedule = {.name = schedule};
    for (auto& s : line.stages) s.warmup = 0;
  }
  return p;
}

/// Random costs of up to `layers` layers, half of them with transfers dearer one way.
stub_costs random_costs(random_source& random, int layers) {
  stub_costs costs{.layers = {}, .boundaries = {}};
  const bool one_way = random.integer(0, 1) == 0;
  for (int l = 0; l < layers; ++l) {
    stage_cost c{.forward_s = random.uniform(0.1, 1),
                 .backward_s = random.uniform(0.2, 2),
                 .weight_bytes = random.integer(1, 1'000'000),
                 .activation_bytes = random.integer(1, 1'000'000),
                 .temporary_bytes = random.integer(0, 1'000'000)};
    c.weight_backward_s = c.backward_s * random.uniform(0.2, 0.6);
    costs.layers.push_back(c);
    costs.updates.push_back(random.uniform(0, 0.5));
    const double forward = random.uniform(0, 0.5);
    if (l + 1 == layers) break;
    auto& b = costs.boundaries.emplace_back(forward, one_way ? random.uniform(0, 0.5) : forward);
    if (random.integer(0, 2) > 0) continue;  // the others overlap
    b.forward_s *= 4;
    b.backward_s *= 4;
    b.forward_occupied_s = b.forward_s * random.uniform();
    b.backward_occupied_s = b.backward_s * random.uniform();
  }
  costs.sync_s = random.uniform(0, 1);
  costs.more = {.runtime_bytes = 1000, .buffer_bytes = 10, .fragmentation = 0.25, .margin = 0.125};
  return costs;
}

std::string text(const stub_costs& costs, const plan& p) {
  std::ostringstream out;
  out.precision(17);
  for (const auto& c : costs.layers)
    out << "layer {" << c.forward_s << ", " << c.backward_s << ", " << c.weight_backward_s << ", " << c.weight_bytes << ", "
        << c.activation_bytes << ", " << c.temporary_bytes << "}\n";
  for (const auto& b : costs.boundaries)
    out << "boundary {" << b.forward_s << ", " << b.backward_s << "; " << b.forward_occupied_s.value_or(b.forward_s) << ", "
        << b.backward_occupied_s.value_or(b.backward_s) << "}\n";
  for (const double u : costs.updates) out << "update " << u << "\n";
  out << "reduction " << costs.sync_s << " a layer\n";
  for (const auto& line : p.pipelines) {
    out << line.microbatches << " microbatches of " << line.microbatch_size << " under " << line.schedule.name << ":";
    for (const auto& s : line.stages) out << " " << describe(s.layers) << " warm-up " << s.warmup;
    out << "\n";
  }
  return out.str();
}

/// Stages of random sizes.
std::vector<int> random_cuts(random_source& random, int layers, int most) {
  std::vector<int> sizes;
  const int stages = random.integer(1, std::min(most, layers));
  for (int left = stages; left > 0; --left) {
    sizes.push_back(left == 1 ? layers : random.integer(1, layers - left + 1));
    layers -= sizes.back();
  }
  return sizes;
}

}  // namespace

TEST_CASE("load balance by hand") {
  // 4 slow devices work 3 s, 2 fast ones 2 s: 1 - (1 s * 600) / (3 s * (400 + 600)).
  const std::vector<simple_stage> two{{{0, 1, 4}, 1, 2, 0, 2}, {{1, 1, 2}, 0.5, 1.5, 0, 1}};
  CHECK(load_balance(two) == doctest::Approx(1 - 600.0 / 3000));
  // In fp32 all peaks are a tenth, and the shares the same; an idle second fast node does not count.
  CHECK(load_balance(two, precision::fp32) == doctest::Approx(0.8));
  CHECK(peak_flops(case_of(two, 4, 1), precision::fp16) == doctest::Approx(1000e12));
  CHECK(peak_flops(case_of(two, 4, 1), precision::fp32) == doctest::Approx(100e12));
  // Three stages: 3, 2 and 1 s on 400, 300 and 600.
  CHECK(load_balance({{{0, 1, 4}, 1, 2, 0, 3}, {{1, 1, 1}, 1, 1, 0, 2}, {{1, 1, 2}, 0, 1, 0, 1}}) ==
        doctest::Approx(1 - (1 * 300.0 + 2 * 600.0) / (3 * 1300.0)));
  CHECK(load_balance({{{0, 1, 2}, 1, 2, 0, 2}, {{1, 1, 2}, 1.5, 1.5, 0, 1}}) == doctest::Approx(1));
  CHECK(load_balance({{{0, 1, 1}, 0, 0, 0, 1}}) == 0);
}

TEST_CASE("a prediction by hand: one stage, and two equal ones") {
  const auto one = predicted(case_of({{{0, 1, 4}, 1, 2, 0, 1, 0.5}}, 8, 2));
  CHECK(one.iteration_s == doctest::Approx(8 * 3 + 0.5));
  CHECK(one.lower_bound_s == doctest::Approx(8 * 3 + 0.5));  // no order saves the update
  CHECK(one.period_s == doctest::Approx(3));
  CHECK(one.samples_per_s == doctest::Approx(16 / 24.5));
  CHECK(one.load_balance == doctest::Approx(1));
  CHECK(one.mfu == 0);

  // 1F1B without transfers: sum of t + (M - 1) t. The first stage ends last, so its update counts, not the longer one behind it.
  std::vector<simple_stage> two{{{0, 1, 4}, 1, 2, 0, 2, 0.25}, {{1, 1, 2}, 1, 2, 0, 1, 1.0}};
  CHECK(predicted(case_of(two, 8, 1)).iteration_s == doctest::Approx(6 + 7 * 3 + 0.25));
  CHECK(predicted(case_of(two, 8, 1)).lower_bound_s == doctest::Approx(6 + 7 * 3 + 0.25));
  // A long one does count: the last stage ends one backward, 2 s, earlier.
  two[1].update_s = 10;
  CHECK(predicted(case_of(two, 8, 1)).iteration_s == doctest::Approx(6 + 7 * 3 - 2 + 10));
  CHECK(predicted(case_of(two, 8, 1)).lower_bound_s == doctest::Approx(6 + 7 * 3 + 0.25));
}

TEST_CASE("samples per second and MFU by hand") {
  const auto c = case_of({{{0, 1, 4}, 1, 2, 0, 1}}, 8, 2);
  // 16 samples in 24 s, 300 TFLOP each: 200 TFLOP/s of 400.
  CHECK(predicted(c, {.flops_per_sample = 300e12}).mfu == doctest::Approx(0.5));
  CHECK(predicted(c, {.flops_per_sample = 300e12}).samples_per_s == doctest::Approx(16.0 / 24));
  CHECK(predicted(c).mfu == 0);
  // Two pipelines: all their samples, all their devices.
  auto both = c;
  both.whole.pipelines.push_back({.microbatches = 4, .microbatch_size = 2, .schedule = {.name = "h1f1b"}});
  both.whole.pipelines[1].stages = {{.layers = {0, 1}, .devices = {{{1, 1, 2}, 0}}, .degrees = {.tensor = 2}, .warmup = 1}};
  const auto p = predicted(both, {.flops_per_sample = 300e12});
  CHECK(p.samples_per_s == doctest::Approx(24.0 / 24));
  CHECK(p.mfu == doctest::Approx(300.0 / (400 + 600)));
  CHECK(p.load_balance == doctest::Approx((24 * 400 + 12 * 600) / (24.0 * 1000)));
  CHECK(p.period_s == doctest::Approx(1.5));  // together they do two microbatches in 3 s
  // With longer microbatches alone, a second pipeline lengthens nothing.
  CHECK(p.iteration_s == doctest::Approx(24));
}

TEST_CASE("one pipeline: the simulated makespan and updates on top, bounds below, memory by the one model") {
  random_source random(71);
  for (int n = 0; n < 300; ++n) {
    const int layers = random.integer(1, 8), microbatches = random.integer(1, 20);
    const auto costs = random_costs(random, layers);
    const auto sizes = random_cuts(random, layers, 6);
    const int stages = static_cast<int>(sizes.size());
    auto p = plan_of({line_of(sizes, 0, 0, microbatches, "h1f1b")});
    auto& line = p.pipelines[0];
    line.microbatch_size = random.integer(1, 4);
    int warmup = 2 * stages;
    for (auto& s : line.stages) {
      warmup -= random.integer(1, 2);
      s.warmup = std::min(microbatches, &s == &line.stages.back() ? 1 : warmup);
    }
    CAPTURE(n);
    INFO(text(costs, p));
    const auto hardware = plain_cluster(1, 6);
    const auto found = evaluate(hardware, costs, p, {.flops_per_sample = 7});
    REQUIRE(found);
    const auto& after = found->plan.pipelines[0];

    // Independently: the times of the stages by their layers, played by the simulator.
    pipeline bare;
    std::vector<double> updates;
    for (const auto& s : line.stages) {
      const auto c = costs.stage(s.layers, s.where());
      bare.forward_s.push_back(c.forward_s);
      bare.backward_s.push_back(c.backward_s);
      updates.push_back(costs.update(s.layers, s.where()));
      if (s.layers.last == layers) continue;
      const auto& b = costs.boundaries[static_cast<std::size_t>(s.layers.last - 1)];
      bare.transfer_s.push_back(b.forward_s);
      bare.gradient_transfer_s.push_back(b.backward_s);
      bare.transfer_occupied_s.push_back(b.forward_occupied_s.value_or(b.forward_s));
      bare.gradient_transfer_occupied_s.push_back(b.backward_occupied_s.value_or(b.backward_s));
    }
    const auto played = simulate(bare, one_f_one_b(warmups(line), microbatches));
    double iteration_s = 0, longest = 0;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      CHECK(found->pipelines[0].stages[i].end_s == doctest::Approx(played.rank_end_s[i]).epsilon(1e-12));
      iteration_s = std::max(iteration_s, played.rank_end_s[i] + updates[i]);
      longest = std::max(longest, updates[i]);
    }
    const auto& told = found->plan.predicted;
    CHECK(told.iteration_s == doctest::Approx(iteration_s).epsilon(1e-12));
    CHECK(told.iteration_s <= played.makespan_s + longest + 1e-12);
    CHECK(told.iteration_s >= played.makespan_s + updates[0] - 1e-12);
    CHECK(told.lower_bound_s == doctest::Approx(makespan_lower_bound(bare, microbatches) + updates[0]).epsilon(1e-12));
    CHECK(told.iteration_s >= told.lower_bound_s * (1 - 1e-12));
    CHECK(told.period_s == doctest::Approx(period(bare, warmups(line))).epsilon(1e-12));
    CHECK(told.samples_per_s == doctest::Approx(microbatches * line.microbatch_size / iteration_s).epsilon(1e-12));
    CHECK(told.mfu == doctest::Approx(7 * told.samples_per_s / (stages * 1e12)).epsilon(1e-12));
    CHECK(found->shortage == "");
    for (std::size_t i = 0; i < after.stages.size(); ++i) {
      const auto& s = after.stages[i];
      CHECK(s.cost == costs.stage(s.layers, s.where()));
      CHECK(s.overheads == costs.more);
      CHECK(s.update_s == updates[i]);
      CHECK(s.memory_capacity_bytes == gib);
      CHECK(found->pipelines[0].stages[i].in_flight == s.warmup);
      CHECK(found->pipelines[0].stages[i].memory == memory_of(s.cost, s.overheads, s.warmup));
      CHECK(s.memory_bytes == memory_of(s.cost, s.overheads, s.warmup).total());
    }
    // Again gives the same, whatever the plan said of costs.
    const auto again = evaluate(hardware, costs, found->plan, {.flops_per_sample = 7});
    REQUIRE(again);
    CHECK(again->plan == found->plan);
  }
}

TEST_CASE("every schedule: as its builder's order played by the simulator, memory as it holds most") {
  random_source random(72);
  auto names = schedule_names();
  for (int n = 0; n < 200; ++n) {
    const auto name = std::string(names[static_cast<std::size_t>(n) % names.size()]);
    const int stages = 2 * random.integer(1, 3), microbatches = 2 * stages * random.integer(1, 2);
    const auto costs = random_costs(random, stages);
    const auto p = plan_of({line_of(std::vector<int>(static_cast<std::size_t>(stages), 1), 0, 0, microbatches, name)});
    CAPTURE(n);
    INFO(text(costs, p));
    const auto found = evaluate(plain_cluster(1, 6), costs, p);
    REQUIRE(found);
    pipeline bare = to_pipeline(found->plan.pipelines[0]);
    bare.activation_bytes.clear();
    build_options options;
    if (name == "virtual_1f1b") options.cross.assign(static_cast<std::size_t>(stages - 1), false);  // one subcluster
    const auto order = build_schedule(name, bare, microbatches, options);
    CHECK(order_of(found->plan.pipelines[0], {})->order == order);
    CHECK(!found->plan.pipelines[0].schedule.actions);
    const auto played = simulate(bare, order);
    double iteration_s = 0;
    for (std::size_t i = 0; i < played.rank_end_s.size(); ++i) {
      const auto& s = found->plan.pipelines[0].stages[i];
      iteration_s = std::max(iteration_s, played.rank_end_s[i] + s.update_s);
      CHECK(found->pipelines[0].stages[i].in_flight == doctest::Approx(played.peak_memory_bytes[i]));
      if (order.directions == 1)
        CHECK(s.memory_bytes == memory_of(s.cost, s.overheads, found->pipelines[0].stages[i].in_flight).total());
    }
    const auto& told = found->plan.predicted;
    CHECK(told.iteration_s == doctest::Approx(iteration_s).epsilon(1e-12));
    CHECK(told.lower_bound_s > 0);
    CHECK(told.lower_bound_s <= told.iteration_s);
    CHECK(told.period_s > 0);
    // The same by its actions.
    auto listed = p;
    listed.pipelines[0].schedule = {.name = "my own", .actions = order};
    const auto again = evaluate(plain_cluster(1, 6), costs, listed);
    REQUIRE(again);
    CHECK(again->plan.predicted.iteration_s == doctest::Approx(told.iteration_s).epsilon(1e-12));
    CHECK(again->plan.pipelines[0].schedule == listed.pipelines[0].schedule);
  }
}

TEST_CASE("two equal pipelines of one stage: one of them and the reduction") {
  random_source random(73);
  for (int n = 0; n < 100; ++n) {
    const int layers = random.integer(1, 5), microbatches = random.integer(1, 9);
    auto costs = random_costs(random, layers);
    costs.updates.clear();
    const auto one = plan_of({line_of({layers}, 0, 0, microbatches, "1f1b")});
    auto two = one;
    two.pipelines.push_back(line_of({layers}, 1, 2, microbatches, "1f1b"));
    CAPTURE(n);
    INFO(text(costs, two));
    const auto hardware = plain_cluster(2, 3);
    const auto alone = evaluate(hardware, costs, one), both = evaluate(hardware, costs, two);
    REQUIRE(alone);
    REQUIRE(both);
    CHECK(alone->plan.gradient_sync.empty());
    CHECK(both->plan.gradient_sync == std::vector<gradient_sync_plan>{{{0, layers}, {0, 1}, 10 * layers, costs.sync_s * layers}});
    CHECK(both->plan.predicted.iteration_s == alone->plan.predicted.iteration_s + costs.sync_s * layers);
    CHECK(both->plan.predicted.period_s == doctest::Approx(alone->plan.predicted.period_s / 2));
    CHECK(both->plan.predicted.lower_bound_s == alone->plan.predicted.lower_bound_s + costs.sync_s * layers);
    CHECK(both->plan.pipelines[1].stages[0].memory_bytes == alone->plan.pipelines[0].stages[0].memory_bytes);
  }
}

TEST_CASE("pipelines of several stages reduce what they share group by group, last layers first") {
  random_source random(74);
  for (int n = 0; n < 200; ++n) {
    const int layers = random.integer(1, 8), pipelines = random.integer(2, 3);
    const auto costs = random_costs(random, layers);
    plan p;
    for (int l = 0; l < pipelines; ++l)
      p.pipelines.push_back(
          line_of(random_cuts(random, layers, 4), l, 0, random.integer(1, 9), random.integer(0, 1) == 0 ? "h1f1b" : "gpipe"));
    CAPTURE(n);
    INFO(text(costs, p));
    const auto found = evaluate(plain_cluster(3, 4), costs, p);
    REQUIRE(found);

    // Every pipeline alone tells when its stages are done; then layer by layer from the last on, each run of layers in the same
    // stages waits until all of these are free.
    std::vector<std::vector<double>> free_s;
    std::vector<std::vector<int>> stage_of;
    for (const auto& line : p.pipelines) {
      const auto alone = evaluate(plain_cluster(3, 4), costs, plan_of({line}));
      REQUIRE(alone);
      auto& ends = free_s.emplace_back();
      for (const auto& s : alone->pipelines[0].stages) ends.push_back(s.end_s);
      auto& of = stage_of.emplace_back();
      for (std::size_t i = 0; i < line.stages.size(); ++i)
        for (int l = line.stages[i].layers.first; l < line.stages[i].layers.last; ++l) of.push_back(static_cast<int>(i));
    }
    const auto same_stages = [&](int a, int b) {
      return std::all_of(stage_of.begin(), stage_of.end(), [&](const std::vector<int>& of) {
        return of[static_cast<std::size_t>(a)] == of[static_cast<std::size_t>(b)];
      });
    };
    std::size_t groups = 0;
    for (int last = layers - 1; last >= 0;) {
      int first = last;
      while (first > 0 && same_stages(first - 1, last)) --first;
      double start_s = 0;
      const auto at = static_cast<std::size_t>(last);
      for (std::size_t l = 0; l < free_s.size(); ++l)
        start_s = std::max(start_s, free_s[l][static_cast<std::size_t>(stage_of[l][at])]);
      for (std::size_t l = 0; l < free_s.size(); ++l)
        free_s[l][static_cast<std::size_t>(stage_of[l][at])] = start_s + costs.sync_s * (last - first + 1);
      last = first - 1;
      ++groups;
    }
    double iteration_s = 0;
    for (std::size_t l = 0; l < free_s.size(); ++l)
      for (std::size_t i = 0; i < free_s[l].size(); ++i)
        iteration_s = std::max(iteration_s, free_s[l][i] + found->plan.pipelines[l].stages[i].update_s);
    CHECK(found->plan.predicted.iteration_s == doctest::Approx(iteration_s).epsilon(1e-12));
    CHECK(found->plan.gradient_sync.size() == groups);
    CHECK(found->plan.predicted.iteration_s >= found->plan.predicted.lower_bound_s * (1 - 1e-12));
  }
}

TEST_CASE("the bound of a plan holds for other orders of its stages") {
  random_source random(75);
  int met = 0;
  for (int n = 0; n < 200; ++n) {
    const int layers = random.integer(1, 8), pipelines = random.integer(1, 3);
    auto costs = random_costs(random, layers);
    if (layers > 1) costs.shared = {{.owner = 0, .layer = layers - 1, .weight_bytes = 40, .reduction_bytes = 40}};
    auto hardware = plain_cluster(3, 4);
    for (auto& s : hardware.subclusters) s.intra_node = {0, random.uniform(20, 500)};  // bytes a second
    plan p;
    for (int l = 0; l < pipelines; ++l)
      p.pipelines.push_back(line_of(random_cuts(random, layers, 4), l, 0, random.integer(1, 9), "h1f1b"));
    CAPTURE(n);
    INFO(text(costs, p));
    double bound_s = 0, least_s = infinity;
    const auto look = [&](const plan& order) {
      const auto found = evaluate(hardware, costs, order);
      REQUIRE(found);
      bound_s = std::max(bound_s, found->plan.predicted.lower_bound_s);
      least_s = std::min(least_s, found->plan.predicted.iteration_s);
    };
    for (const auto name : {"1f1b", "gpipe", "eager_1f1b", "h1f1b", "exact_1f1b"}) look(under(p, name));
    for (int k = 0; k < 10; ++k) {
      for (auto& line : p.pipelines) {
        int warmup = 1;
        for (std::size_t i = line.stages.size(); i-- > 0; warmup += random.integer(1, 3))
          line.stages[i].warmup = std::min(line.microbatches, warmup);
      }
      look(p);
    }
    CHECK(bound_s <= least_s * (1 + 1e-12));
    met += bound_s >= least_s * (1 - 1e-9);
  }
  CHECK(met > 20);  // a bound that is met cannot be raised
}

TEST_CASE("every microbatch size has costs of its own") {
  const stub_costs small{.layers = {{.forward_s = 1, .backward_s = 2}}, .boundaries = {}};
  const stub_costs large{.layers = {{.forward_s = 3, .backward_s = 5}}, .boundaries = {}};
  auto p = plan_of({line_of({1}, 0, 0, 6, "1f1b"), line_of({1}, 1, 0, 2, "1f1b")});
  p.pipelines[1].microbatch_size = 4;
  std::vector<int> asked;
  const auto found = evaluate(
      plain_cluster(2, 1),
      [&](int size) -> const stub_costs& {
        asked.push_back(size);
        return size == 1 ? small : large;
      },
      p);
  REQUIRE(found);
  CHECK(asked == std::vector{1, 4});
  CHECK(found->pipelines[0].stages[0].end_s == 18);
  CHECK(found->pipelines[1].stages[0].end_s == 16);
  CHECK(found->plan.predicted.iteration_s == 18);
  CHECK(found->plan.predicted.samples_per_s == doctest::Approx(14.0 / 18));
  // By value, too.
  const auto again = evaluate(
      plain_cluster(2, 1), [&](int size) { return size == 1 ? small : large; }, p);
  REQUIRE(again);
  CHECK(again->plan == found->plan);
}

TEST_CASE("what evaluate throws at, with the stage named, and what it refuses") {
  const stub_costs costs{.layers = std::vector<stage_cost>(4, {.forward_s = 1, .backward_s = 2}), .boundaries = {}};
  const auto hardware = plain_cluster(2, 3);
  const auto good = plan_of({line_of({2, 2}, 0, 0, 4, "1f1b"), line_of({1, 3}, 1, 0, 4, "1f1b")});
  REQUIRE(evaluate(hardware, costs, good));
  const auto error = [&](auto change) {
    auto p = good;
    change(p);
    return why([&] { (void)evaluate(hardware, costs, p); });
  };
  const auto shared = error([](plan& p) { p.pipelines[1].stages[0].devices = {{{0, 1, 1}, 1}}; });
  CHECK(contains(shared, "pipeline 1, stage 0: device 1 of s0 belongs to pipeline 0, stage 1 already"));
  const auto twice = error([](plan& p) {
    p.pipelines.pop_back();
    p.pipelines[0].stages[1].devices = p.pipelines[0].stages[0].devices;
  });
  CHECK(contains(twice, "stage 1: device 0 of s0 belongs to stage 0 already"));
  CHECK(contains(error([](plan& p) { p.pipelines.clear(); }), "at least one pipeline"));
  CHECK(contains(error([](plan& p) { p.pipelines[0].stages[1].layers.last = 5; }), "end at layer 5, the model at 4"));
  CHECK(contains(error([](plan& p) { p.pipelines[0].schedule.name = "2f2b"; }), "there is no schedule \"2f2b\""));
  CHECK(contains(error([](plan& p) { p.pipelines[1].schedule.actions = gpipe(2, 5); }), "are for 2 stages and 5 microbatches"));
  CHECK(contains(error([](plan& p) {
                   p.pipelines[0].stages[0].devices = {{{0, 1, 2}, 1}};
                   p.pipelines[0].stages[1].devices = {{{0, 1, 1}, 0}};
                   p.pipelines[0].stages[0].degrees = {1, 2, 1};
                 }),
                 "pipeline 0, stage 0: there are no costs for these degrees on this shape, subcluster s0 (1x2, context 2)"));
  auto bad = costs;
  bad.layers[1].backward_s = -10;
  CHECK(contains(why([&] { (void)evaluate(hardware, bad, good); }), "the cost of layers 0-1 on subcluster s0 (1x1)"));
  bad = costs;
  bad.boundaries = {{}, std::nan("")};
  CHECK(contains(why([&] { (void)evaluate(hardware, bad, good); }), "transfer of boundary 1 from subcluster s0"));
  bad = costs;
  bad.sync_s = -1;
  CHECK(contains(why([&] { (void)evaluate(hardware, bad, good); }), "the reduction of the gradients of layer 0 is negative"));
  bad = costs;
  bad.more.margin = -1;
  CHECK(why([&] { (void)evaluate(hardware, bad, good); }) != "");

  // No link between the pipelines, and none inside one.
  bad = costs;
  bad.cut_off = 1;
  auto refused = evaluate(hardware, bad, good);
  REQUIRE(!refused);
  CHECK(refused.why_not().why == refusal::kind::infeasible);
  CHECK(contains(refused.why_not().reason, "no link joins all pipelines: the gradients of layer 0 cannot be added up"));
  auto across = plan_of({line_of({2, 2}, 0, 0, 4, "1f1b")});
  across.pipelines[0].stages[1].devices = {{{1, 1, 1}, 0}};
  refused = evaluate(hardware, bad, across);
  REQUIRE(!refused);
  CHECK(refused.why_not().reason == "stage 1: no link leads from subcluster s0 (1x1) to subcluster s1 (1x1)");
  CHECK(evaluate(hardware, costs, across));
}

TEST_CASE("a plan that does not fit is evaluated, and the stage that lacks most is told") {
  stub_costs costs{.layers = {}, .boundaries = {}};
  for (int l = 0; l < 2; ++l)
    costs.layers.push_back({.forward_s = 1,
                            .backward_s = 1,
                            .weight_bytes = gib / 2,
                            .activation_bytes = (l + 1) * gib / 4,
                            .gradient_bytes = gib / 8,
                            .temporary_bytes = gib / 16});
  costs.more = {.buffer_bytes = gib / 32};
  const auto p = plan_of({line_of({1, 1}, 0, 0, 8, "gpipe")});
  const auto found = evaluate(plain_cluster(1, 2), costs, p);
  REQUIRE(found);
  CAPTURE(found->shortage);
  CHECK(found->plan.predicted.iteration_s == doctest::Approx(18));
  CHECK(found->plan.pipelines[0].stages[1].memory_bytes == gib / 2 + 4 * gib + gib / 16 + gib / 32);
  CHECK(contains(found->shortage, "stage 1 needs 4.594 GiB of the 1 GiB of d: "));
  for (const char* part : {"weights 0.375 GiB,", "gradients 0.125 GiB,", "activations 4 GiB,", "transfer buffers 0.03125 GiB,",
                           "temporary 0.0625 GiB", "with 8 microbatches in flight"})
    CHECK(contains(found->shortage, part));
  // What a transfer holds counts on both of its sides.
  costs.boundaries = {{0, 0, 0, gib}};
  const auto more = evaluate(plain_cluster(1, 2), costs, p);
  REQUIRE(more);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(more->plan.pipelines[0].stages[i].memory_bytes == found->plan.pipelines[0].stages[i].memory_bytes + gib);
}

TEST_CASE("the planner's own prediction comes back") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact}) {
    const auto planned = interop_dp(hardware, costs, {.microbatches = 32}, {.warmup = rule});
    REQUIRE(planned);
    REQUIRE(planned->pipelines.front().stages.size() > 2);
    const auto found = evaluate(hardware, costs, *planned);
    REQUIRE(found);
    CHECK(found->plan == *planned);
    // Without its warm-ups it has those of the rule.
    const auto ruled = evaluate(hardware, costs, under(*planned, std::string(schedule_name(rule))));
    REQUIRE(ruled);
    CHECK(warmup_counts(order_of(ruled->plan.pipelines[0], {})->order) == warmups(ruled->plan.pipelines[0]));
    auto counts = warmup_counts(rule, to_pipeline(planned->pipelines[0]));
    for (int& c : counts) c = std::min(c, 32);
    CHECK(warmups(ruled->plan.pipelines[0]) == counts);
  }
}

TEST_CASE("auto is at least as fast as every schedule of one stage per rank that fits, and stays in memory") {
  const auto hardware = two_subclusters();
  const auto costs = costs_of(hardware);
  const auto planned = interop_dp(hardware, costs, {.microbatches = 24});
  REQUIRE(planned);
  const auto best = evaluate(hardware, costs, under(*planned, "auto"));
  REQUIRE(best);
  const auto& line = best->plan.pipelines[0];
  CHECK(line.schedule.name == "auto");
  REQUIRE(line.schedule.actions);
  CHECK(check(line.schedule.actions.value()).empty());
  CHECK(best->plan.predicted.iteration_s >= best->plan.predicted.lower_bound_s);
  CHECK(best->plan.predicted.iteration_s < planned->predicted.iteration_s);
  CHECK(best->shortage == "");
  for (const auto& s : line.stages) {
    CHECK(s.memory_bytes <= s.memory_capacity_bytes);
    CHECK(s.cost.weight_backward_s >= 0);  // 0: layers without products, an embedding say
    CHECK(s.cost.weight_backward_s < s.cost.backward_s);
  }
  int fitting = 0;
  for (const auto name : {"gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b", "zb_h1", "zb_h2"}) {
    CAPTURE(name);
    const auto other = evaluate(hardware, costs, under(*planned, name));
    REQUIRE(other);
    CHECK(other->plan.predicted.lower_bound_s <= other->plan.predicted.iteration_s);
    if (!other->shortage.empty()) continue;
    ++fitting;
    double slowest_update = 0;
    for (const auto& s : other->plan.pipelines[0].stages) slowest_update = std::max(slowest_update, s.update_s);
    CHECK(best->plan.predicted.iteration_s <= other->plan.predicted.iteration_s + slowest_update);
  }
  CHECK(fitting >= 4);
}

TEST_CASE("auto without room is refused") {
  stub_costs costs{
      .layers = std::vector<stage_cost>(2, {.forward_s = 1, .backward_s = 2, .weight_bytes = gib, .activation_bytes = 1}),
      .boundaries = {}};
  const auto p = plan_of({line_of({1, 1}, 0, 0, 4, "auto")});
  const auto refused = evaluate(plain_cluster(1, 2), costs, p);
  REQUIRE(!refused);
  CHECK(refused.why_not().why == refusal::kind::infeasible);
  for (auto& l : costs.layers) l.weight_bytes -= 2;
  CHECK(evaluate(plain_cluster(1, 2), costs, p));
  for (auto& l : costs.layers) l.temporary_bytes = 2;
  CHECK(!evaluate(plain_cluster(1, 2), costs, p));
}

TEST_CASE("a bidirectional schedule holds the weights of both directions") {
  stub_costs costs{.layers = {}, .boundaries = {}};
  for (int l = 0; l < 4; ++l)
    costs.layers.push_back({.forward_s = 1,
                            .backward_s = 2,
                            .weight_bytes = 1000 << l,
                            .activation_bytes = 1,
                            .gradient_bytes = 100 << l,
                            .optimizer_bytes = 10 << l,
                            .temporary_bytes = 100'000 << l});
  const auto found = evaluate(plain_cluster(1, 4), costs, plan_of({line_of({1, 1, 1, 1}, 0, 0, 8, "chimera")}));
  REQUIRE(found);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto &a = costs.layers[i], &b = costs.layers[3 - i];
    const auto& m = found->pipelines[0].stages[i].memory;
    CHECK(m.weights + m.gradients + m.optimizer == a.weight_bytes + b.weight_bytes);
    CHECK(m.gradients == a.gradient_bytes + b.gradient_bytes);
    CHECK(m.optimizer == a.optimizer_bytes + b.optimizer_bytes);
    CHECK(m.temporary == std::max(a.temporary_bytes, b.temporary_bytes));
    CHECK(found->plan.pipelines[0].stages[i].cost == a);  // what the stage itself costs
  }
}

namespace {

/// Dearer between nodes.
struct costs_by_node : stub_costs {
  [[nodiscard]] transfer_cost transfer(int, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return from.mesh.subcluster == to.mesh.subcluster && near == proximity::same_node ? 0.25 : 2;
  }
};

}  // namespace

TEST_CASE("transfers are priced by where the devices are: the same shapes, on one node and on two") {
  const auto hardware = two_kinds();  // the second subcluster: two nodes of two
  costs_by_node costs;
  costs.layers.assign(3, {.forward_s = 1, .backward_s = 2});
  const auto on = [&](int first, int second, int third) {
    pipeline_plan line{.microbatches = 1, .schedule = {.name = "1f1b"}};
    line.stages = {on_device({0, 1}, 1, first), on_device({1, 2}, 1, second), on_device({2, 3}, 1, third)};
    const auto found = evaluate(hardware, costs, plan_of({line}));
    REQUIRE(found);
    return found->plan;
  };
  const auto boundaries = [](const plan& p) {
    std::vector<double> seconds;
    for (const auto& b : p.pipelines[0].boundaries) {
      CHECK(b.forward_s == b.backward_s);
      seconds.push_back(b.forward_s);
    }
    return seconds;
  };
  CHECK(boundaries(on(0, 1, 2)) == std::vector<double>{0.25, 2});
  CHECK(boundaries(on(0, 2, 3)) == std::vector<double>{2, 0.25});
  CHECK(boundaries(on(3, 0, 2)) == std::vector<double>{2, 2});
  CHECK(on(0, 1, 2).predicted.iteration_s == doctest::Approx(9 + 2 * 2.25));
  CHECK(on(3, 0, 2).predicted.iteration_s == doctest::Approx(9 + 2 * 4));
  // Another node of the same number, in another subcluster.
  pipeline_plan line{.microbatches = 1, .schedule = {.name = "1f1b"}};
  line.stages = {on_device({0, 1}, 0, 0), on_device({1, 2}, 0, 3), on_device({2, 3}, 1, 0)};
  const auto across = evaluate(hardware, costs, plan_of({line}));
  REQUIRE(across);
  CHECK(boundaries(across->plan) == std::vector<double>{0.25, 2});
}

TEST_CASE("the analytic model prices a plan's transfers by its links: inside a node, between nodes") {
  auto hardware = two_kinds();
  for (auto& s : hardware.subclusters) {
    s.intra_node = {1e-6, 1e11};
    s.inter_node = {1e-5, 1e10};
    s.device.memory_bytes = 64 * gib;
  }
  hardware.links = {{0, 1, {1e-3, 1e9}}};
  const analytic_cost_model costs(hardware,
                                  make_chain(gpt({.layers = 2, .hidden = 64, .heads = 4, .vocab = 128, .sequence = 32})));
  const int layers = cost_of::layer_count(costs);
  for (const auto& [second, latency_s, bandwidth] : {std::tuple{1, 1e-6, 1e11}, {2, 1e-5, 1e10}}) {
    pipeline_plan line{.microbatches = 2, .schedule = {.name = "1f1b"}};
    line.stages = {on_device({0, 2}, 1, 0), on_device({2, layers}, 1, second)};
    const auto found = evaluate(hardware, costs, plan_of({line}));
    REQUIRE(found);
    const auto& b = found->plan.pipelines[0].boundaries[0];
    REQUIRE(b.bytes > 0);
    CHECK(b.forward_s == doctest::Approx(latency_s + static_cast<double>(b.bytes) / bandwidth).epsilon(1e-12));
  }
}

TEST_CASE("stages that share parameters add up their gradients once, when both are done") {
  auto hardware = plain_cluster(2, 2);
  connect(hardware, "s0", "s1", {0.5, 1e8});
  stub_costs costs{.layers = {{.forward_s = 1, .backward_s = 2, .weight_bytes = 50},
                              {.forward_s = 1, .backward_s = 2},
                              {.forward_s = 1, .backward_s = 2, .weight_bytes = 70}},
                   .boundaries = {}};
  costs.updates = {0.25, 5, 0.125};
  const auto one = [&](std::vector<stage_plan> stages) {
    auto p = plan_of({line_of({3}, 0, 0, 4, "1f1b")});
    p.pipelines[0].stages = std::move(stages);
    return p;
  };
  const auto whole = one({on_device({0, 3}, 0, 0)}), apart = one({on_device({0, 1}, 0, 0), on_device({1, 3}, 1, 0)}),
             three = one({on_device({0, 1}, 0, 0), on_device({1, 2}, 0, 1), on_device({2, 3}, 1, 0)});
  std::vector<prediction> without;
  for (const auto& p : {whole, apart, three}) {
    const auto found = evaluate(hardware, costs, p);
    REQUIRE(found);
    CHECK(found->plan.pipelines[0].copy_sync.empty());
    without.push_back(found->plan.predicted);
  }
  costs.shared = {{.owner = 0, .layer = 2, .weight_bytes = 40, .reduction_bytes = 300'000'000}};
  const auto held = evaluate(hardware, costs, whole);
  REQUIRE(held);
  CHECK(held->plan.predicted == without[0]);
  CHECK(held->plan.pipelines[0].copy_sync.empty());
  CHECK(held->plan.pipelines[0].stages[0].cost.weight_bytes == 80);
  CHECK(held->plan.pipelines[0].stages[0].memory_bytes == 80);

  // Both ways at once over the link: 2 x 0.5 s of latency, and 3 s.
  const auto two = evaluate(hardware, costs, apart);
  REQUIRE(two);
  const std::vector<copy_sync_plan> sync{{.owner = 0, .layer = 2, .bytes = 300'000'000, .seconds = 4}};
  CHECK(two->plan.pipelines[0].copy_sync == sync);
  CHECK(two->plan.pipelines[0].stages[0].memory_bytes == 50);
  CHECK(two->plan.pipelines[0].stages[1].memory_bytes == 70);
  // The last stage is done first; the first one then begins, and the last one updates for longest.
  CHECK(two->pipelines[0].stages[0].end_s > two->pipelines[0].stages[1].end_s);
  CHECK(two->plan.predicted.iteration_s == two->pipelines[0].stages[0].end_s + 4 + 5.125);
  CHECK(two->plan.predicted.iteration_s > without[1].iteration_s);
  CHECK(two->plan.predicted.lower_bound_s == without[1].lower_bound_s + 4);
  const auto parts = break_down(hardware, *two, *two);
  CHECK(parts.stage == 1);
  CHECK(parts.gradient_reduction_s == 4);
  CHECK(parts.bubble_s + parts.compute_s + parts.optimizer_s + 4 == doctest::Approx(two->plan.predicted.iteration_s));

  // A stage in between updates meanwhile.
  const auto between = evaluate(hardware, costs, three);
  REQUIRE(between);
  CHECK(between->plan.pipelines[0].copy_sync == sync);
  const double first_s = between->pipelines[0].stages[0].end_s, middle_s = between->pipelines[0].stages[1].end_s;
  CHECK(between->plan.predicted.iteration_s == std::max(first_s + 4 + 0.25, middle_s + 5));

  // Two pipelines: the reductions between them as they are, then each its own.
  auto both = plan_of({apart.pipelines[0], apart.pipelines[0]});
  both.pipelines[1].stages = {on_device({0, 1}, 1, 1), on_device({1, 3}, 0, 1)};
  costs.sync_s = 0.5;
  const auto pair = evaluate(hardware, costs, both);
  REQUIRE(pair);
  CHECK(pair->plan.pipelines[0].copy_sync == sync);
  CHECK(pair->plan.pipelines[1].copy_sync == sync);
  CHECK(pair->plan.gradient_sync.size() == 2);
  CHECK(pair->plan.predicted.iteration_s == two->plan.predicted.iteration_s + 0.5);
  // Replicas: twice as many bytes for two on both sides.
  auto replicas_of = one({{.layers = {0, 1}, .devices = {{{0, 1, 2}, 0}}, .degrees = {.data = 2}},
                          {.layers = {1, 3}, .devices = {{{1, 1, 2}, 0}}, .degrees = {.data = 2}}});
  const auto twice = evaluate(hardware, costs, replicas_of);
  REQUIRE(twice);
  CHECK(twice->plan.pipelines[0].copy_sync[0].seconds == 7);
  // What the iteration has is there again with noise.
  CHECK(iterations_under_jitter(two->plan, 0, 1, 1)[0] == doctest::Approx(two->plan.predicted.iteration_s));

  hardware.links.clear();
  const auto refused = evaluate(hardware, costs, apart);
  REQUIRE_FALSE(refused);
  CHECK(refused.why_not().reason == "no link joins stage 0 and stage 1, which share parameters of layers 0 and 2");
  CHECK(evaluate(hardware, costs, whole).has_value());
  costs.shared[0].layer = 3;
  CHECK(why([&] { (void)evaluate(hardware, costs, whole); }) ==
        "layer 3's copy of parameters of layer 0: expected two of 3 layers");
}

TEST_CASE("a tied Llama over 1 Gbit/s: the embedding's gradients take 4.2 s, and on one device none") {
  cluster hardware;
  hardware.subclusters.push_back({"A", catalogue_device("A100-SXM4-40GB"), 1, 8, {3e-6, 300e9}, {}});
  hardware.subclusters.push_back({"B", catalogue_device("A800-SXM4-80GB"), 1, 8, {3e-6, 200e9}, {}});
  connect(hardware, "A", "B", {1e-5, 125e6});
  auto model =
      llama({.layers = 16, .hidden = 2048, .heads = 32, .kv_heads = 8, .ffn_hidden = 8192, .vocab = 128256, .sequence = 2048});
  const auto seconds = [&](bool tied, std::vector<stage_plan> stages) {
    model.tied_embeddings = tied;
    auto p = plan_of({line_of({18}, 0, 0, 8, "1f1b")});
    p.pipelines[0].stages = std::move(stages);
    const auto found = evaluate(hardware, analytic_cost_model(hardware, make_chain(model)), p);
    REQUIRE(found);
    return found->plan.predicted.iteration_s;
  };
  const std::vector<stage_plan> apart{on_device({0, 9}, 0, 0), on_device({9, 18}, 1, 0)};
  const double sum_s = 2 * 1e-5 + 128256.0 * 2048 * 2 / 125e6;
  CHECK(sum_s == doctest::Approx(4.2027).epsilon(1e-4));
  CHECK(seconds(true, apart) - seconds(false, apart) == doctest::Approx(sum_s).epsilon(1e-3));
  // In one stage the copy does not even take part in the optimizer step.
  const std::vector<stage_plan> whole{on_device({0, 18}, 1, 0)};
  CHECK(seconds(true, whole) < seconds(false, whole));
}

TEST_CASE("sums of gradients: each pipeline adds up all of its microbatches but the first, and is charged for these") {
  // A sum takes 0.6 s; priced as in one pipeline of 6 microbatches, 0.5 s of each.
  const double sum_s = 0.6, whole_s = 0.9;
  stub_costs costs;
  for (int l = 0; l < 2; ++l)
    costs.layers.push_back({.forward_s = 1,
                            .backward_s = 2 + sum_s * 5 / 6,
                            .weight_backward_s = 1 + sum_s * 5 / 6,
                            .sums_s = sum_s * 5 / 6,
                            .staged_sums_s = l == 0 ? 0 : whole_s * 5 / 6});
  const auto hardware = plain_cluster(3, 2);
  const auto judged = [&](std::vector<pipeline_plan> lines) {
    auto found = evaluate(hardware, costs, plan_of(std::move(lines)));
    REQUIRE(found);
    return *std::move(found);
  };
  const auto work_s = [&](int microbatches) { return 2 * (3.0 * microbatches + sum_s * (microbatches - 1)); };
  CHECK(judged({line_of({2}, 0, 0, 6, "1f1b")}).plan.predicted.iteration_s == doctest::Approx(work_s(6)));
  const auto two = judged({line_of({2}, 0, 0, 4, "1f1b"), line_of({2}, 1, 0, 2, "1f1b")});
  CHECK(two.plan.predicted.iteration_s == doctest::Approx(work_s(4)));
  CHECK(2 * two.plan.pipelines[1].stages[0].cost.total_s() == doctest::Approx(work_s(2)));
  CHECK(2 * two.plan.pipelines[1].stages[0].cost.weight_backward_s == doctest::Approx(2 * (2 * 1 + sum_s)));
  const auto each = judged({line_of({2}, 0, 0, 5, "1f1b"), line_of({2}, 1, 0, 1, "1f1b")});
  CHECK(each.plan.pipelines[1].stages[0].cost.backward_s == doctest::Approx(4));  // one microbatch adds to no other
  // Whole gradients where there are several stages, of layers that say so; what is charged is charged once.
  const auto staged = judged({line_of({1, 1}, 0, 0, 3, "1f1b"), line_of({1, 1}, 2, 0, 3, "1f1b")});
  const auto& stages = staged.plan.pipelines[1].stages;
  CHECK(3 * stages[0].cost.backward_s == doctest::Approx(3 * 2 + 2 * sum_s));
  CHECK(3 * stages[1].cost.backward_s == doctest::Approx(3 * 2 + 2 * whole_s));
  CHECK(stages[1].cost.sums_s == 0);
  CHECK(stages[1].cost.staged_sums_s == 0);
  CHECK(evaluate(hardware, costs, staged.plan)->plan == staged.plan);
  // Of two parts the one without sums is slower where the other one adds none.
  struct unlike_costs : stub_costs {
    [[nodiscard]] stage_cost layer(int index, const placement& where) const {
      return where.mesh.subcluster == 1 ? stage_cost{.forward_s = 1, .backward_s = 2.4, .weight_backward_s = 0.7}
                                        : stub_costs::layer(index, where);
    }
    [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const { return sum_of_layers(*this, range, where); }
  };
  unlike_costs unlike;
  unlike.layers = costs.layers;
  auto mixed = line_of({2}, 0, 0, 1, "1f1b"), rest = line_of({2}, 2, 0, 2, "1f1b");
  mixed.microbatch_size = rest.microbatch_size = 2;
  mixed.stages[0].devices = {{{0, 1, 1}, 0}, {{1, 1, 1}, 0}};
  mixed.stages[0].degrees.data = 2;
  const auto parts = evaluate(hardware, costs_by_size([&](int) { return unlike; }), plan_of({mixed, rest}));
  REQUIRE(parts);
  CHECK(parts->plan.pipelines[0].stages[0].cost.backward_s == doctest::Approx(2 * 2.4));
  CHECK(parts->plan.pipelines[0].stages[0].cost.weight_backward_s == doctest::Approx(2 * 0.7));
  // Prices of sums that are more than all of backward are none.
  costs.layers[0].sums_s = 8;
  CHECK_THROWS_AS((void)evaluate(hardware, costs, plan_of({line_of({2}, 0, 0, 6, "1f1b")})), input_error);
}

TEST_CASE("sends that hold ranks up: two stages, forward 1 s, backward 2 s, a second each way") {
  const auto judged = [](int microbatches, int depth = 2) {
    std::vector<simple_stage> stages;
    for (int i = 0; i < depth; ++i) stages.push_back({{0, 1, 1}, 1, 2, 1, depth - i, 0.5});
    auto one = case_of(stages, microbatches, 1);
    one.whole.pipelines[0].schedule.name = "1f1b";
    auto found = evaluate(two_kinds(), one.costs, one.whole);
    REQUIRE(found);
    return *std::move(found);
  };
  // The first rank: forward 0-1, second forward while the first tensor travels, backwards when gradients have come at 6 and 9.
  CHECK(iteration_under(judged(2), send_mode::asynchronous) == doctest::Approx(11.5));
  // It waits for both forwards to be there (2, 4); stage 1 computes 2-3, 4-6, sends to 7, computes 7-10, sends to 11.
  CHECK(iteration_under(judged(2), send_mode::blocking) == doctest::Approx(13.5));
  CHECK(iteration_under(judged(2), send_mode::grouped) == doctest::Approx(13.5));
  CHECK(iteration_under(judged(1), send_mode::blocking) == doctest::Approx(8.5));
  const auto four = judged(12, 4);
  CHECK(iteration_under(four, send_mode::asynchronous) == four.plan.predicted.iteration_s);
  CHECK(iteration_under(four, send_mode::grouped) > four.plan.predicted.iteration_s);
  CHECK(iteration_under(four, send_mode::blocking) > iteration_under(four, send_mode::grouped));

  // A trainer's way of sending counts where there is something to send, and under schedules that leave it open.
  auto p = four.plan;
  CHECK(sends_under(p, send_mode::grouped) == send_mode::grouped);
  CHECK(sends_under(judged(2, 1).plan, send_mode::grouped) == send_mode::asynchronous);
  const auto own = order_of(p.pipelines[0], std::vector<double>(4, 100.0))->order;
  p.pipelines[0].schedule.actions = own;
  CHECK(sends_under(p, send_mode::blocking) == send_mode::blocking);
  p.pipelines[0].schedule.actions = add_transfers(own);
  CHECK(sends_under(p, send_mode::blocking) == send_mode::asynchronous);
  p.pipelines[0].schedule = {.name = "interleaved_1f1b"};
  CHECK(sends_under(p, send_mode::blocking) == send_mode::asynchronous);
  p.pipelines[0].schedule = {.name = "virtual_1f1b"};  // other warm-ups; trainers send under them as under others
  CHECK(sends_under(p, send_mode::blocking) == send_mode::blocking);
}
