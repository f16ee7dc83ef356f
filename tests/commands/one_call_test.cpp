// SPDX-License-Identifier: Apache-2.0
// What hetsched-plan finds and writes is what one call of find_plan returns.
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/io.hpp>
#include <hetsched/planners.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string one_call_cluster = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
  {"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
  {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
  "links": [{"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100}]})";

/// What the command prints of its plan, and what the call's would be.
void expect_same(const workplace& w, const std::string& options, const cluster& hardware, const priced_model& model,
                 const plan_request& request) {
  const auto said = w.run("hetsched-plan --cluster cluster.json --json " + options);
  CAPTURE(options);
  CAPTURE(said.errors);
  REQUIRE(said.status == 0);
  const auto found = find_plan(hardware, model, request);
  REQUIRE(found);
  CHECK(nlohmann::json::parse(said.output)["plan"] == nlohmann::json::parse(to_json(*found, hardware)));
}

}  // namespace

TEST_CASE(
    "find_plan of a priced_model is the plan that hetsched-plan prints, by formulas, corrected, anchored, and as measured") {
  const workplace w;
  w.put("cluster.json", one_call_cluster);
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 4, "hidden": 1024, "heads": 16,
    "vocab": 32000, "sequence": 512, "dtype": "fp16"}})");
  const auto hardware = read_cluster(w.path("cluster.json"));
  const priced_model by_formulas{.model = *read_model(w.path("model.json")).family};
  const std::string of = "--model model.json --global-batch 8 ";
  expect_same(w, of, hardware, by_formulas, {.global_batch = 8});
  expect_same(w, of + "--planner interop_dp --schedule zb_h1 --microbatch-size 2", hardware, by_formulas,
              {.global_batch = 8, .microbatch_size = 2, .planner = "interop_dp", .schedule = "zb_h1"});

  auto under_fsdp = by_formulas;
  under_fsdp.options.formulas = cost_formulas::analytic;
  under_fsdp.options.stack = *find_training_stack("fsdp");
  under_fsdp.options.cut = granularity::block;
  under_fsdp.options.zero = {3};
  expect_same(w, of + "--planner interop_dp --cost analytic --stack fsdp --granularity block --zero 3", hardware, under_fsdp,
              {.global_batch = 8, .planner = "interop_dp"});

  auto by_hexiscale = by_formulas;
  by_hexiscale.instead = hexiscale_formulas{};
  expect_same(w, of + "--planner hexiscale --cost hexiscale", hardware, by_hexiscale,
              {.global_batch = 8, .planner = "hexiscale"});

  auto seen = one_call_cluster;
  seen.insert(seen.find("\"subclusters\""),
              R"("devices": {"A100-SXM4-40GB": {"measured": [{"model": "model.json", "tokens_per_s": 30000}]}}, )");
  w.put("cluster.json", seen);
  const auto file = read_cluster_file(w.path("cluster.json"));
  expect_same(w, of + "--planner interop_dp", anchored(file.hardware, file.anchors, by_formulas), by_formulas,
              {.global_batch = 8, .planner = "interop_dp"});
  w.put("cluster.json", one_call_cluster);

  // One sample on an A100 and two on a V100, layer by layer; the default planner of such costs makes one pipeline.
  w.put("shapes.json", R"({"format": "hetsched/profile", "version": 1, "layers": [{"name": "x", "boundary_bytes": 1000},
    {"name": "y", "boundary_bytes": 0}], "costs": [
    {"subcluster": "v", "nodes": 1, "devices": 1, "forward_s": [1, 1], "backward_s": [2, 2], "weight_bytes": [8, 8], "activation_bytes": [8, 8]},
    {"subcluster": "a", "nodes": 1, "devices": 1, "forward_s": [0.5, 1], "backward_s": [1, 2], "weight_bytes": [8, 8], "activation_bytes": [8, 8]}]})");
  const priced_model of_shapes{.instead = read_profile(w.path("shapes.json")), .profile_name = "shapes.json"};
  expect_same(w, "--profile shapes.json --global-batch 8", hardware, of_shapes, {.global_batch = 8});

  w.put("replicas.json",
        R"({"format": "hetsched/profile", "version": 2, "layers": [{"name": "x", "boundary_bytes_per_sample": 1000},
    {"name": "y", "boundary_bytes_per_sample": 0}], "costs": [
    {"device": "A100-SXM4-40GB", "tensor": 1, "context": 1, "microbatch_size": 2, "forward_s": [1, 1], "backward_s": [2, 2],
     "weight_bytes": [4000, 4000], "activation_bytes": [1000, 1000], "gradient_bytes": [1000, 1000]}]})");
  priced_model of_replicas{.instead = std::get<replica_profile>(read_profile_file(w.path("replicas.json"))),
                           .profile_name = "replicas.json"};
  expect_same(w, "--profile replicas.json --global-batch 8 --planner interop_dp", hardware, of_replicas,
              {.global_batch = 8, .planner = "interop_dp"});
  const auto none = find_plan(hardware, of_replicas, {.global_batch = 8, .microbatch_size = 1});
  REQUIRE(!none);
  CHECK(w.run("hetsched-plan --cluster cluster.json --profile replicas.json --global-batch 8 --microbatch-size 1").errors ==
        "hetsched-plan: no plan: " + none.why_not().reason + "; --extrapolate goes beyond\n");
  of_replicas.extrapolate = true;
  expect_same(w, "--profile replicas.json --extrapolate --global-batch 8 --planner interop_dp", hardware, of_replicas,
              {.global_batch = 8, .planner = "interop_dp"});
}

