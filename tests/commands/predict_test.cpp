// SPDX-License-Identifier: Apache-2.0
// hetsched-predict as a user calls it, against closed forms, the library and the plans of hetsched-plan.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/memory/training_memory.hpp>
#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/io.hpp>
#include <hetsched/model/flash_attention.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string cluster_text = R"({"format": "hetsched/cluster", "version": 1,
  "devices": {"Own": {"peak_tflops": {"fp16": 100, "fp32": 10}, "memory_gib": 24, "memory_bandwidth_gb_per_s": 500,
                      "multiprocessors": 50, "l2_mib": 4, "clock_mhz": 1500}},
  "subclusters": [
  {"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
  {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}},
  {"name": "o", "device": "Own", "nodes": 1, "devices_per_node": 1}],
  "links": [{"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100}]})";
const std::string model_text = R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 12, "hidden": 1024,
  "heads": 16, "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})";
const std::string layers_text = R"({"format": "hetsched/model", "version": 1, "layers": [
  {"name": "one", "forward_flops": 8e11, "weight_bytes": 20000000, "activation_bytes": 300000, "boundary_bytes": 50000}]})";
// Both subclusters hold one stage each; the second one's degrees are for microbatches of two samples.
const std::string plan_text =
    R"({"format": "hetsched/plan", "version": 1, "planner": "by hand", "microbatches": 16, "pipelines": [
  {"microbatches": 16, "microbatch_size": 2, "stages": [
    {"layers": [0, 25], "subcluster": "v", "first_device": 0, "nodes": 1, "devices_per_node": 4,
     "degrees": {"data": 1, "context": 1, "tensor": 4}, "warmup": 3, "forward_s": 1, "backward_s": 2, "transfer_s": 0.5,
     "memory_bytes": 10, "memory_capacity_bytes": 12},
    {"layers": [26, 37], "subcluster": "a", "first_device": 2, "nodes": 1, "devices_per_node": 2,
     "degrees": {"data": 2, "context": 1, "tensor": 1}, "warmup": 1, "forward_s": 1, "backward_s": 2, "transfer_s": 0,
     "memory_bytes": 10, "memory_capacity_bytes": 12}]}],
  "schedule": "h1f1b",
  "predicted": {"iteration_s": 1, "lower_bound_s": 1, "samples_per_s": 1, "mfu": 0, "load_balance": 1, "period_s": 1}})";

const std::string predict = "hetsched-predict --cluster cluster.json --model model.json --plan plan.json ";

void fill(const workplace& w) {
  w.put("cluster.json", cluster_text);
  w.put("model.json", model_text);
  w.put("layers.json", layers_text);
  w.put("plan.json", plan_text);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

nlohmann::json object(const workplace& w, const std::string& line) {
  const auto result = w.run(line + " --json");
  CAPTURE(line);
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  return nlohmann::json::parse(result.output);
}

doctest::Approx about(double x) { return doctest::Approx(x).epsilon(1e-9); }

}  // namespace

