// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/stage_parts.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/state_shares.hpp>
#include <hetsched/model/families.hpp>

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

std::string why(const stage_plan& s, int microbatch_size, int slices = 0) {
  try {
    (void)parts_of(s, microbatch_size, slices);
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

TEST_CASE("parts of one replica are tensor ranks that follow each other and have equally many slices") {
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0};
  const auto slices_of = [](const std::vector<stage_part>& parts) {
    std::vector<int> all;
    for (const auto& p : parts) all.push_back(p.slices);
    return all;
  };
  auto one = stage({0, 4}, {fast, slow}, {.tensor = 8});
  one.shares.tensor = {0.2, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05};
  const auto by_speed = parts_of(one, 3, 40);
  CHECK(in_short(by_speed) == rows{{0, 1, 4, 0, 1, 3}, {1, 1, 4, 0, 1, 3}});
  CHECK(slices_of(by_speed) == std::vector{8, 2});
  CHECK(by_speed[0].where.degrees == degrees{.tensor = 4});
  // Unlike devices share evenly unless they are told otherwise; whole slices by largest remainder.
  one.shares.tensor = {};
  CHECK(slices_of(parts_of(one, 3, 40)) == std::vector{5, 5});
  auto alike = stage({0, 4}, {fast}, {.tensor = 4});
  alike.shares.tensor = {0.4, 0.2, 0.2, 0.2};
  CHECK(in_short(parts_of(alike, 3, 9)) == rows{{0, 1, 1, 0, 1, 3}, {0, 1, 3, 1, 1, 3}});
  CHECK(slices_of(parts_of(alike, 3, 9)) == std::vector{3, 2});
}

TEST_CASE("what cannot be cut into parts is refused, with the reason") {
  const device_group fast{{0, 1, 4}, 0}, slow{{1, 1, 4}, 0}, three{{1, 1, 3}, 0};
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 8}), 7).find("data rank 7 gets none of the 7 samples") == 0);
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 1, .tensor = 8}), 8)
            .find("tensor ranks with unlike devices or uneven shares have no price in these costs") == 0);
  CHECK(why(stage({0, 4}, {fast, slow}, {.data = 2, .tensor = 4}, {}), 8, 16).empty());
  CHECK(why(stage({0, 4}, {fast, three}, {.data = 1, .tensor = 7}), 8, 6).find(" gets none of the 6 slices") !=
        std::string::npos);
  CHECK(why(stage({0, 4}, {{{0, 2, 4}, 0}, slow}, {.data = 4, .tensor = 3}), 8).find("lies") != std::string::npos);
  CHECK(why(stage({0, 4}, {fast, three}, {.data = 7}, {0.5, 0.5}), 8).find("2 shares for a data degree of 7") !=
        std::string::npos);
  auto tensor = stage({0, 4}, {fast}, {.tensor = 4});
  tensor.shares.tensor = {0.4, 0.2, 0.2, 0.2};
  CHECK(why(tensor, 8).find("tensor ranks with unlike devices or uneven shares have no price in these costs") == 0);
  CHECK(why(tensor, 8, 16).empty());
  tensor.shares.tensor.pop_back();
  CHECK(why(tensor, 8, 16) == "it has 3 shares for a tensor degree of 4");
  auto both = stage({0, 4}, {fast}, {.data = 2, .tensor = 2});
  both.shares.tensor = {0.75, 0.25};
  CHECK(why(both, 8, 16).find("the data and the context degree are 1; here they are 2 and 1") != std::string::npos);
  auto context = stage({0, 4}, {fast}, {.context = 4});
  context.shares.context = {0.4, 0.2, 0.2, 0.2};
  CHECK(why(context, 8, 16).find("uneven shares of the context axis have no price") == 0);
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

TEST_CASE("one replica on devices of two subclusters costs what it does on one, if all else is alike") {
  const hetsched::link near{5e-6, 100e9};
  const auto device = catalogue_device("A100-SXM4-40GB");
  const cluster whole{.subclusters = {{"all", device, 1, 8, near, {}}}};
  cluster halves{.subclusters = {{"a", device, 1, 4, near, {}}, {"b", device, 1, 4, near, {}}}};
  connect(halves, "a", "b", near);
  const auto model = gpt({.layers = 4, .hidden = 1024, .heads = 16, .sequence = 512});
  const auto compare = [&](const auto& costs_of) {
    const auto on_one = costs_of(whole), on_two = costs_of(halves);
    const int layers = on_one.layer_count();
    for (const auto mode : {recomputation::none, recomputation::full}) {
      auto s = stage({0, layers}, {{{0, 1, 8}, 0}}, {.tensor = 8});
      s.recompute = mode;
      const auto one = evaluate(whole, on_one, plan_of({s}, 2));
      s.devices = {{{0, 1, 4}, 0}, {{1, 1, 4}, 0}};
      const auto two = evaluate(halves, on_two, plan_of({s}, 2));
      REQUIRE(one);
      REQUIRE(two);
      const auto &a = one->plan.pipelines[0].stages[0], &b = two->plan.pipelines[0].stages[0];
      CHECK(b.cost.forward_s == doctest::Approx(a.cost.forward_s).epsilon(1e-12));
      CHECK(b.cost.backward_s == doctest::Approx(a.cost.backward_s).epsilon(1e-12));
      CHECK(b.cost.weight_backward_s == doctest::Approx(a.cost.weight_backward_s).epsilon(1e-12));
      CHECK(b.update_s == doctest::Approx(a.update_s).epsilon(1e-12));
      CHECK(b.overheads == a.overheads);
      // Up to what is rounded up for each layer.
      CHECK(std::abs(b.memory_bytes - a.memory_bytes) <= 64 * layers);
      CHECK(two->plan.predicted.iteration_s == doctest::Approx(one->plan.predicted.iteration_s).epsilon(1e-12));
    }
  };
  compare([&](const cluster& c) {
    return analytic_cost_model(c, make_chain(model), {.recompute = {recomputation::none, recomputation::full}});
  });
  compare([&](const cluster& c) {
    return make_tile_cost(c, model, {.microbatch_size = 2, .recompute = {recomputation::none, recomputation::full}});
  });
}

