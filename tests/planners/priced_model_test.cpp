// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/priced_model.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/planners/find_plan.hpp>

using namespace hetsched;

namespace {

cluster one_of_each() {
  cluster c;
  c.subclusters.push_back({"v", *find_device("V100-SXM2-32GB"), 1, 2, {5e-6, 150e9}, {10e-6, 25e9 / 8}});
  c.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 1, 2, {5e-6, 300e9}, {10e-6, 25e9 / 8}});
  c.links.push_back({0, 1, {100e-6, 5e9 / 8}});
  return c;
}

transformer small_gpt() { return gpt({.layers = 4, .hidden = 512, .heads = 8, .vocab = 1000, .sequence = 128}); }

const placement single_a100{.mesh = {1, 1, 1}};

double forward_s(const any_cost_model& costs) { return costs.layer(1, single_a100).forward_s; }

// Two layers on single A100s, of one and two samples.
replica_profile two_sizes() {
  replica_profile p;
  p.layers = {{.name = "x", .boundary_bytes_per_sample = 1000}, {.name = "y"}};
  for (const int size : {1, 2}) {
    replica_row row;
    row.device = "A100-SXM4-40GB";
    row.microbatch_size = size;
    row.forward_s = {1.0 * size, 1.0 * size};
    row.backward_s = {2.0 * size, 2.0 * size};
    row.weight_bytes = {1000, 1000};
    row.activation_bytes = {10, 10};
    p.rows.push_back(row);
  }
  return p;
}

