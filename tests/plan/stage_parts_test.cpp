// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/stage_parts.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/state_shares.hpp>

using namespace hetsched;

namespace {

// Two nodes of four fast devices, and one of four slow ones.
cluster fast_and_slow() {
  cluster c{.subclusters = {{"fast", catalogue_device("A100-SXM4-40GB"), 2, 4, {5e-6, 100e9}, {1e-5, 10e9}},
                            {"slow", catalogue_device("V100-SXM2-16GB"), 1, 4, {5e-6, 50e9}, {}}}};
  connect(c, "fast", "slow", {.latency_s = 1e-5, .bandwidth = 5e9});
  return c;
}

/// The analytic model at any microbatch size.
struct models {
  cluster hardware = fast_and_slow();
  layer_chain chain = make_chain(gpt({.layers = 4, .hidden = 1024, .heads = 16, .sequence = 512}));
  std::map<int, analytic_cost_model> known = {};
  const analytic_cost_model& operator()(int size) {
    return known.try_emplace(size, hardware, chain, analytic_options{.microbatch_size = size, .zero = {0, 1, 2, 3}})
        .first->second;
  }
};

stage_plan stage(layer_range layers, std::vector<device_group> devices, degrees d, std::vector<double> data = {}) {
  return {.layers = layers, .devices = std::move(devices), .degrees = d, .shares = {.data = std::move(data)}};
}

plan plan_of(std::vector<stage_plan> stages, int microbatch_size, int microbatches = 8) {
  plan p;
  p.pipelines.push_back({.microbatches = microbatches, .microbatch_size = microbatch_size, .stages = std::move(stages)});
  p.pipelines.back().schedule.name = "1f1b";
  return p;
}

plan judged(models& costs, plan p) {
  const auto found = evaluate(costs.hardware, costs, std::move(p));
  REQUIRE(found);
  return found->plan;
}

/// A part in short: nodes, devices of each, first device, replicas, samples.
std::vector<std::vector<int>> in_short(const std::vector<stage_part>& parts) {
  std::vector<std::vector<int>> all;
  for (const auto& p : parts)
    all.push_back({p.where.mesh.subcluster, p.where.mesh.nodes, p.where.mesh.devices_per_node, p.devices[0].first_device,
                   p.where.degrees.data, p.samples});
  return all;
}

using rows = std::vector<std::vector<int>>;

std::string why(const stage_plan& s, int microbatch_size) {
  try {
    (void)parts_of(s, microbatch_size);
  } catch (const input_error& wrong) {
    return wrong.what();
  }
  return "";
}

}  // namespace

TEST_CASE("parts are replicas that follow each other and are alike: whole nodes, or what is on one") {
  const device_group all_fast{{0, 2, 4}, 0}, all_slow{{1, 1, 4}, 0};
  // Even shares of equal devices: one part, as the stage was asked for.
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast}, {.data = 8}), 16)) == rows{{0, 2, 4, 0, 8, 16}});
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast}, {.data = 8}, std::vector<double>(8, 0.125)), 16)) ==
        rows{{0, 2, 4, 0, 8, 16}});
  // Unlike devices, evenly.
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast, all_slow}, {.data = 12}), 24)) ==
        rows{{0, 2, 4, 0, 8, 16}, {1, 1, 4, 0, 4, 8}});
  // Two ranks of two devices with 5 samples, two with 3.
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast}, {.data = 4, .tensor = 2}, {0.3125, 0.3125, 0.1875, 0.1875}), 16)) ==
        rows{{0, 1, 4, 0, 2, 10}, {0, 1, 4, 4, 2, 6}});
  // A run that begins inside a node is cut at its end.
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast}, {.data = 8}, {.3, .1, .1, .1, .1, .1, .1, .1}), 10)) ==
        rows{{0, 1, 1, 0, 1, 3}, {0, 1, 3, 1, 3, 3}, {0, 1, 4, 4, 4, 4}});
  // Ranks over whole nodes.
  CHECK(in_short(parts_of(stage({0, 4}, {all_fast}, {.data = 2, .tensor = 4}, {0.75, 0.25}), 4)) ==
        rows{{0, 1, 4, 0, 1, 3}, {0, 1, 4, 4, 1, 1}});
}

