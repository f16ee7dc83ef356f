// SPDX-License-Identifier: Apache-2.0
// hetsched-compare as a user calls it.
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "workplace.hpp"

using hetsched::test::workplace;

namespace {

const std::string cluster_text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
  {"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
  {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
  "links": [{"between": ["v", "a"], "gbit_per_s": 10, "latency_us": 100}]})";
const std::string model_text =
    R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 8, "hidden": 512, "heads": 8, "vocab": 5000, "sequence": 256, "dtype": "fp16"}})";
const std::string input = " --cluster c.json --model m.json --global-batch 16 --microbatch-size 2";

}  // namespace

TEST_CASE("hetsched-compare: each planner's plan is the one that hetsched-plan makes") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("m.json", model_text);
  const auto run = w.run("hetsched-compare --json --report r.html" + input);
  REQUIRE(run.status == 0);
  const auto result = nlohmann::json::parse(run.output);
  double best = 1e300;
  std::string name;
  CHECK(result["planners"].size() >= 5);
  for (const auto& row : result["planners"]) {
    const std::string planner = row["planner"];
    CAPTURE(planner);
    const auto plan = w.run("hetsched-plan --out p.json --planner " + planner + input);
    CHECK((plan.status == 0) == row.contains("iteration_s"));
    if (plan.status != 0) continue;
    const auto made = nlohmann::json::parse(w.get("p.json"));
    const double seconds = made["predicted"]["iteration_s"];
    CHECK(row["iteration_s"].get<double>() == doctest::Approx(seconds));
    int devices = 0;
    for (const auto& line : made["pipelines"])
      for (const auto& stage : line["stages"])
        for (const auto& group : stage["devices"]) devices += group["nodes"].get<int>() * group["devices_per_node"].get<int>();
    CHECK(row["devices_used"] == devices);
    CHECK(row["pipelines"] == made["pipelines"].size());
    CHECK(row["search_s"].get<double>() >= 0);
    if (seconds < best) {
      best = seconds;
      name = planner;
    }
  }
  CHECK(result["best"] == name);
  const auto page = w.get("r.html");
  CHECK(page.find("<svg") != std::string::npos);
  CHECK(page.find("hexiscale") != std::string::npos);
}

TEST_CASE("hetsched-compare: those that are named, in that order, and a reason where there is no plan") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("m.json", model_text);
  const auto run = w.run("hetsched-compare --planners placement,interop_dp" + input);
  REQUIRE(run.status == 0);
  CHECK(run.output.find("\nplacement") < run.output.find("\ninterop_dp"));
  CHECK(run.output.find("hexiscale") == std::string::npos);
  w.put(
      "m.json",
      R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 80, "hidden": 16384, "heads": 64, "vocab": 50000, "sequence": 256, "dtype": "fp16"}})");
  const auto none = w.run("hetsched-compare --report r.html --planners interop_dp" + input);
  CHECK(none.status == 1);
  CHECK(none.output == "");
  CHECK(none.errors.find("no planner has a plan") != std::string::npos);
  CHECK(none.errors.find("interop_dp: ") != std::string::npos);
  CHECK(w.files().count("r.html") == 0);
  for (const char* wrong : {"--planners interop", "--planners interop_dp,interop_dp"}) {
    const auto refused = w.run(std::string("hetsched-compare ") + wrong + input);
    CHECK(refused.status == 2);
    CHECK(refused.errors.find("--planners: ") != std::string::npos);
  }
}