TEST_CASE("operators: the same rows with their times by the tile model, on catalogued and own devices") {
  const workplace w;
  fill(w);
  const std::vector<std::string> rows{"gemm,1,4096,4096,1024,fp16", " BMM ,96,512,512,64,fp32", "softmax,8,1024,1024,,fp32",
                                      "layernorm,1,8192,1024,1,bf16", "elementwise_add,4,1024,1024,0,fp16"};
  std::vector<operator_shape> shapes{gemm(4096, 4096, 1024, number_format::fp16),
                                     batched_gemm(96, 512, 512, 64, number_format::fp32),
                                     softmax(8192, 1024, number_format::fp32), norm(8192, 1024, number_format::bf16),
                                     elementwise(4 << 20, 2, 1, number_format::fp16)};
  shapes[0].repeated = shapes[1].repeated = true;
  std::string text = "op,batch,m,n,k,dtype\n";
  for (const auto& row : rows) text += row + "\n";
  w.put("ops.csv", text);
  for (const std::string name : {"T4", "H100-SXM5-80GB", "Own"}) {
    CAPTURE(name);
    const auto d = name == "Own" ? read_cluster(w.path("cluster.json")).subclusters[2].device : catalogue_device(name);
    const auto result =
        w.run("hetsched-predict --operators ops.csv --device " + name + (name == "Own" ? " --cluster cluster.json" : ""));
    REQUIRE(result.status == 0);
    CHECK(result.complaints().empty());
    std::string expected = "op,batch,m,n,k,dtype,predicted_ms\n";
    for (std::size_t i = 0; i < rows.size(); ++i)
      expected += rows[i] + detail::print(",%.6f\n", predict_operator(make_tile_device(d), shapes[i]).seconds * 1e3);
    CHECK(result.output == expected);
    CHECK(w.run("hetsched-predict --operators ops.csv --cluster cluster.json --out times.csv --device " + name).output ==
          "wrote times.csv\n");
    CHECK(w.get("times.csv") == expected);
  }
  w.put("ops.csv", "op,batch,m,n,k,dtype,measured_ms\ngelu,1,1000,1000,1,fp32,1000\ngelu,1,1000,1000,1,fp32,1000\n");
  CHECK(w.run("hetsched-predict --operators ops.csv --device T4")
            .errors.starts_with("off the measured times by 100.0 % on average"));
}

TEST_CASE("operators: rows with something wrong are left out, told and counted, or an error; the rest as JSON") {
  const workplace w;
  const std::string heading = "op,batch,m,n,k,dtype,measured_ms\n", good = "gemm,1,1024,1024,1024,fp16,0.5\n",
                    other = "softmax,2,64,64,,fp32,0.25\n";
  w.put("ops.csv", heading + "gemm,1,1024,x,1024,fp16,1\n" + good + "gemm,1,8\n" + other + "gelu,1,8,8,1,fp32,-1\n");
  const std::string line = "hetsched-predict --device T4 --operators ";
  const auto run = w.run(line + "ops.csv");
  CHECK(run.status == 0);
  w.put("good.csv", heading + good + other);
  const auto expected = w.run(line + "good.csv");
  CHECK(run.output == expected.output);
  for (const std::string part : {"ops.csv: line 2: column n: found \"x\"", "ops.csv: line 4: found 3 cells",
                                 "line 6: column measured_ms", "3 of 5 rows left out; --strict makes that an error"}) {
    CAPTURE(part);
    CHECK(run.errors.find(part) != std::string::npos);
  }
  CHECK(run.errors.ends_with(expected.errors));
  const auto strict = w.run(line + "ops.csv --strict");
  CHECK(strict.status == 2);
  CHECK(strict.output.empty());
  CHECK(strict.errors == "hetsched-predict: ops.csv: line 2: column n: found \"x\", expected a whole number of at least 1\n");
  w.put("bad.csv", heading + "gem,1,1,1,1,fp16,1\n");
  CHECK(w.run(line + "bad.csv").status == 2);

  const auto json = nlohmann::json::parse(w.run(line + "ops.csv --json").output);
  CHECK(json.at("device") == "T4");
  CHECK(json.at("skipped") == 3);
  REQUIRE(json.at("operators").size() == 2);
  const auto& first = json.at("operators")[0];
  CHECK(first.at("op") == "gemm");
  CHECK(first.at("m") == 1024);
  const double ms = first.at("predicted_ms");
  CHECK(
      ms ==
      doctest::Approx(
          predict_operator(make_tile_device(catalogue_device("T4")), gemm(1024, 1024, 1024, number_format::fp16)).seconds * 1e3));
  CHECK(first.at("error_percent").get<double>() == doctest::Approx((ms / 0.5 - 1) * 100));
  CHECK(json.at("operators")[1].at("k") == "");
}

