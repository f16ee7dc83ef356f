// SPDX-License-Identifier: Apache-2.0
// Profiles of replicas, and precisions, as a user of the commands meets them.
#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string data = HETSCHED_SOURCE_DIR "/examples/data/";

const std::string cluster_text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
  {"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
  {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
  "links": [{"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100}]})";

// Two layers on single devices; a microbatch of `size` samples takes `time` seconds forward in each.
std::string row(const std::string& device, int size, double time, const std::string& more = "") {
  const auto pair = [](double x) { return "[" + std::to_string(x) + ", " + std::to_string(x) + "]"; };
  return R"({"device": ")" + device + R"(", "tensor": 1, "context": 1, "microbatch_size": )" + std::to_string(size) +
         R"(, "forward_s": )" + pair(time) + R"(, "backward_s": )" + pair(2 * time) +
         R"(, "weight_bytes": [4000000000, 4000000000], "activation_bytes": [1000, 1000])" + more + "}";
}

std::string profile_text(const std::vector<std::string>& rows) {
  std::string text = R"({"format": "hetsched/profile", "version": 2, "layers": [{"name": "x", "boundary_bytes_per_sample": 1000},
    {"name": "y", "boundary_bytes_per_sample": 0}], "costs": [)";
  for (std::size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "" : ", ") + rows[i];
  return text + "]}";
}

const std::string a100 = "A100-SXM4-40GB", v100 = "V100-SXM2-16GB";
const std::string gradients = R"(, "gradient_bytes": [1000000000, 1000000000])";
const std::string plan_command = "hetsched-plan --cluster cluster.json --profile profile.json --out plan.json ";

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the microbatch size is searched over those that the profile can price") {
  const workplace w;
  w.put("cluster.json", cluster_text);
  // Large microbatches are far better; 1 was not measured.
  w.put("profile.json", profile_text({row(a100, 2, 1.0, gradients), row(a100, 8, 1.5, gradients)}));
  const auto found = w.run(plan_command + "--global-batch 64");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  CHECK(found.complaints().empty());
  const auto plan = parse_plan(w.get("plan.json"), "plan.json").plan;
  double best = plan.predicted.samples_per_s;
  CHECK(plan.setting.costs == "profile");
  const auto& stage = plan.pipelines.front().stages.front();
  CHECK(plan.pipelines.front().microbatch_size / stage.degrees.data >= 2);
  for (const int size : {2, 4, 8, 16, 32}) {
    const auto one = w.run(plan_command + "--global-batch 64 --microbatch-size " + std::to_string(size));
    CAPTURE(one.errors);
    REQUIRE(one.status == 0);
    CHECK(parse_plan(w.get("plan.json"), "plan.json").plan.predicted.samples_per_s <= best);
  }
  const auto small = w.run(plan_command + "--global-batch 64 --microbatch-size 1");
  CHECK(small.status == 1);
  CHECK(small.errors ==
        "hetsched-plan: no plan: profile.json has no costs for microbatches of 1 sample on this cluster: replicas were measured "
        "at 2, 8 samples; --extrapolate goes beyond\n");
  CHECK(w.run(plan_command + "--global-batch 1").errors == small.errors);

  // A size that has costs but no room says more than one without.
  auto full = row(a100, 2, 1.0);
  full.replace(full.find("4000000000"), 10, "400000000000");
  w.put("profile.json", profile_text({full}));
  const auto crowded = w.run(plan_command + "--global-batch 2");
  CHECK(crowded.status == 1);
  CHECK(holds(crowded.errors, "GiB"));
  w.put("profile.json", profile_text({row("T4", 1, 1.0)}));
  CHECK(holds(w.run(plan_command + "--global-batch 2").errors, "on this cluster: no device of the cluster was measured"));
}

TEST_CASE("what lies beyond the measured sizes is used on request, and told; so is a reduction that counts as free") {
  const workplace w;
  w.put("cluster.json", cluster_text);
  w.put("profile.json", profile_text({row(a100, 2, 1.0), row(a100, 4, 1.5)}));
  const auto found = w.run(plan_command + "--extrapolate --global-batch 64 --microbatch-size 64");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  CHECK(holds(found.errors, "samples on a replica are extrapolated from 2 and 4\n"));
  CHECK(holds(found.errors, "profile.json tells no gradient_bytes: adding up the gradients of replicas counts as free\n"));

  const std::string predict = "hetsched-predict --cluster cluster.json --profile profile.json --plan plan.json ";
  const auto again = w.run(predict + "--extrapolate");
  CHECK(again.status == 0);
  CHECK(holds(again.errors, "samples on a replica are extrapolated from 2 and 4\n"));
  CHECK(holds(again.output, "state"));
  const auto refused = w.run(predict);
  CHECK(refused.status == 2);
  CHECK(holds(refused.errors, "(replicas were measured at 2, 4 samples; --extrapolate goes beyond)"));
  // A stage that shards its state is no matter of sizes.
  auto sharding = nlohmann::json::parse(w.get("plan.json"));
  sharding["pipelines"][0]["stages"][0]["zero"] = 1;
  w.put("plan.json", sharding.dump());
  const auto sharded = w.run(predict + "--extrapolate");
  CHECK(sharded.status == 2);
  CHECK(holds(sharded.errors,
              "plan.json: /pipelines/0/stages/0/zero: found 1, expected 0; the replicas of profile.json were "
              "measured without ZeRO"));

  w.put("profile.json", profile_text({row(a100, 4, 1.5, gradients)}));
  const auto alone = w.run(plan_command + "--extrapolate --global-batch 8 --microbatch-size 1");
  CHECK(alone.status == 0);
  CHECK(holds(alone.errors, "the costs of 1 samples on a replica are extrapolated from 4\n"));
  CHECK(!holds(alone.errors, "gradient_bytes"));
}

TEST_CASE("a profile of one size stays one, and what does not belong together is refused") {
  const workplace w;
  w.put("cluster.json", cluster_text);
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 256, "heads": 4,
    "vocab": 1000, "sequence": 128, "dtype": "bf16"}})");
  w.put("layers.json", R"({"format": "hetsched/model", "version": 1, "layers": [{"name": "one", "forward_flops": 8e11,
    "weight_bytes": 20000000, "activation_bytes": 300000, "boundary_bytes": 50000}]})");
  w.put("one.json", R"({"format": "hetsched/profile", "version": 1, "layers": [{"name": "x", "boundary_bytes": 0}],
    "costs": [{"subcluster": "a", "nodes": 1, "devices": 1, "forward_s": [1], "backward_s": [1], "weight_bytes": [1],
    "activation_bytes": [1]}]})");
  w.put("profile.json", profile_text({row(a100, 2, 1.0), R"({"subcluster": "b", "tensor": 1, "context": 1, "microbatch_size": 2,
    "forward_s": [1, 1], "backward_s": [1, 1], "weight_bytes": [1, 1], "activation_bytes": [1, 1]})"}));
  const std::string plan_one = "hetsched-plan --cluster cluster.json --profile one.json --out plan.json --global-batch 4 ";
  REQUIRE(w.run(plan_one).status == 0);
  CHECK(parse_plan(w.get("plan.json"), "plan.json").plan.pipelines.front().microbatch_size == 1);
  const std::string formulas = "hetsched-plan --cluster cluster.json --global-batch 4 ";
  struct row {
    std::string line, part;
  };
  const row rows[] = {
      {plan_one + "--microbatch-size auto", "or a profile of version 2; one of version 1 holds the costs of one size"},
      {plan_one + "--extrapolate", "--extrapolate: one.json is of version 1"},
      {plan_one + "--dtype fp16", "excludes"},
      {plan_command + "--global-batch 4", "profile.json: /costs/1/subcluster: the cluster has no subcluster b"},
      {formulas + "--model model.json --extrapolate", "--extrapolate requires --profile"},
      {formulas + "--model model.json --dtype fp8", "--dtype"},
      {formulas + "--model layers.json --dtype tf32", "layers.json: /layers: are amounts of 16-bit numbers"},
  };
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run(r.line);
    CHECK(result.status == 2);
    CHECK_MESSAGE(holds(result.errors, r.part), result.errors);
  }
}