TEST_CASE("a tensor rank with a part of the slices costs what one of as many equal ranks does, and the slowest counts") {
  // Links that take no time.
  const hetsched::link at_once{0, 1e30};
  cluster c{.subclusters = {{"fast", catalogue_device("A100-SXM4-40GB"), 1, 4, at_once, {}},
                            {"slow", catalogue_device("V100-SXM2-16GB"), 1, 4, at_once, {}}}};
  connect(c, "fast", "slow", at_once);
  const auto model = gpt({.layers = 3, .hidden = 1024, .heads = 16, .sequence = 512});
  const auto compare = [&](const auto& costs) {
    const int layers = costs.layer_count();
    auto s = stage({0, layers}, {{{0, 1, 1}, 0}, {{1, 1, 2}, 0}}, {.tensor = 3});
    s.shares.tensor = {0.5, 0.25, 0.25};
    const auto found = evaluate(c, costs, plan_of({s}, 1));
    REQUIRE(found);
    // A half, as one of two fast devices has, and a quarter, as one of four slow ones has.
    const placement half{.mesh = {0, 1, 2}, .degrees = {.tensor = 2}}, quarter{.mesh = {1, 1, 4}, .degrees = {.tensor = 4}};
    double forward_s = 0, backward_s = 0;
    for (int l = 0; l < layers; ++l) {
      forward_s += std::max(costs.layer(l, half).forward_s, costs.layer(l, quarter).forward_s);
      backward_s += std::max(costs.layer(l, half).backward_s, costs.layer(l, quarter).backward_s);
    }
    const auto& cost = found->plan.pipelines[0].stages[0].cost;
    CHECK(cost.forward_s == doctest::Approx(forward_s).epsilon(1e-9));
    CHECK(cost.backward_s == doctest::Approx(backward_s).epsilon(1e-9));
    const auto parts = parts_of(s, 1, costs.slices());
    const auto priced = cost_of::sliced_stage(costs, s.layers, parts);
    const auto fast = costs.stage(s.layers, half), slow = costs.stage(s.layers, quarter);
    for (const auto& [own, like] : {std::pair{priced.parts[0], fast}, std::pair{priced.parts[1], slow}}) {
      CHECK(std::abs(own.weight_bytes - like.weight_bytes) <= 64 * layers);
      CHECK(std::abs(own.activation_bytes - like.activation_bytes) <= 64 * layers);
      CHECK(std::abs(own.optimizer_bytes - like.optimizer_bytes) <= 64 * layers);
    }
    CHECK(found->plan.pipelines[0].stages[0].update_s ==
          doctest::Approx(std::max(costs.update(s.layers, half), costs.update(s.layers, quarter))).epsilon(1e-12));
  };
  compare(analytic_cost_model(c, make_chain(model)));
  compare(make_tile_cost(c, model, {.microbatch_size = 1}));
}

TEST_CASE("a boundary to one replica on unlike devices takes as long as to the slowest of its parts") {
  models costs;
  const int layers = costs(1).layer_count();
  const device_group first{{0, 1, 4}, 0}, fast{{0, 1, 2}, 4}, slow{{1, 1, 2}, 0};
  const auto& cost = costs(2);
  const placement from{.mesh = {0, 1, 4}, .degrees = {.data = 2, .tensor = 2}}, to{.mesh = {1, 1, 2}, .degrees = {.tensor = 2}};
  for (const bool back : {false, true}) {
    std::vector<stage_plan> stages{stage({0, 3}, {first}, {.data = 2, .tensor = 2}),
                                   stage({3, layers}, {fast, slow}, {.tensor = 4})};
    if (back) stages = {stage({0, 3}, {fast, slow}, {.tensor = 4}), stage({3, layers}, {first}, {.data = 2, .tensor = 2})};
    const auto p = judged(costs, plan_of(stages, 2));
    const auto one = back ? cost.transfer(2, to, from) : cost.transfer(2, from, to);
    CHECK(p.pipelines[0].boundaries[0].forward_s == one.forward_s);
    CHECK(p.pipelines[0].boundaries[0].bytes == one.bytes);
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
      c.gradient_bytes = c.optimizer_bytes = 0;  // untold: parts of weight_bytes
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