TEST_CASE("what cannot be cut into parts is refused, with the reason") {
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0}, three{{1, 1, 3}, 0};
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 8}), 7).find("data rank 7 gets none of the 7 samples") == 0);
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 1, .tensor = 8}), 8).find("lies in two groups") != std::string::npos);
  CHECK(why(stage({0, 4}, {{{0, 2, 4}, 0}, slow}, {.data = 4, .tensor = 3}), 8).find("lies") != std::string::npos);
  CHECK(why(stage({0, 4}, {fast, three}, {.data = 7}, {0.5, 0.5}), 8).find("2 shares for a data degree of 7") !=
        std::string::npos);
  auto tensor = stage({0, 4}, {fast}, {.tensor = 4});
  tensor.shares.tensor = {0.4, 0.2, 0.2, 0.2};
  CHECK(why(tensor, 8).find("uneven shares of the tensor axis have no price") == 0);
  // Experts: equal samples, equal state, devices of one kind.
  const degrees shared_out{.data = 4, .expert = 2};
  auto state = stage({0, 4}, {fast}, shared_out);
  state.shares.state = {0.25, 0.25, 0.25, 0.25};
  CHECK(parts_of(state, 8).size() == 1);
  state.shares.state = {0.5, 0, 0.5, 0};
  CHECK(why(state, 8) == "uneven shares of the state of data ranks that share out experts have no price");
  CHECK(why(stage({0, 4}, {fast}, shared_out, {0.125, 0.375, 0.25, 0.25}), 8).find("experts on data ranks with different") == 0);
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 8, .expert = 2}), 8).find("experts on data ranks with different") == 0);
  models costs;
  const auto p = plan_of({stage({0, costs(8).layer_count()}, {fast, slow}, {.data = 8})}, 8);
  CHECK_THROWS_WITH_AS((void)evaluate(costs.hardware, costs(8), p), doctest::Contains("stage 0 shares its samples unevenly"),
                       input_error);
}

TEST_CASE("a shared stage takes as long as its slowest part would by itself, and adds up gradients as pipelines do") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0};
  for (const int to_fast : {4, 8, 12}) {
    const double share = to_fast / 16.0 / 4;
    const auto mixed =
        judged(costs, plan_of({stage({0, layers}, {fast, slow}, {.data = 8},
                                     {share, share, share, share, 0.25 - share, 0.25 - share, 0.25 - share, 0.25 - share})},
                              16));
    const auto alone_fast = judged(costs, plan_of({stage({0, layers}, {fast}, {.data = 4})}, to_fast)),
               alone_slow = judged(costs, plan_of({stage({0, layers}, {slow}, {.data = 4})}, 16 - to_fast));
    const auto &a = alone_fast.pipelines[0].stages[0], &b = alone_slow.pipelines[0].stages[0];
    const auto& s = mixed.pipelines[0].stages[0];
    CAPTURE(to_fast);
    CHECK(s.cost.forward_s == std::max(a.cost.forward_s, b.cost.forward_s));
    CHECK(s.cost.backward_s == std::max(a.cost.backward_s, b.cost.backward_s));
    // The fullest device counts: of the parts' own shares of memory, the larger.
    const auto full = [](const stage_plan& x) {
      return static_cast<double>(x.memory_bytes) / static_cast<double>(x.memory_capacity_bytes);
    };
    CHECK(full(s) == std::max(full(a), full(b)));
    // Two pipelines on the same devices reduce as much between them.
    auto two = plan_of({stage({0, layers}, {fast}, {.data = 4})}, to_fast);
    two.pipelines.push_back(plan_of({stage({0, layers}, {slow}, {.data = 4})}, 16 - to_fast).pipelines[0]);
    two = judged(costs, two);
    REQUIRE(two.gradient_sync.size() == 1);
    CHECK(two.gradient_sync[0].seconds > 0);
    CHECK(s.update_s == std::max(a.update_s, b.update_s) + two.gradient_sync[0].seconds);
    CHECK(mixed.predicted.iteration_s == doctest::Approx(two.predicted.iteration_s));
  }
}

TEST_CASE("shares by speed beat even ones, and even shares that are written down change nothing") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0};
  const auto of = [&](std::vector<double> shares) {
    return judged(costs, plan_of({stage({0, layers}, {fast, slow}, {.data = 8}, std::move(shares))}, 32)).predicted.iteration_s;
  };
  const double even = of({});
  CHECK(even == of(std::vector<double>(8, 0.125)));
  CHECK(of({.1875, .1875, .1875, .1875, .0625, .0625, .0625, .0625}) < even);
  const auto plain = judged(costs, plan_of({stage({0, layers}, {fast}, {.data = 4})}, 8));
  auto written = judged(costs, plan_of({stage({0, layers}, {fast}, {.data = 4}, {0.25, 0.25, 0.25, 0.25})}, 8));
  written.pipelines[0].stages[0].shares = {};
  CHECK(written == plain);
}

TEST_CASE("between stages of parts, two parts exchange the samples that both have; the busiest part counts") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group fast{{0, 1, 2}, 0}, next{{0, 1, 4}, 4}, slow{{1, 1, 2}, 0};
  const auto p = judged(costs, plan_of({stage({0, 2}, {fast, slow}, {.data = 4}, {0.375, 0.375, 0.125, 0.125}),
                                        stage({2, layers}, {next}, {.data = 4})},
                                       8));
  const auto& cost6 = costs(6);
  const placement first{.mesh = {0, 1, 2}, .degrees = {.data = 2}}, second{.mesh = {1, 1, 2}, .degrees = {.data = 2}},
      to{.mesh = {0, 1, 4}, .degrees = {.data = 4}};
  const double from_fast = cost6.transfer(1, first, to).forward_s, from_slow = costs(2).transfer(1, second, to).forward_s;
  CHECK(p.pipelines[0].boundaries[0].forward_s == from_fast + from_slow);  // the receiver has both
  CHECK(p.pipelines[0].boundaries[0].reshard == "by_part");
  CHECK(p.pipelines[0].boundaries[0].bytes == cost6.transfer(1, first, to).bytes + costs(2).transfer(1, second, to).bytes);
}

