// SPDX-License-Identifier: Apache-2.0
// hetsched-compare as a user calls it.
#include <cstddef>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

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

TEST_CASE("hetsched-compare: plans whose transfers hold ranks up stand beside those whose transfers do not") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("m.json", model_text);
  // As the stack sends, whatever the warm-ups; ranks of several virtual stages post transfers ahead, and nothing waits for them.
  const auto waits = w.run("hetsched-compare --stack megatron --planners hetauto,interop_dp" + input);
  CHECK(w.run("hetsched-compare --stack megatron --planners interop_dp --schedule interleaved_1f1b" + input)
            .output.find("with sends") == std::string::npos);
  REQUIRE(waits.status == 0);
  CHECK(waits.output.find("iteration  with sends  times best") != std::string::npos);
  const auto row = [&](const std::string& planner) {
    std::istringstream words(waits.output.substr(waits.output.find('\n' + planner) + 1));
    std::vector<std::string> found{std::istream_iterator<std::string>(words), {}};
    return found;
  };
  CHECK(row("hetauto").at(3) != "-");
  CHECK(row("interop_dp").at(3) != "-");
  // The best one is so with its sends. The fastest without them, which one pipeline over the slow link is, is not.
  const std::string all = " --use-all-devices --sends blocking --planners interop_dp,uniform,parallel_pipelines" + input;
  const auto told = nlohmann::json::parse(w.run("hetsched-compare --json" + all).output);
  const auto &line = told["planners"][0], &copies = told["planners"][1];
  CHECK(line["iteration_s"].get<double>() < copies["iteration_s"].get<double>());
  const double line_s = line["iteration_with_sends_s"], copies_s = copies["iteration_with_sends_s"];
  CHECK(line_s > 1.2 * copies_s);
  CHECK(told["best"] == "uniform");
  // The default planner also looks at plans that its search passes over.
  CHECK(told["planners"][2]["iteration_with_sends_s"].get<double>() < 0.95 * line_s);
  CHECK(line["gap"].get<double>() == doctest::Approx(line_s / line["lower_bound_s"].get<double>() - 1));
  const auto table = w.run("hetsched-compare" + all).output;
  std::istringstream words(table.substr(table.find("\ninterop_dp")));
  const std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
  CHECK(std::stod(cells.at(5)) == doctest::Approx(line_s / copies_s).epsilon(0.01));
}

TEST_CASE("hetsched-compare: baselines are asked by name only, use all devices and hand in what hetsched-predict says of them") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("m.json", model_text);
  const auto usual = w.run("hetsched-compare" + input);
  REQUIRE(usual.status == 0);
  CHECK(usual.output.find("uniform") == std::string::npos);
  CHECK(usual.output.find("with sends") == std::string::npos);
  const auto run =
      w.run("hetsched-compare --json --sends blocking --planners uniform,amp,metis_like,alpa_like,parallel_pipelines" + input);
  REQUIRE(run.status == 0);
  const auto result = nlohmann::json::parse(run.output);
  REQUIRE(result["planners"].size() == 5);
  CHECK(result["best"] == "parallel_pipelines");
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& row = result["planners"][i];
    const std::string planner = row["planner"];
    CAPTURE(planner);
    CHECK(row["devices_used"] == 4);
    REQUIRE(w.run("hetsched-plan --sends blocking --out p.json --planner " + planner + input).status == 0);
    const auto again = w.run("hetsched-predict --json --sends blocking --cluster c.json --model m.json --plan p.json");
    REQUIRE(again.status == 0);
    for (const auto* key : {"iteration_s", "iteration_with_sends_s"})
      CHECK(nlohmann::json::parse(again.output).at(key) == row.at(key));
    // A schedule that is named is planned for, not given to stages that are cut anew.
    REQUIRE(w.run("hetsched-plan --schedule gpipe --out g.json --planner " + planner + input).status == 0);
    const auto other = nlohmann::json::parse(w.get("g.json"));
    int devices = 0;
    for (const auto& line : other["pipelines"]) {
      CHECK(line["schedule"]["name"] == "gpipe");
      for (const auto& stage : line["stages"])
        devices += stage["devices"][0]["nodes"].get<int>() * stage["devices"][0]["devices_per_node"].get<int>();
    }
    CHECK(devices == 4);
  }
}

