// SPDX-License-Identifier: Apache-2.0
// "measured" and "speed" of devices in cluster.json, through the commands.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <doctest/doctest.h>

#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/io.hpp>

#include "workplace.hpp"

namespace {

using hetsched::test::workplace;
using json = nlohmann::json;

const std::string model = R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 8, "hidden": 2048, "heads": 16,
  "vocab": 32000, "sequence": 1024, "dtype": "bf16"}})";

std::string cluster(const std::string& device) {
  return R"({"format": "hetsched/cluster", "version": 1, "devices": {"A100-SXM4-40GB": {)" + device +
         R"(}}, "subclusters": [
    {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2,
     "intra_node": {"gbit_per_s": 2400, "latency_us": 5}},
    {"name": "v", "device": "V100-SXM2-32GB", "nodes": 1, "devices_per_node": 2,
     "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}], "links": [{"between": ["a", "v"], "gbit_per_s": 100, "latency_us": 20}]})";
}

struct place : workplace {
  place() { put("m.json", model); }
  /// "iteration_s" of the best plan on both kinds, and the plan.
  [[nodiscard]] json planned(const std::string& device, const std::string& more = "") const {
    put("c.json", cluster(device));
    const auto r =
        run("hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 4 --planner interop_dp "
            "--granularity block --json --out p.json " +
            more);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return json::parse(get("p.json"));
  }
};

int layers_of_a(const json& plan) {
  int count = 0;
  for (const auto& s : plan["pipelines"][0]["stages"])
    if (s["devices"][0]["subcluster"] == "a") count += s["layers"][1].get<int>() - s["layers"][0].get<int>() + 1;
  return count;
}

}  // namespace

TEST_CASE("a device that was seen to be slow gets less work; the plan and the summary say so, and prediction agrees") {
  const place w;
  const std::string slow =
      R"("measured": [{"model": "m.json", "degrees": {"tensor": 2}, "microbatch_size": 4, "tokens_per_s": 3000}])";
  const auto plain = w.planned(""), anchored = w.planned(slow);
  CHECK_FALSE(plain["setting"].contains("anchored"));
  const double speed = anchored["setting"]["anchored"]["a"].get<double>();
  CHECK(speed < 0.5);
  CHECK_FALSE(anchored["setting"]["anchored"].contains("v"));
  CHECK(anchored["predicted"]["iteration_s"].get<double>() > plain["predicted"]["iteration_s"].get<double>());
  CHECK(layers_of_a(anchored) < layers_of_a(plain));
  const auto again = w.run("hetsched-predict --cluster c.json --model m.json --plan p.json --json");
  REQUIRE(again.status == 0);
  CHECK(json::parse(again.output)["iteration_s"].get<double>() ==
        doctest::Approx(anchored["predicted"]["iteration_s"].get<double>()).epsilon(1e-9));
  const auto said = w.run(
      "hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 4 --planner interop_dp --report r.html");
  CHECK(w.get("r.html").find("anchored: a x 0.") != std::string::npos);
  CHECK(said.output.find("from datasheets; anchored: a x 0.") != std::string::npos);
  CHECK(said.errors.find("does not agree") == std::string::npos);
  const std::string at = R"({"model": "m.json", "degrees": {"tensor": 2}, "microbatch_size": 4, "tokens_per_s": )";
  const auto complaint = [&](const std::string& second) {
    static_cast<void>(w.planned("\"measured\": [" + at + "3000}, " + at + second + "}]"));
    return w.run("hetsched-predict --cluster c.json --model m.json --plan p.json").errors;
  };
  CHECK(complaint("3200").find("does not agree") == std::string::npos);
  const auto unlike = complaint("4320");
  CHECK(unlike.find("what was \"measured\" of A100") != std::string::npos);
  CHECK(unlike.find("does not agree: as anchored, times are -1") != std::string::npos);
  CHECK(unlike.find(" % off /measured/0, +") != std::string::npos);
  CHECK(unlike.find(" % off /measured/1; ") != std::string::npos);
  const auto like = hetsched::cases_text(hetsched::cases_like(hetsched::cost_basis::datasheets, "hetsched"));  // of v
  CHECK(said.output.find("; " + like + "\n") != std::string::npos);
  CHECK(w.get("r.html").find(like) != std::string::npos);

  // Products and attention apart, and the rest by what the whole model says.
  const auto apart = w.planned(
      R"("measured": [{"model": "m.json", "operators": "products", "layer_s": 0.004},
        {"model": "m.json", "operators": "attention", "layer_s": 0.0005}])",
      "--report r.html");
  const auto own = apart["setting"]["anchored"]["a"];
  CHECK(own["others"] == 1);
  CHECK(own["products"] != own["attention"]);
  CHECK(w.get("r.html").find("anchored: a (products x ") != std::string::npos);
  CHECK(hetsched::to_json(hetsched::read_plan(w.path("p.json")).plan, hetsched::read_cluster(w.path("c.json"))) ==
        w.get("p.json"));
  CHECK(w.planned("\"speed\": " + own.dump())["predicted"]["iteration_s"] == apart["predicted"]["iteration_s"]);

  // A factor that is known does the same.
  char known[64];
  std::snprintf(known, sizeof known, "\"speed\": %.17g", speed);
  CHECK(w.planned(known)["predicted"]["iteration_s"] == anchored["predicted"]["iteration_s"]);
}