TEST_CASE("find_what_if_plans are the plans that hetsched-plan --without prints and writes") {
  const workplace w;
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 4, "hidden": 1024, "heads": 16,
    "vocab": 32000, "sequence": 512, "dtype": "fp16"}})");
  const priced_model model{.model = *read_model(w.path("model.json")).family};
  auto slow = one_call_cluster;  // so that plans for all devices are worse where all must be used
  slow.replace(slow.find("5, \"latency_us\": 100"), 1, "0.05");
  for (const auto& [cluster, option] : {std::pair{one_call_cluster, ""}, {slow, ""}, {slow, " --use-all-devices"}}) {
    CAPTURE(cluster);
    CAPTURE(option);
    w.put("cluster.json", cluster);
    const auto hardware = read_cluster(w.path("cluster.json"));
    const plan_request request{.global_batch = 8, .planner = "interop_dp", .use_all_devices = *option != 0};
    const auto said = w.run(std::string("hetsched-plan --cluster cluster.json --model model.json --global-batch 8 --planner "
                                        "interop_dp --json --without v,a:all,v:all") +
                            option);
    CAPTURE(said.errors);
    REQUIRE(said.status == 0);
    const auto told = nlohmann::json::parse(said.output);
    const lost_devices lost[] = {{0, 1}, {1, 2}, {0, 2}};
    const auto found = find_what_if_plans(hardware, lost, model, request);
    REQUIRE(found);
    CHECK(told["plan"] == nlohmann::json::parse(to_json(found->all, hardware)));
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      const auto& left = found->left[i];
      REQUIRE(left);
      CHECK(told["without"][i]["plan"] == nlohmann::json::parse(to_json(*left, hardware)));
      CHECK(told["without"][i]["change"].get<double>() == objective_of(*left) / objective_of(found->all) - 1);
    }
    if (!request.use_all_devices) continue;
    int devices = 0;
    for (const auto& stage : told["plan"]["pipelines"][0]["stages"])
      for (const auto& g : stage["devices"]) devices += g["nodes"].get<int>() * g["devices_per_node"].get<int>();
    CHECK(devices == 4);
    CHECK(objective_of(*found->left[2]) < objective_of(found->all));
  }
}