TEST_CASE("--search published: of hetauto and hexiscale, and refused where a planner has no such search") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("m.json", model_text);
  for (const char* planner : {"hetauto", "hexiscale"}) {
    CAPTURE(planner);
    const auto own = w.run(std::string("hetsched-plan --json --planner ") + planner + input);
    const auto published = w.run(std::string("hetsched-plan --json --search published --planner ") + planner + input);
    REQUIRE(published.status == 0);
    const auto evidence = [](const auto& run) { return nlohmann::json::parse(run.output)["plan"]["evidence"]; };
    CHECK(evidence(own) != evidence(published));
  }
  const auto refused = w.run("hetsched-plan --search published --planner interop_dp" + input);
  CHECK(refused.status == 2);
  CHECK(refused.errors.find("--search: published is of planners hetauto and hexiscale; this one is interop_dp") !=
        std::string::npos);
  CHECK(w.run("hetsched-plan --search slow --planner hetauto" + input).status == 2);
  const auto both = w.run("hetsched-compare --json --search published --planners hetauto,interop_dp" + input);
  REQUIRE(both.status == 0);
  CHECK(nlohmann::json::parse(both.output)["planners"].size() == 2);
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

TEST_CASE("more subclusters than a planner is made for: the others have their plans, and it has a reason") {
  const workplace w;
  std::string subclusters, links;
  for (int k = 0; k < 11; ++k) {
    const auto name = "h" + std::to_string(k);
    subclusters +=
        (k > 0 ? "," : "") + (R"({"name": ")" + name + R"(", "device": "RTX3090", "nodes": 1, "devices_per_node": 1})");
    for (int other = 0; other < k; ++other)
      links += (links.empty() ? "" : ",") +
               (R"({"between": ["h)" + std::to_string(other) + R"(", ")" + name + R"("], "gbit_per_s": 1, "latency_us": 5000})");
  }
  w.put("c.json",
        R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)" + subclusters + R"(], "links": [)" + links + "]}");
  w.put("m.json", model_text);
  const std::string own = " --cluster c.json --model m.json --global-batch 4 ";
  CHECK(w.run("hetsched-plan --out p.json" + own).status == 0);
  const auto refused = w.run("hetsched-plan --planner hetauto_exact --out q.json" + own);
  CHECK(refused.status == 1);
  CHECK(refused.errors ==
        "hetsched-plan: no plan: hetauto_exact looks at all sets of subclusters, of ten at most; this cluster has 11\n");
  const auto run = w.run("hetsched-compare" + own);
  CAPTURE(run.output);
  CHECK(run.status == 0);
  for (const char* planner : {"\nparallel_pipelines ", "\ninterop_dp ", "\nhexiscale ", "\nhetauto ", "\nplacement "})
    CHECK(run.output.find(planner) != std::string::npos);
  CHECK(run.output.find("\nhetauto_exact: no plan: hetauto_exact looks at all sets of subclusters, of ten at most") !=
        std::string::npos);
}

TEST_CASE("a site without a link: the reason is the missing link") {
  const workplace w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "A", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 3}},
    {"name": "B", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 3}},
    {"name": "C", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 3}}],
    "links": [{"between": ["A", "B"], "gbit_per_s": 10, "latency_us": 1000}]})");
  w.put("m.json", model_text);
  const auto run = w.run("hetsched-plan --use-all-devices --out p.json" + input);
  CHECK(run.status == 1);
  CHECK(run.errors.find("no pipeline uses every device: there is no link between A - C, B - C") != std::string::npos);
}