TEST_CASE("speed counts in inference and for operators") {
  const place w;
  const auto token_s = [&](const std::string& device) {
    w.put("c.json", cluster(device));
    const auto r = w.run("hetsched-plan --cluster c.json --model m.json --objective latency --out p.json");
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return json::parse(w.get("p.json"))["predicted"]["latency_s"].get<double>();
  };
  CHECK(token_s("\"speed\": 0.25") > 1.05 * token_s(""));
  w.put("o.csv", "op,batch,m,n,k,dtype\ngemm,1,4096,4096,4096,bf16\n");
  const auto product_ms = [&](const std::string& more) {
    w.put("d.json", R"({"format": "hetsched/device", "version": 1, "name": "mine", "like": "A100-SXM4-40GB")" + more + "}");
    const auto r = w.run("hetsched-predict --device d.json --operators o.csv");
    REQUIRE(r.status == 0);
    return std::stod(r.output.substr(r.output.rfind(',') + 1));
  };
  CHECK(product_ms(", \"speed\": 0.5") == doctest::Approx(2 * product_ms("")).epsilon(1e-4));
}

TEST_CASE("what would be lost or not used is refused") {
  const place w;
  const std::string search = "hetsched-plan --cluster c.json --model m.json --global-batch 16 ";
  const auto complaint = [&](const std::string& device, const std::string& more) {
    w.put("c.json", cluster(device));
    const auto r = w.run(search + more);
    CHECK(r.status == 2);
    return r.errors;
  };
  // The anchor's model is an input, too.
  w.put("other.json", model);
  const std::string other = R"("measured": [{"model": "other.json", "tokens_per_s": 3000}])";
  CHECK(complaint(other, "--out other.json").find("other.json") != std::string::npos);
  CHECK(w.get("other.json") == model);
  CHECK(complaint(R"("speed": 0.5, "measured": [{"model": "m.json", "tokens_per_s": 3000}])", "")
            .find("/devices/A100-SXM4-40GB/speed") != std::string::npos);
  CHECK(
      complaint(R"("measured": [{"model": "m.json", "operators": "products", "tokens_per_s": 3000}])", "").find("\"layer_s\"") !=
      std::string::npos);
  CHECK(complaint(R"("speed": {"products": 0.5})", "--cost analytic").find("say one \"speed\"") != std::string::npos);
  w.put("fp32.json",
        R"({"model_type": "gpt2", "n_layer": 8, "n_embd": 1024, "n_head": 16, "vocab_size": 50257, "n_positions": 1024,
    "torch_dtype": "float32"})");
  CHECK(complaint(R"("measured": [{"model": "fp32.json", "tokens_per_s": 3000}])", "").find("\"dtype\"") != std::string::npos);
  // Where a device.json has one, nobody would look at it.
  w.put("d.json", R"({"format": "hetsched/device", "version": 1, "like": "T4", "measured": []})");
  w.put("o.csv", "op,batch,m,n,k,dtype\ngemm,1,64,64,64,fp16\n");
  const auto r = w.run("hetsched-predict --device d.json --operators o.csv");
  CHECK(r.status == 2);
  CHECK(r.errors.find("/measured: stands in a cluster.json") != std::string::npos);
}