TEST_CASE("one stage: the iteration is its work and the step, the memory what its parameters and activations take") {
  const workplace w;
  fill(w);
  // A stage without neighbours on one A100: half of 312 TFLOP/s, 10 us per direction; backward takes twice the FLOPs.
  auto plan = nlohmann::json::parse(plan_text);
  auto& line = plan["pipelines"][0];
  line["stages"].erase(1);
  auto& stage = line["stages"][0];
  stage["layers"] = {0, 0};
  stage["subcluster"] = "a";
  stage["devices_per_node"] = 1;
  stage["degrees"]["tensor"] = 1;
  stage["transfer_s"] = 0;
  w.put("one.json", plan.dump());
  const auto found = object(w, "hetsched-predict --cluster cluster.json --model layers.json --plan one.json");
  const double forward_s = 2 * 8e11 / 156e12 + 10e-6, backward_s = 2 * 1.6e12 / 156e12 + 10e-6;
  const double step_s = 1e7 * (2 * 12 + 2 + 2) / 1555e9;  // reads and writes what Adam keeps
  CHECK(found.at("costs") == "analytic");
  CHECK(found.at("like_cases").empty());
  CHECK(found.at("iteration_s").get<double>() == about(16 * (forward_s + backward_s) + step_s));
  CHECK(found.at("samples_per_s").get<double>() == about(32 / found.at("iteration_s").get<double>()));
  CHECK(found.at("mfu").get<double>() == about(2.4e12 * found.at("samples_per_s").get<double>() / 312e12));
  CHECK(found.at("breakdown").at("compute_s").get<double>() == about(16 * (forward_s + backward_s)));
  CHECK(found.at("breakdown").at("optimizer_s").get<double>() == about(step_s));
  for (const char* part : {"collective_s", "transfer_s", "bubble_s", "gradient_reduction_s"})
    CHECK(found.at("breakdown").at(part).get<double>() == doctest::Approx(0).epsilon(1e-12));
  const auto& memory = found.at("stages")[0].at("memory_bytes");
  CHECK(memory.at("weights") == 20'000'000);
  CHECK(memory.at("gradients") == 20'000'000);
  CHECK(memory.at("optimizer") == 120'000'000);
  CHECK(memory.at("activations") == 3 * 2 * 300'000);  // three in flight
  CHECK(memory.at("runtime") == 1'000'000'000);
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : memory.items())
    if (name != "total") sum += bytes.get<std::int64_t>();
  CHECK(memory.at("total") == sum);
}

TEST_CASE("what hetsched-plan planned is predicted alike from the same costs") {
  const workplace w;
  fill(w);
  const std::string data = HETSCHED_SOURCE_DIR "/examples/data/";
  struct row {
    std::string planning, predicting;
  };
  const std::string here = " --cluster cluster.json --model model.json ";
  const std::string there =
      " --cluster " + data + "cluster.json --model " + data + "model.json --profile " + data + "profile.json ";
  const row rows[] = {{here, here},
                      {here + "--cost analytic --attention standard --granularity block --sequence 512", here},
                      {here + "--recompute full", here},
                      {here + "--schedule zb_h1 --zero 1", here},
                      {here + "--schedule auto", here},
                      {there, there}};
  for (const auto& r : rows) {
    CAPTURE(r.planning);
    const auto planned = w.run("hetsched-plan --planner interop_dp --global-batch 32 --microbatch-size " +
                               std::string(&r == &rows[5] ? "1" : "2") + " --out plan.json" + r.planning);
    CAPTURE(planned.errors);
    REQUIRE(planned.status == 0);
    const auto plan = parse_plan(w.get("plan.json"), "plan.json").plan;
    const auto found = object(w, "hetsched-predict --plan plan.json" + r.predicting);
    CHECK(found.at("iteration_s").get<double>() == about(plan.predicted.iteration_s));
    CHECK(found.at("period_s").get<double>() == about(plan.predicted.period_s));
    CHECK(found.at("mfu").get<double>() == about(plan.predicted.mfu));
    CHECK(found.at("load_balance").get<double>() == about(plan.predicted.load_balance));
    CHECK(found.at("plan").at("iteration_s") == plan.predicted.iteration_s);
    double whole_s = 0;
    for (const char* part : {"compute_s", "collective_s", "transfer_s", "bubble_s", "gradient_reduction_s", "optimizer_s"}) {
      CHECK(found.at("breakdown").at(part).get<double>() >= -1e-12);
      whole_s += found.at("breakdown").at(part).get<double>();
    }
    CHECK(whole_s == about(plan.predicted.iteration_s));
    const auto& stages = plan.pipelines.front().stages;
    const auto& busiest = found.at("stages")[found.at("breakdown").at("stage").get<std::size_t>()];
    const auto work_s = [&](const auto& s) {
      const auto number = [&](const char* key) { return s.at(key).template get<double>(); };
      return plan.pipelines.front().microbatches * (number("forward_s") + number("backward_s")) + number("update_s");
    };
    REQUIRE(found.at("stages").size() == stages.size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      CHECK(found.at("stages")[i].at("forward_s").get<double>() == about(stages[i].cost.forward_s));
      if (i + 1 < stages.size())
        CHECK(found.at("stages")[i].at("transfer_s").get<double>() == about(plan.pipelines.front().boundaries[i].forward_s));
      CHECK(work_s(found.at("stages")[i]) <= work_s(busiest) * (1 + 1e-12));
      CHECK(found.at("stages")[i].at("memory_bytes").at("total") == stages[i].memory_bytes);
      CHECK(stages[i].memory_bytes <= stages[i].memory_capacity_bytes);
    }
  }
}

TEST_CASE("stages of unlike devices are planned, priced and predicted alike; shares count") {
  const workplace w;
  fill(w);
  w.put("cluster.json",
        replaced(cluster_text, R"("gbit_per_s": 5, "latency_us": 100)", R"("gbit_per_s": 800, "latency_us": 10)"));
  const std::string how = " --cluster cluster.json --model model.json ";
  const auto plan_of = [&](const std::string& more) {
    const auto r =
        w.run("hetsched-plan --planner interop_dp --granularity block --global-batch 128 --microbatch-size 64 --out plan.json" +
              how + more);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return parse_plan(w.get("plan.json"), "plan.json").plan;
  };
  const auto plain = plan_of(""), mixed = plan_of("--mixed-stages");
  CHECK(mixed.predicted.iteration_s < plain.predicted.iteration_s);
  REQUIRE(mixed.pipelines[0].stages.size() == 1);
  CHECK(is_mixed(mixed.pipelines[0].stages[0].devices));
  const auto found = object(w, "hetsched-predict --plan plan.json" + how);
  CHECK(found.at("iteration_s").get<double>() == about(mixed.predicted.iteration_s));
  CHECK(found.at("stages")[0].at("devices").size() == 2);
  CHECK(found.at("stages")[0].at("memory_bytes").at("total") == mixed.pipelines[0].stages[0].memory_bytes);
  // Without its shares all devices get as much, and the fast ones wait.
  auto text = nlohmann::json::parse(w.get("plan.json"));
  auto& stage = text["pipelines"][0]["stages"][0];
  const auto shares = stage.at("shares").at("data").get<std::vector<double>>();
  REQUIRE(shares.size() == 8);
  CHECK(shares.front() < shares.back());
  stage.erase("shares");
  w.put("plan.json", text.dump());
  CHECK(object(w, "hetsched-predict --plan plan.json" + how).at("iteration_s").get<double>() > mixed.predicted.iteration_s);
  // So do those of heads.
  text["pipelines"][0]["microbatch_size"] = 16;
  stage["degrees"] = {{"data", 1}, {"tensor", 8}};
  const auto by_heads = [&](std::vector<double> heads) {
    stage["shares"] = {{"tensor", std::move(heads)}};
    w.put("plan.json", text.dump());
    return object(w, "hetsched-predict --plan plan.json" + how).at("iteration_s").get<double>();
  };
  const double even_s = by_heads(std::vector<double>(8, 0.125));
  CHECK(by_heads({.0625, .0625, .0625, .0625, .1875, .1875, .1875, .1875}) < even_s);
  CHECK(by_heads({.1875, .1875, .1875, .1875, .0625, .0625, .0625, .0625}) > even_s);
  // What has no price says so.
  stage["degrees"] = {{"data", 2}, {"tensor", 4}};
  stage["shares"] = {{"tensor", {0.4, 0.2, 0.2, 0.2}}};
  w.put("plan.json", text.dump());
  const auto tensor = w.run("hetsched-predict --plan plan.json" + how);
  CHECK(tensor.status == 2);
  CHECK(tensor.errors.find("stage 0: tensor ranks with unlike devices or uneven shares have a price where the data") !=
        std::string::npos);
  stage["shares"] = {{"data", {0.75, 0.25}}};
  stage["layers"] = {0, 0};
  w.put("plan.json", text.dump());
  w.put("profile.json", R"({"format": "hetsched/profile", "version": 1, "layers": [{"name": "x", "boundary_bytes": 8}], "costs": [
    {"subcluster": "v", "nodes": 1, "devices": 4, "forward_s": [1], "backward_s": [2], "weight_bytes": [8], "activation_bytes": [8]}]})");
  const auto measured = w.run("hetsched-predict --plan plan.json --cluster cluster.json --profile profile.json");
  CAPTURE(measured.errors);
  CHECK(measured.status == 2);
  CHECK(measured.errors.find("of version 1, holds the costs of one number") != std::string::npos);
}