TEST_CASE(
    "a precision that a device lacks is told; --dtype takes the place of the file's, and predictions take it from the plan") {
  const workplace w;
  w.put("cluster.json", cluster_text);
  const auto model = [](const std::string& dtype) {
    return R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 4, "hidden": 1024, "heads": 16,
    "vocab": 1000, "sequence": 512, "dtype": ")" +
           dtype + "\"}}";
  };
  w.put("bf16.json", model("bf16"));
  const std::string plan = "hetsched-plan --cluster cluster.json --global-batch 8 --out plan.json --report page.html ";
  const std::string note = "v has no bf16: priced in fp16 there";
  for (const std::string cost : {"tile", "analytic"}) {
    const auto said = w.run(plan + "--model bf16.json --cost " + cost);
    REQUIRE(said.status == 0);
    CHECK(said.complaints() == "hetsched-plan: " + note + "\n");
    CHECK(holds(said.output, "precision     bf16"));
    CHECK(holds(said.output, note));
    CHECK(holds(w.get("page.html"), note));
    const auto again = w.run("hetsched-predict --cluster cluster.json --model bf16.json --plan plan.json");
    CHECK(holds(again.errors, "hetsched-predict: " + note + "\n"));
    CHECK(holds(again.output, note));
  }
  const auto quiet = w.run(plan + "--model bf16.json --dtype fp16");
  CHECK(quiet.complaints().empty());
  CHECK(holds(quiet.output, "precision     fp16\n"));

  for (const std::string dtype : {"fp32", "tf32", "fp16"}) {
    CAPTURE(dtype);
    REQUIRE(w.run(plan + "--model bf16.json --dtype " + dtype).status == 0);
    const auto cast = w.get("plan.json");
    w.put("cast.json", model(dtype));
    REQUIRE(w.run(plan + "--model cast.json").status == 0);
    CHECK(w.get("plan.json") == cast);
    CHECK(parse_plan(cast, "plan.json").plan.setting.precision == dtype);
    const auto as_planned = w.run("hetsched-predict --json --cluster cluster.json --model bf16.json --plan plan.json");
    REQUIRE(as_planned.status == 0);
    const auto told = nlohmann::json::parse(as_planned.output);
    CHECK(told.at("iteration_s").get<double>() ==
          doctest::Approx(parse_plan(cast, "plan.json").plan.predicted.iteration_s).epsilon(1e-9));
    if (dtype == "fp16") continue;  // as fast as bf16, and of the same bytes
    const auto other = w.run("hetsched-predict --json --cluster cluster.json --model bf16.json --plan plan.json --dtype bf16");
    CHECK(nlohmann::json::parse(other.output).at("iteration_s") != told.at("iteration_s"));
  }

  w.put("ops.csv", "op,batch,m,n,k,dtype\ngemm,1,64,64,64,bf16\n");
  CHECK(w.run("hetsched-predict --operators ops.csv --device T4").errors == "hetsched-predict: T4 has no bf16: priced in fp16\n");
}