TEST_CASE("stages of unlike devices by the default planner, over all microbatch sizes") {
  const place w;
  w.put("c.json", cluster(""));
  const auto r = w.run("hetsched-plan --cluster c.json --model m.json --global-batch 4 --mixed-stages --out p.json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  const auto plan = json::parse(w.get("p.json"));
  const auto again = w.run("hetsched-predict --cluster c.json --model m.json --plan p.json --json");
  REQUIRE(again.status == 0);
  CHECK(json::parse(again.output)["iteration_s"].get<double>() ==
        doctest::Approx(plan["predicted"]["iteration_s"].get<double>()).epsilon(1e-9));
}

TEST_CASE(
    "--device-bias: what it says that the plan loses is so by other commands, and it loses no more than the plan as priced") {
  const place w;
  const auto speeds = [](double a, double v) {
    return "\"speed\": " + std::to_string(a) + "}, \"V100-SXM2-32GB\": {\"speed\": " + std::to_string(v);
  };
  const auto plain = w.planned(speeds(1, 1));
  w.put("plain.json", w.get("p.json"));
  const auto said = json::parse(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 4 "
                                      "--planner interop_dp --granularity block --device-bias 0.2 --json --out bias.json")
                                    .output)["device_bias"];
  CHECK(said["cases"] == 9);
  CHECK(said["measure"].size() == 2);
  CHECK(said["measure"][0]["gain"] >= said["measure"][1]["gain"]);
  const auto at = [&](const std::string& file) {
    return json::parse(w.run("hetsched-predict --cluster c.json --model m.json --json --plan " + file).output)["iteration_s"]
        .get<double>();
  };
  double loss = 0, plain_loss = 0, gain = 0;
  for (const auto& [a, v] : {std::pair{0.8, 1.2}, {1.2, 0.8}, {0.8, 1.0}, {1.2, 1.0}, {1.0, 0.8}, {1.0, 1.2}}) {
    const double best = w.planned(speeds(a, v))["predicted"]["iteration_s"].get<double>(), own = at("bias.json");
    loss = std::max(loss, own / best - 1);
    plain_loss = std::max(plain_loss, at("plain.json") / best - 1);
    if (a == 1 || v == 1) gain = std::max(gain, 1 - best / own);
  }
  CHECK(loss > 0);
  CHECK(loss <= said["worst_loss"].get<double>() + 1e-9);
  CHECK(plain_loss <= said["fastest_loss"].get<double>() + 1e-9);
  CHECK(loss <= plain_loss + 1e-9);
  CHECK(gain <= said["measure"][0]["gain"].get<double>() + 1e-9);
  CHECK(plain["predicted"]["iteration_s"].get<double>() <=
        json::parse(w.get("bias.json"))["predicted"]["iteration_s"].get<double>() * (1 + 1e-9));
  for (const char* wrong : {"--device-bias 0", "--device-bias 1", "--device-bias 0.2 --quantile 0.9 --jitter 0.1",
                            "--device-bias 0.2 --objective cost", "--device-bias 0.2 --objective latency"})
    CHECK(w.run(std::string("hetsched-plan --cluster c.json --model m.json --global-batch 16 ") + wrong).status == 2);
}