TEST_CASE("a profile that does not suit the cluster is told from a plan that it has no costs for") {
  const workplace w;
  fill(w);
  auto text = nlohmann::json::parse(plan_text);
  auto& stages = text["pipelines"][0]["stages"];
  stages.erase(1);
  stages[0]["layers"] = {0, 0};
  stages[0]["transfer_s"] = 0;
  w.put("plan.json", text.dump());
  const auto errors_of = [&](const std::string& subcluster, int devices) {
    w.put(
        "profile.json",
        R"({"format": "hetsched/profile", "version": 1, "layers": [{"name": "x", "boundary_bytes": 8}], "costs": [{"subcluster": ")" +
            subcluster + R"(", "nodes": 1, "devices": )" + std::to_string(devices) +
            R"(, "forward_s": [1], "backward_s": [2], "weight_bytes": [8], "activation_bytes": [8]}]})");
    const auto found = w.run("hetsched-predict --plan plan.json --cluster cluster.json --profile profile.json");
    CHECK(found.status == 2);
    return found.errors;
  };
  CHECK(errors_of("gone", 4).starts_with("hetsched-predict: profile.json: /costs/0/subcluster"));
  CHECK(errors_of("v", 2).starts_with("hetsched-predict: plan.json: stage 0: there are no costs for these degrees"));
}