namespace {

evaluation evaluated(models& costs, const plan& p) {
  auto found = evaluate(costs.hardware, costs, p);
  REQUIRE(found);
  return *std::move(found);
}

}  // namespace

TEST_CASE("state that ZeRO shares out: by its shares, and by the room that memory has") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0};
  for (const int zero : {1, 2}) {
    CAPTURE(zero);
    auto p = plan_of({stage({0, layers}, {fast, slow}, {.data = 8})}, 8);
    auto& s = p.pipelines[0].stages[0];
    s.zero = zero;
    const auto plain = evaluated(costs, p);
    const auto parts = parts_of(s, p.pipelines[0].microbatch_size);
    REQUIRE(parts.size() == 2);
    // By hand: what a device of each part holds with a share of the whole state.
    const auto held = [&](std::size_t k, double share) {
      auto c = cost_of::stage(costs(parts[k].samples), s.layers, parts[k].where);
      const double whole = 4.0 * static_cast<double>(c.optimizer_bytes + (zero == 2 ? c.gradient_bytes : 0));
      c.weight_bytes += static_cast<bytes_t>(whole * (share - 0.25));
      const auto use =
          memory_of(c, cost_of::overheads(costs(parts[k].samples), parts[k].where), plain.pipelines[0].stages[0].in_flight);
      return static_cast<double>(use.total());
    };
    const auto capacity = [&](std::size_t k) { return static_cast<double>(costs.hardware.subclusters[k].device.memory_bytes); };
    const auto fullness = [&](double first) {
      return std::max(held(0, first) / capacity(0), held(1, 0.25 - first) / capacity(1));
    };
    s.shares.state = {0.2, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05};
    const auto told = evaluated(costs, p).pipelines[0].stages[0];
    const auto seen = evaluated(costs, p).plan.pipelines[0].stages[0];
    CHECK(static_cast<double>(seen.memory_bytes) / static_cast<double>(seen.memory_capacity_bytes) ==
          doctest::Approx(fullness(0.2)).epsilon(1e-6));
    CHECK(static_cast<double>(told.memory.total()) == static_cast<double>(seen.memory_bytes));
    const auto by_room = with_state_by_room(costs.hardware, costs, plain);
    REQUIRE(by_room);
    const auto& made = by_room->plan.pipelines[0].stages[0];
    REQUIRE(made.shares.state.size() == 8);
    double sum = 0;
    for (const double share : made.shares.state) sum += share;
    CHECK(sum == doctest::Approx(1));
    const double found = static_cast<double>(made.memory_bytes) / static_cast<double>(made.memory_capacity_bytes);
    for (int i = 0; i <= 250; ++i) CHECK(found <= fullness(i * 1e-3) * (1 + 1e-6));
    CHECK(by_room->plan.predicted == plain.plan.predicted);
  }
  auto wrong = plan_of({stage({0, layers}, {fast}, {.data = 4})}, 8);
  wrong.pipelines[0].stages[0].shares.state = {0.5, 0.5};
  CHECK_THROWS_WITH_AS((void)evaluate(costs.hardware, costs, wrong),
                       "stage 0: it has 2 shares of its state for a data degree of 4", input_error);
  // Stages without ZeRO, and of one part, are left as they are.
  const auto alone = evaluated(costs, plan_of({stage({0, layers}, {fast}, {.data = 4})}, 8));
  CHECK(with_state_by_room(costs.hardware, costs, alone)->plan == alone.plan);
}

TEST_CASE("without a link between its devices a mixed stage is no plan; ZeRO 2 reduces in every backward") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0};
  auto p = plan_of({stage({0, layers}, {fast, slow}, {.data = 8})}, 8);
  const auto plain = judged(costs, p);
  p.pipelines[0].stages[0].zero = 2;
  const auto sharded = judged(costs, p);
  CHECK(sharded.pipelines[0].stages[0].cost.backward_s > plain.pipelines[0].stages[0].cost.backward_s);
  CHECK(sharded.pipelines[0].stages[0].update_s < plain.pipelines[0].stages[0].update_s);
  models apart;
  apart.hardware.links.clear();
  const auto refused = evaluate(apart.hardware, apart, plan_of({stage({0, layers}, {fast, slow}, {.data = 8})}, 8));
  REQUIRE(!refused);
  CHECK(refused.why_not().reason == "stage 0: no link joins all of its devices");
}
