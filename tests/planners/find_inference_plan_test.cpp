// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/find_inference_plan.hpp>

#include <doctest/doctest.h>

#include <climits>
#include <string>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/placement.hpp>

using namespace hetsched;

namespace {

/// Three workstations on a slow network.
cluster serving_pool() {
  const hetsched::link ethernet{50e-6, gbit_per_s(1)};
  cluster c{.subclusters = {{"a5000", catalogue_device("A5000"), 2, 1, {}, ethernet},
                            {"a4000", catalogue_device("A4000"), 1, 1, {}, {}}}};
  connect(c, "a5000", "a4000", ethernet);
  return c;
}

priced_model served_llama() {
  return {.model = llama({.layers = 8, .hidden = 2048, .heads = 16, .ffn_hidden = 5504, .vocab = 32000, .sequence = 1024}),
          .options = {.cut = granularity::block}};
}

}  // namespace

TEST_CASE("find_inference_plan: for throughput as many batches in flight as are best, for latency one") {
  const auto hardware = serving_pool();
  const auto model = served_llama();
  const serving_request request{.served = {.prompt_tokens = 128, .output_tokens = 16}, .objective = plan_objective::throughput};
  const auto found = find_inference_plan(hardware, model, request);
  REQUIRE(found);
  const auto costs = inference_costs_on(hardware, model, request.served);
  for (const int in_flight : {1, 2, 4}) {
    CAPTURE(in_flight);
    const auto one = place_inference(hardware, costs, {.in_flight = in_flight, .objective = plan_objective::throughput});
    REQUIRE(one);
    CHECK(objective_of(*found) <= objective_of(*one));
  }
  CHECK(found->in_flight > 1);
  CHECK(found->setting.sequence == 144);
  CHECK(found->setting.granularity == "block");
  CHECK_FALSE(found->setting.stack);
  auto asked = request;
  asked.in_flight = 3;
  CHECK(find_inference_plan(hardware, model, asked)->in_flight == 3);
  asked.in_flight = -1;
  CHECK_THROWS_AS((void)find_inference_plan(hardware, model, asked), input_error);
  CHECK(find_inference_plan(hardware, model, {.served = request.served})->in_flight == 1);
}

TEST_CASE("find_inference_plan: a search that ends before all numbers in flight were tried has proved nothing of them") {
  const auto hardware = serving_pool();
  const auto model = served_llama();
  serving_request request{.served = {.prompt_tokens = 128, .output_tokens = 16}, .objective = plan_objective::throughput};
  request.in_flight = 1;
  int asked = 0, most_asked = INT_MAX;
  request.go_on = [&] { return ++asked <= most_asked; };
  const auto one = find_inference_plan(hardware, model, request);
  REQUIRE(one);
  REQUIRE(one->evidence->complete);
  CHECK_FALSE(one->evidence->stopped);
  request.in_flight = 0;
  for (const int further : {0, 1}) {  // not begun, and refused as stopped
    CAPTURE(further);
    most_asked = (most_asked == INT_MAX ? asked : most_asked) + further;
    asked = 0;
    const auto ended = find_inference_plan(hardware, model, request);
    REQUIRE(ended);
    CHECK(ended->in_flight == 1);
    CHECK(ended->stages == one->stages);
    CHECK(ended->evidence->stopped);
    CHECK_FALSE(ended->evidence->complete);
  }
}

TEST_CASE("find_inference_plan: more batches in flight only as far as their caches leave room for the layers") {
  auto hardware = serving_pool();
  const auto model = served_llama();
  const serving_request request{.served = {.prompt_tokens = 128, .output_tokens = 16, .batch = 64},
                                .objective = plan_objective::throughput};
  const auto costs = inference_costs_on(hardware, model, request.served);
  const auto placed = [&](int in_flight) {
    return place_inference(hardware, costs, {.in_flight = in_flight, .batch_size = 64, .objective = request.objective});
  };
  bytes_t room = bytes_t{1} << 30;  // the least for one batch, in steps of 16 MiB
  do {
    room += bytes_t{1} << 24;
    for (auto& s : hardware.subclusters) s.device.memory_bytes = room;
  } while (!placed(1));
  REQUIRE_FALSE(placed(2));
  const auto found = find_inference_plan(hardware, model, request);
  REQUIRE(found);
  CHECK(found->in_flight == 1);
}