TEST_CASE("exposed transfers and collectives are told apart from the bubble; both directions' stages count in memory") {
  const workplace w;
  fill(w);
  w.put("model.json", R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 1024, "n_head": 16, "vocab_size": 50257,
    "n_positions": 1024, "torch_dtype": "float16", "tie_word_embeddings": false})");
  const auto found = object(w, predict);
  CHECK(found.at("costs") == "tile");
  const auto known = cases_like(cost_basis::datasheets, "hetsched");
  REQUIRE(found.at("like_cases").size() == known.size());
  CHECK(found.at("like_cases").front().at("bias") == known.front().bias);
  CHECK(w.run(predict).output.find("\n" + cases_text(known) + "\n") != std::string::npos);
  pipeline p;
  for (const auto& s : found.at("stages")) {
    p.forward_s.push_back(s.at("forward_s").get<double>());
    p.backward_s.push_back(s.at("backward_s").get<double>());
  }
  p.transfer_s = {found.at("stages")[0].at("transfer_s").get<double>()};
  const auto iteration_s = [&] {
    const auto ends = simulate(p, {3, 1}, 16).rank_end_s;
    return std::max(ends[0] + found.at("stages")[0].at("update_s").get<double>(),
                    ends[1] + found.at("stages")[1].at("update_s").get<double>());
  };
  const double all_s = iteration_s();
  CHECK(found.at("iteration_s").get<double>() == about(all_s));
  p.transfer_s = {0};
  const auto& parts = found.at("breakdown");
  CHECK(parts.at("transfer_s").get<double>() == about(all_s - iteration_s()));
  CHECK(parts.at("transfer_s").get<double>() > 0);
  CHECK(parts.at("collective_s").get<double>() > 0);

  const auto chain = with_flash_attention(read_model(w.path("model.json")).chain);
  bytes_t widest = 0;
  for (int j = 0; j < 37; ++j) widest = std::max(widest, chain.layers[static_cast<std::size_t>(j)].boundary_bytes);
  auto two_samples = fitted_overheads, one_sample = fitted_overheads;
  two_samples.buffer_bytes = 4 * widest * 2 / 4;
  one_sample.buffer_bytes = 4 * widest;
  const auto crossed = boundary_cost(read_cluster(w.path("cluster.json")), {{0, 1, 4}, {.tensor = 4}}, {{1, 1, 2}, {.data = 2}},
                                     proximity::other_node, 2 * chain.layers[25].boundary_bytes);
  for (auto* one : {&two_samples, &one_sample}) one->buffer_bytes += crossed.extra_bytes;
  const auto held = stage_memory(chain, {0, 26}, {.tensor = 4}, {.samples = 2, .in_flight = 3, .overheads = two_samples}),
             sharded = stage_memory(chain, {26, 38}, {.data = 2}, {.samples = 1, .overheads = one_sample});
  CHECK(found.at("stages")[0].at("memory_bytes").at("total") == held.total());
  CHECK(found.at("stages")[1].at("memory_bytes").at("total") == sharded.total());

  // Without links between its devices the busiest stage takes what it computes.
  const auto fast = replaced(replaced(cluster_text, "1200, \"latency_us\": 5", "1e9, \"latency_us\": 0"),
                             "2400, \"latency_us\": 5", "1e9, \"latency_us\": 0");
  w.put("cluster.json", fast);
  const auto alone = object(w, predict).at("stages")[parts.at("stage").get<std::size_t>()];
  CHECK(parts.at("compute_s").get<double>() ==
        doctest::Approx(16 * (alone.at("forward_s").get<double>() + alone.at("backward_s").get<double>())).epsilon(1e-5));

  const auto single = found.at("stages");
  w.put("plan.json", replaced(plan_text, "\"h1f1b\"", "\"chimera\""));
  const auto both = object(w, predict).at("stages");
  for (const char* part : {"weights", "gradients", "optimizer"})
    for (int i = 0; i < 2; ++i)
      CHECK(both[i].at("memory_bytes").at(part).get<std::int64_t>() ==
            single[0].at("memory_bytes").at(part).get<std::int64_t>() +
                single[1].at("memory_bytes").at(part).get<std::int64_t>());
}