TEST_CASE("measured layers of GPT-Neo: every size and degree of the measurement, with gradients and updates") {
  const workplace w;
  const std::string convert = "sailor-to-profile --csv " + data +
                              "sailor_gpt_neo_2.7b.csv --measured-model GPT-Neo-2.7 --model " + data +
                              "model.json --gpu V100-16=V100-SXM2-16GB --gpu A100-40=A100-SXM4-40GB --out profile.json ";
  REQUIRE(w.run(convert).status == 0);
  const auto all = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  CHECK(all.layers.size() == 34);
  CHECK(all.layers[0].boundary_bytes_per_sample == 2048 * 2560 * 4);
  REQUIRE(all.rows.size() == 23);  // A100: 3 degrees of 4 sizes; V100: 3 sizes on one device, 4 on two and four
  for (const auto& r : all.rows) {
    CAPTURE(r.device);
    CAPTURE(r.tensor);
    CAPTURE(r.microbatch_size);
    CHECK(r.update_s.size() == 34);
    for (std::size_t l = 0; l < 34; ++l) {
      CHECK(r.gradient_bytes[l] * 4 <= r.weight_bytes[l] + 3);  // fp32: weights, gradients, two moments
      CHECK(r.gradient_bytes[l] * 4 + 12 >= r.weight_bytes[l]);
    }
    // A block: 12 h^2 weights and 13 h of biases and norms.
    CHECK(r.gradient_bytes[1] == (4 * (12 * bytes_t{2560} * 2560 + 13 * 2560) + r.tensor - 1) / r.tensor);
  }
  // A size that is left out lies near the line between its neighbours.
  const auto hardware = read_cluster(data + "cluster.json");
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    const auto& r = all.rows[i];
    if (r.microbatch_size == 1 || r.microbatch_size == 8 || (r.microbatch_size == 4 && r.device == v100 && r.tensor == 1))
      continue;
    CAPTURE(r.device);
    CAPTURE(r.tensor);
    CAPTURE(r.microbatch_size);
    auto fewer = all;
    fewer.rows.erase(fewer.rows.begin() + static_cast<std::ptrdiff_t>(i));
    const placement where{{r.device == v100 ? 0 : 1, 1, r.tensor}, {1, 1, r.tensor}};
    const replica_cost_options size{.microbatch_size = r.microbatch_size};
    const auto measured = replica_cost_model(hardware, all, size).stage({0, 34}, where);
    const auto between = replica_cost_model(hardware, fewer, size).stage({0, 34}, where);
    CHECK(between.total_s() == doctest::Approx(measured.total_s()).epsilon(0.05));
    CHECK(between.weight_bytes == measured.weight_bytes);
    CHECK(between.gradient_bytes == measured.gradient_bytes);
    CHECK(between.activation_bytes == measured.activation_bytes);
  }
  REQUIRE(w.run(convert + "--microbatch-size 4").status == 0);
  const auto four = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  REQUIRE(four.rows.size() == 6);
  for (const auto& r : four.rows) CHECK(std::count(all.rows.begin(), all.rows.end(), r) == 1);

  struct row {
    std::string line, part;
  };
  const row rows[] = {{convert + "--microbatch-size 3", "no rows of GPT-Neo-2.7 at microbatch size 3 on these devices"},
                      {convert + "--gpu GH-96=V100-SXM2-16GB", "is named for two GPUs"}};
  for (const auto& r : rows) {
    const auto result = w.run(r.line);
    CHECK(result.status == 2);
    CHECK_MESSAGE(holds(result.errors, r.part), result.errors);
  }
}