TEST_CASE("find_inference_plan: what ends before there is a plan has one of a few devices, or waits for one") {
  const auto hardware = serving_pool();
  const auto model = served_llama();
  serving_request request{.served = {.prompt_tokens = 128, .output_tokens = 16}, .objective = plan_objective::throughput};
  request.go_on = [] { return false; };
  request.wait_for_first = [] { return false; };
  const auto soon = find_inference_plan(hardware, model, request);
  REQUIRE(soon);
  CHECK(soon->evidence->stopped);
  CHECK_FALSE(soon->evidence->complete);
  CHECK(soon->evidence->objective_bound == 0);
  CHECK(soon->in_flight == 1);
  request.use_all_devices = true;  // then a few are no answer
  const auto none = find_inference_plan(hardware, model, request);
  REQUIRE_FALSE(none);
  CHECK(none.why_not().why == refusal::kind::stopped);
  request.wait_for_first = {};
  const auto waited = find_inference_plan(hardware, model, request);
  REQUIRE(waited);
  CHECK(waited->stages.size() == 3);
}

TEST_CASE("find_inference_plan: a model told by its layers makes forwards") {
  cluster hardware;
  hardware.subclusters.push_back({"fast", catalogue_device("A5000"), 1, 1, {}, {}});
  layer_chain chain;
  for (int l = 0; l < 4; ++l)
    chain.layers.push_back({.name = "l", .forward_flops = 4e11, .parameters = 4'000'000, .boundary_bytes = 100'000});
  const priced_model model{.model = chain};
  const auto found = find_inference_plan(hardware, model, {.served = {.batch = 2}});
  REQUIRE(found);
  CHECK(found->batch_size == 2);
  CHECK(found->predicted->latency_s == found->stages[0].cost.forward_s);
  const auto forwards = costs_on(hardware, model, 2).stage({0, 4}, {.mesh = {0, 1, 1}});
  CHECK(found->predicted->latency_s == doctest::Approx(forwards.forward_s));
  CHECK(found->setting.sequence == 0);
  CHECK_THROWS_AS((void)inference_costs_on(hardware, model, {}), input_error);
  CHECK_THROWS_AS((void)forward_costs_on(hardware, served_llama(), 1), input_error);
  CHECK_THROWS_AS((void)forward_costs_on(hardware, {.model = chain, .instead = profile{}}, 1), input_error);
}

TEST_CASE("inference_costs_on: costs of training are none of inference, and what devices lack is named") {
  const auto hardware = serving_pool();
  const auto said = [](const cluster& on, const priced_model& model) {
    try {
      (void)inference_costs_on(on, model, {.prompt_tokens = 128, .output_tokens = 16});
      return std::string();
    } catch (const input_error& e) {
      return std::string(e.what());
    }
  };
  const auto model = served_llama();
  CHECK(said(hardware, model).empty());
  auto other = model;
  other.instead = replica_profile{};
  CHECK(said(hardware, other) == "a profile holds costs of training, not of inference");
  other.instead = hexiscale_formulas{};
  CHECK(said(hardware, other) == "inference needs a transformer and the costs of the tile model");
  other = model;
  other.options.formulas = cost_formulas::analytic;
  CHECK(said(hardware, other) == "inference needs a transformer and the costs of the tile model");
  other = model;
  other.options.correction = [](const tile_device&, const operator_shape&, const operator_time&) { return 1.0; };
  CHECK(said(hardware, other) == "a correction is of training; inference is priced without");
  other = model;
  other.options.flash_attention = false;
  CHECK(said(hardware, other) == "inference is priced with flash attention only");
  auto unknown = hardware;
  unknown.subclusters[1].device.multiprocessors = 0;
  unknown.subclusters[1].device.clock_hz = 0;
  CHECK(said(unknown, model).find("of subcluster a4000 lacks multiprocessors, clock_mhz, optional") != std::string::npos);
}