TEST_CASE("a stage that does not fit: everything is printed, and status 1 says what is short") {
  const workplace w;
  fill(w);
  w.put("cluster.json", replaced(cluster_text, "\"devices\": {", "\"devices\": {\"V100-SXM2-16GB\": {\"memory_gib\": 2}, "));
  const auto result = w.run(predict);
  CHECK(result.status == 1);
  CHECK(result.errors.starts_with("hetsched-predict: the plan does not fit: stage 0 needs "));
  CHECK(result.errors.find("of the 2 GiB of V100-SXM2-16GB") != std::string::npos);
  for (const char* text : {"iteration", "optimizer step", "in flight", "v 1x4 [0-3]", "costs of the tile model"})
    CHECK(result.output.find(text) != std::string::npos);
  CHECK(nlohmann::json::parse(w.run(predict + "--json").output).at("fits") == false);
}

TEST_CASE("bad input and usage: status 2, one line that names the place, no output") {
  const workplace w;
  fill(w);
  w.put("ops.csv", "op,batch,m,n,k,dtype\ngemm,1,8,8,8,fp16\ngemm,1,8,8,8,fp12\n");
  struct row {
    std::string line, from, to, part;
  };
  const row rows[] = {
      {"hetsched-predict", "", "", "give either --operators"},
      {"hetsched-predict --operators ops.csv", "", "", "needs --device"},
      {"hetsched-predict --operators ops.csv --device A1O0-SXM4-40GB", "", "", "did you mean \"A100-SXM4-40GB\""},
      {"hetsched-predict --operators ops.csv --device h100", "", "",
       "did you mean \"H100-PCIe-80GB\" or \"H100-NVL-94GB\" or \"H100-SXM5-80GB\"?"},
      {"hetsched-predict --operators ops.csv --device T4 --strict --out times.csv", "", "",
       "ops.csv: line 3: column dtype: found \"fp12\""},
      {"hetsched-predict --operators none.csv --device T4", "", "", "none.csv: cannot be opened"},
      {"hetsched-predict --plan plan.json --model model.json", "", "", "needs --cluster"},
      {predict + "--device T4", "", "", "--device excludes"},
      {"hetsched-predict --operators ops.csv --device T4 --zero 3", "", "", "--device excludes --zero"},
      {predict + "--cost tile --profile p.json", "", "", "excludes"},
      {predict + "--zero 1 --profile p.json", "", "", "excludes"},
      {predict + "--recompute full --profile p.json", "", "", "excludes"},
      {predict + "--granularity block", "", "", "plan.json: /pipelines/0/stages/1/layers/1: found 37, expected 13"},
      {"hetsched-plan --cluster cluster.json --model layers.json --global-batch 4 --cost tile --out p.json", "", "",
       "--cost: tile needs a transformer"},
      {predict, "\"subcluster\": \"v\"", "\"subcluster\": \"w\"",
       "/pipelines/0/stages/0/devices/0/subcluster: cluster.json has no"},
      {predict, "\"subcluster\": \"a\"", "\"subcluster\": \"o\"", "/pipelines/0/stages/1/devices/0/devices_per_node: found 2"},
      {predict, "\"subcluster\": \"a\"", "\"subcluster\": \"v\"", "device 2 of v belongs to stage 0 already"},
      {predict, "\"first_device\": 2", "\"first_device\": 3", "/stages/1/devices/0/first_device: found 3"},
      {predict, "\"data\": 1, \"context\": 1, \"tensor\": 4", "\"data\": 4, \"context\": 1, \"tensor\": 1",
       "plan.json: /pipelines/0/microbatch_size: found 2, expected a multiple of the data degree of stage 0, 4"},
      {predict, "\"h1f1b\"", "\"2f2b\"", "plan.json: there is no schedule \"2f2b\""},
      {predict, "\"layers\": [26, 37]", "\"layers\": [27, 37]", "/stages/1/layers"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    CAPTURE(r.to);
    w.put("plan.json", r.from.empty() ? plan_text : replaced(plan_text, r.from, r.to));
    const auto result = w.run(r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  w.put("plan.json", plan_text);
  w.put("cluster.json", replaced(cluster_text, R"({"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100})", ""));
  CHECK(w.run(predict).errors.find("the plan cannot run: stage 1: no link leads from subcluster v") != std::string::npos);
  CHECK(w.files() == before);
}

TEST_CASE("hetsched-predict --sends: ranks that wait for their transfers are slower, one by one no less than together") {
  const workplace w;
  fill(w);
  std::vector<double> seconds;
  for (const std::string sends : {"asynchronous", "grouped", "blocking"}) {
    const auto told = nlohmann::json::parse(w.run(predict + "--json --sends " + sends).output);
    CHECK(told.contains("iteration_with_sends_s") == (sends != "asynchronous"));
    seconds.push_back(told.value("iteration_with_sends_s", told["iteration_s"].get<double>()));
  }
  CHECK(seconds[1] > seconds[0]);
  CHECK(seconds[2] >= seconds[1]);
  CHECK(w.run(predict + "--sends blocking").output.find("with blocking sends an iteration takes ") != std::string::npos);
  // Without the option as the stack does.
  w.put("stack.json", R"({"format": "hetsched/stack", "version": 1, "name": "waiting", "sends": "blocking"})");
  const auto told = [&](const std::string& more) { return nlohmann::json::parse(w.run(predict + "--json " + more).output); };
  const auto waiting = told("--stack stack.json");
  CHECK(waiting["sends"] == "blocking");
  CHECK(waiting["iteration_with_sends_s"] == seconds[2]);
  CHECK(waiting["iteration_s"] == seconds[0]);
  CHECK(told("--stack stack.json --sends grouped")["iteration_with_sends_s"] == seconds[1]);
  CHECK(!told("--stack stack.json --sends asynchronous").contains("sends"));
  CHECK(!told("").contains("sends"));
}

TEST_CASE("--cost hexiscale: plans by the formulas of HexiScale's paper, which predict prices again") {
  const workplace w;
  fill(w);
  const auto found = w.run(
      "hetsched-plan --cluster cluster.json --model model.json --global-batch 16 --microbatch-size 2 "
      "--planner hexiscale --cost hexiscale --out found.json");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  const auto p = read_plan(w.path("found.json")).plan;
  CHECK(p.setting.costs == "hexiscale");
  CHECK_FALSE(p.setting.stack);
  for (const auto& line : p.pipelines) {
    CHECK(line.stages.back().layers.last == 12);  // blocks alone
    for (const auto& s : line.stages) {
      CHECK(s.recompute == recomputation::full);
      // App. A: a forward is a quarter of 24 b s h^2 (1 + s / (6 h)) x 4 operations, spread over the group, and of tensor
      // parallelism a third of what the rest takes.
      const auto& device =
          read_cluster(w.path("cluster.json")).subclusters.at(static_cast<std::size_t>(s.devices[0].mesh.subcluster)).device;
      const double h = 1024, t = 1024, b = line.microbatch_size;
      const double forward_s =
          24 * b * t * h * h * (1 + t / (6 * h)) / device.flops(precision::fp16) / s.degrees.tensor * s.layers.size();
      if (s.degrees.tensor == 1) CHECK(s.cost.forward_s == doctest::Approx(forward_s));
      CHECK(s.cost.forward_s >= forward_s * (1 - 1e-9));
    }
  }
  const auto told = w.run("hetsched-predict --cluster cluster.json --model model.json --plan found.json --json");
  REQUIRE(told.status == 0);
  CHECK(nlohmann::json::parse(told.output)["iteration_s"].get<double>() == doctest::Approx(p.predicted.iteration_s));
  const auto refused = [&](const std::string& options, const std::string& why) {
    const auto r = w.run("hetsched-plan --cluster cluster.json --global-batch 16 --cost hexiscale --model " + options);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(why) != std::string::npos);
  };
  refused("layers.json", "needs a transformer");
  refused("model.json --stack megatron", "do not go with it");
  refused("model.json --for megatron", "leave out embedding and head");
}