std::string why_refused(const cluster& hardware, const priced_model& model) {
  try {
    static_cast<void>(costs_on(hardware, model)(1));
  } catch (const input_error& wrong) {
    return wrong.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a priced_model chooses formulas by what is known of model and devices, and tells plans which") {
  auto hardware = one_of_each();
  const priced_model model{.model = small_gpt(), .options = {.precision = precision::bf16, .cut = granularity::block}};
  CHECK(costs_name(hardware, model) == "tile");
  CHECK(forward_s(costs_on(hardware, model, 2)) == forward_s(training_costs(hardware, small_gpt(), model.options)(2)));
  CHECK(flops_per_sample(model) == training_flops(make_chain(small_gpt(), granularity::block)));
  const auto setting = setting_of(hardware, model);
  CHECK(setting.costs == "tile");
  CHECK(setting.granularity == "block");
  CHECK(setting.precision == "bf16");
  CHECK(setting.sequence == 128);
  CHECK(setting.attention == "flash");
  CHECK(setting.stack == model.options.stack);
  CHECK(setting.whole_layers.empty());
  hardware.subclusters[0].device.multiprocessors = 0;
  CHECK(setting_of(hardware, model).whole_layers == std::vector<std::string>{"v"});
  hardware.subclusters[1].device.multiprocessors = 0;
  CHECK(setting_of(hardware, model).costs == "analytic");
  const auto chain = make_chain(small_gpt());
  CHECK(costs_name(one_of_each(), {.model = chain}) == "analytic");
  CHECK(forward_s(costs_on(one_of_each(), {.model = chain}, 2)) == forward_s(training_costs(one_of_each(), chain)(2)));

  auto corrected = model;
  corrected.options.correction = [](const auto&, const auto&, const auto&) { return 2.0; };
  corrected.correction = "f.json";
  CHECK(setting_of(one_of_each(), corrected).costs == "forest:f.json");
  CHECK(forward_s(costs_on(one_of_each(), corrected, 2)) > 1.2 * forward_s(costs_on(one_of_each(), model, 2)));
}

TEST_CASE("a priced_model by HexiScale's formulas has its blocks and none of a stack's settings") {
  const auto hardware = one_of_each();
  const priced_model model{.model = small_gpt(), .instead = hexiscale_formulas{}};
  const auto costs = costs_on(hardware, model, 2);
  const hexiscale_cost_model own(hardware, {.layers = 4, .hidden = 512, .sequence = 128}, {.microbatch_size = 2});
  CHECK(costs.layer_count() == 4);
  CHECK(forward_s(costs) == own.layer(1, single_a100).forward_s);
  CHECK(setting_of(hardware, model).costs == "hexiscale");
  CHECK(!setting_of(hardware, model).stack);
  CHECK(setting_of(hardware, model).granularity.empty());
}

TEST_CASE("a priced_model as measured knows its sizes, names its file in errors, and has the parameters that the model shares") {
  const auto hardware = one_of_each();
  priced_model model{.instead = two_sizes(), .profile_name = "p.json"};
  CHECK(costs_name(hardware, model) == "profile");
  CHECK(setting_of(hardware, model).precision.empty());
  CHECK(flops_per_sample(model) == 0);
  CHECK(forward_s(costs_on(hardware, model, 2)) == 2);
  CHECK(measured_sizes_text(hardware, model) == "replicas were measured at 1, 2 samples");
  CHECK(lacking_costs(hardware, model, 2).empty());
  CHECK(lacking_costs(hardware, model, 64) ==
        "p.json has no costs for microbatches of 64 samples on this cluster: replicas were measured at 1, 2 samples");
  model.extrapolate = true;
  CHECK(lacking_costs(hardware, model, 64).empty());
  CHECK(forward_s(costs_on(hardware, model, 8)) == doctest::Approx(8));
  auto tied = small_gpt();
  tied.layers = 1;  // with embedding and head three parts
  model.model = tied;
  auto three = two_sizes();
  three.layers.insert(three.layers.begin() + 1, three.layers[0]);
  for (auto& row : three.rows)
    for (auto* each : {&row.forward_s, &row.backward_s}) each->push_back(each->front());
  for (auto& row : three.rows)
    for (auto* each : {&row.weight_bytes, &row.activation_bytes}) each->push_back(each->front());
  model.instead = three;
  const auto shared = make_chain(tied, granularity::block).layers.back().shared_parameters > 0;
  CHECK(shared);
  CHECK(costs_on(hardware, model, 1).copies(single_a100).size() == 1);
  std::get<replica_profile>(model.instead).rows[0].forward_s[0] = -1;
  CHECK(why_refused(hardware, model).starts_with("p.json: /costs/0/forward_s"));
  CHECK_THROWS_AS((void)lacking_costs(hardware, model, 1), input_error);
}

TEST_CASE("a priced_model refuses what it cannot price") {
  const auto hardware = one_of_each();
  const auto chain = make_chain(small_gpt());
  CHECK(why_refused(hardware, {}) == "costs are of a model, or of a profile; there is neither");
  CHECK(why_refused(hardware, {.model = chain, .instead = hexiscale_formulas{}}) ==
        "HexiScale's formulas need a transformer; found a chain of layers");
  CHECK(why_refused(hardware, {.model = chain, .options = {.formulas = cost_formulas::tile}})
            .starts_with("the tile formulas need"));
  CHECK_THROWS_AS((void)replica_costs_on(hardware, {.model = chain}, 1), input_error);
  CHECK_THROWS_AS((void)measured_sizes_text(hardware, {.model = chain}), input_error);
}

TEST_CASE("anchors scale the formulas that a priced_model means, and no measured times") {
  const auto hardware = one_of_each();
  const auto chain = make_chain(small_gpt());
  const std::vector<device_anchor> anchors{{.device = "A100-SXM4-40GB", .model = small_gpt(), .tokens_per_s = 100'000}};
  // A chain's operators are not known, those of the anchor's model are: both are priced by whole layers.
  const auto as_seen = anchored(hardware, anchors, priced_model{.model = chain});
  CHECK(as_seen.subclusters[1].device.speed ==
        anchored(hardware, anchors, {.formulas = cost_formulas::analytic}).subclusters[1].device.speed);
  CHECK(as_seen.subclusters[1].device.speed != anchored(hardware, anchors).subclusters[1].device.speed);
  CHECK(anchor_residuals(as_seen, anchors, priced_model{.model = chain}).at(0) == doctest::Approx(0));
  REQUIRE(setting_of(as_seen, {.model = chain}).anchored.size() == 1);
  CHECK(setting_of(as_seen, {.model = chain}).anchored[0].name == "a");
  CHECK_THROWS_AS((void)anchored(hardware, anchors, priced_model{.instead = two_sizes()}), input_error);
  CHECK_THROWS_AS((void)anchor_residuals(hardware, anchors, priced_model{.model = small_gpt(), .instead = hexiscale_formulas{}}),
                  input_error);
}

TEST_CASE("what is known of devices by their operators and would go unused is found") {
  auto hardware = one_of_each();
  const priced_model model{.model = small_gpt()};
  using cause = unused_calibration::cause;
  const auto unused = [&](const priced_model& m) { return find_unused_calibration(hardware, m); };
  const auto is = [](int subcluster, cause why) { return unused_calibration{subcluster, why}; };
  CHECK_FALSE(unused(model));

  hardware.subclusters[1].device.calibration.matrix_rate = 0.8;
  CHECK_FALSE(unused(model));
  auto other = model;
  other.options.formulas = cost_formulas::analytic;  // somebody has chosen them
  CHECK_FALSE(unused(other));
  other = model;
  other.options.correction = [](const tile_device&, const operator_shape&, const operator_time&) { return 1.0; };
  CHECK(unused(other) == is(1, cause::corrected));
  other = model;
  other.instead = hexiscale_formulas{};
  CHECK(unused(other) == is(1, cause::whole_layers));
  CHECK(unused({.model = make_chain(small_gpt())}) == is(1, cause::whole_layers));
  CHECK_FALSE(unused({.instead = two_sizes()}));
  hardware.subclusters[1].device.multiprocessors = 0;
  CHECK(unused(model) == is(1, cause::whole_layers));

  hardware = one_of_each();
  hardware.subclusters[0].device.class_speeds[0] = 0.5;
  CHECK_FALSE(unused(model));
  other = model;
  other.options.formulas = cost_formulas::analytic;  // which know no classes at all
  CHECK(unused(other) == is(0, cause::class_speeds));
}

TEST_CASE("cases like a priced_model's costs are of what it rests on, and of its stack, or of inference") {
  const auto hardware = one_of_each();
  priced_model model{.model = small_gpt()};
  const auto all_of = [](const std::vector<like_cases>& cases, cost_basis basis, std::string_view stack) {
    return std::all_of(cases.begin(), cases.end(),
                       [&](const like_cases& c) { return c.basis == basis && (c.stack.empty() || c.stack == stack); });
  };
  model.options.stack = *find_training_stack("megatron");
  const auto trained = like_cases_of(hardware, model), served = like_cases_of(hardware, model, false);
  CHECK_FALSE(trained.empty());
  CHECK(all_of(trained, cost_basis::datasheets, "megatron"));
  CHECK_FALSE(served.empty());
  CHECK(all_of(served, cost_basis::datasheets, "inference"));
  auto other = model;
  other.options.formulas = cost_formulas::analytic;
  CHECK(all_of(like_cases_of(hardware, other), cost_basis::layers, "megatron"));
  CHECK(all_of(like_cases_of(hardware, {.instead = two_sizes()}), cost_basis::profile, "hetsched"));
  other = model;
  other.options.correction = [](const tile_device&, const operator_shape&, const operator_time&) { return 1.0; };
  CHECK(like_cases_of(hardware, other).empty());
}

TEST_CASE("a plan is worth what the costs of its sizes and degrees say, whatever degrees planners are offered") {
  const auto hardware = one_of_each();
  const priced_model model{.model = small_gpt(), .options = {.precision = precision::bf16}};
  plan p;
  auto& line = p.pipelines.emplace_back();
  line.microbatches = 4;
  line.microbatch_size = 2;
  line.schedule.name = "1f1b";
  line.stages.push_back(
      {.layers = {0, costs_on(hardware, model, 2).layer_count()}, .devices = {{{1, 1, 2}, 0}}, .degrees = {.context = 2}});
  const auto found = evaluate(hardware, model, p);
  REQUIRE(found);
  auto wide = model;
  wide.options.max_context = 2;
  const auto told = evaluate(hardware, costs_on(hardware, wide), p,
                             {.flops_per_sample = flops_per_sample(model), .arithmetic = precision::bf16});
  REQUIRE(told);
  CHECK(found->plan == told->plan);
  CHECK(found->plan.predicted.mfu > 0);
}

TEST_CASE("a plan is worth what its search says, also where gradients are added up over the batch") {
  const auto hardware = one_of_each();
  priced_model model{.model = small_gpt()};
  model.options.stack = *find_training_stack("ddp");
  REQUIRE(memory_in(model.options.stack, model.options.precision, 2).accumulation_bytes > 0);
  const auto found = find_plan(hardware, model, {.global_batch = 8, .microbatch_size = 2, .planner = "uniform"});
  REQUIRE(found);
  const auto told = evaluate(hardware, model, *found);
  REQUIRE(told);
  CHECK(told->plan.predicted.iteration_s == found->predicted.iteration_s);
  CHECK(told->plan.pipelines == found->pipelines);  // with the memory of stages
}

TEST_CASE("remarks on a plan by a profile: sizes that were not measured, and sums of gradients that are free") {
  const auto hardware = one_of_each();
  const priced_model model{.instead = two_sizes(), .extrapolate = true, .profile_name = "two.json"};
  plan p;
  auto& line = p.pipelines.emplace_back();
  line.microbatches = 2;
  line.microbatch_size = 2;
  line.stages.push_back({.layers = {0, 2}, .devices = {{{1, 1, 1}, 0}}});
  CHECK(profile_remarks(hardware, model, p).empty());
  line.microbatch_size = 6;
  CHECK(profile_remarks(hardware, model, p) ==
        std::vector<std::string>{stage_name(p, 0, 0) + ": the costs of 6 samples on a replica are extrapolated from 1 and 2"});
  line.microbatch_size = 4;
  line.stages[0].devices = {{{1, 1, 2}, 0}};
  line.stages[0].degrees.data = 2;
  CHECK(profile_remarks(hardware, model, p) ==
        std::vector<std::string>{"two.json tells no gradient_bytes: adding up the gradients of replicas counts as free"});
  CHECK(profile_remarks(hardware, {.model = small_gpt()}, p).empty());
}
