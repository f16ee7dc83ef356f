// SPDX-License-Identifier: Apache-2.0
// Money: --objective cost, --deadline and --frontier as a user calls them.
#include <cstddef>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string model_text =
    R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 8, "hidden": 1024, "heads": 16,
  "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})";

/// `prices`: what stands under "devices".
std::string cluster_text(const std::string& prices) {
  return R"({"format": "hetsched/cluster", "version": 1, "devices": {)" + prices + R"(}, "subclusters": [
    {"name": "v", "device": "V100-SXM2-16GB", "nodes": 2, "devices_per_node": 2, "intra_node": {"gbit_per_s": 1200, "latency_us": 5},
     "inter_node": {"gbit_per_s": 100, "latency_us": 10}},
    {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
    "links": [{"between": ["v", "a"], "gbit_per_s": 25, "latency_us": 100}]})";
}
const std::string both =
    R"("V100-SXM2-16GB": {"price_per_hour": 0.9}, "A100-SXM4-40GB": {"price_per_hour": 3.2, "board_watts": 400,
  "generation": "Ampere"})";
const std::string command = "hetsched-plan --cluster cluster.json --model model.json --global-batch 16 ";

void fill(const workplace& w) {
  w.put("model.json", model_text);
  w.put("cluster.json", cluster_text(both));
  w.put("half.json", cluster_text(R"("V100-SXM2-16GB": {"price_per_hour": 0.9})"));
}

plan planned(const workplace& w, const std::string& arguments) {
  const auto said = w.run(command + arguments + " --out plan.json");
  CAPTURE(arguments);
  CAPTURE(said.errors);
  REQUIRE(said.status == 0);
  return parse_plan(w.get("plan.json"), "plan.json").plan;
}

double money_per_sample(const plan& p) {
  double per_hour = 0;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices) per_hour += g.mesh.device_count() * (g.mesh.subcluster == 0 ? 0.9 : 3.2);
  return p.predicted.iteration_s * per_hour / 3600 / 16;
}

}  // namespace

TEST_CASE("the cheapest plan, the cheapest within a deadline, and none that is fast enough") {
  const workplace w;
  fill(w);
  const auto fast = planned(w, "");
  CHECK(fast.objective == plan_objective::iteration);
  const auto cheap = planned(w, "--objective cost");
  CHECK(cheap.objective == plan_objective::cost);
  for (const auto* p : {&fast, &cheap}) CHECK(p->predicted.cost_per_sample.value() == doctest::Approx(money_per_sample(*p)));
  CHECK(cheap.evidence.value().objective_value == *cheap.predicted.cost_per_sample);
  CHECK(cheap.evidence->objective_bound <= cheap.evidence->objective_value);
  CHECK(*cheap.predicted.cost_per_sample < *fast.predicted.cost_per_sample * 0.999);
  CHECK(cheap.predicted.iteration_s > fast.predicted.iteration_s * 1.001);

  // Any command that judges the plan says the same.
  const auto judged = w.run("hetsched-predict --cluster cluster.json --model model.json --plan plan.json --json");
  REQUIRE(judged.status == 0);
  CHECK(nlohmann::json::parse(judged.output).at("cost_per_sample").get<double>() ==
        doctest::Approx(*cheap.predicted.cost_per_sample));

  const double deadline = (fast.predicted.iteration_s + cheap.predicted.iteration_s) / 2;
  const auto between = planned(w, "--objective cost --deadline " + std::to_string(deadline));
  CHECK(between.predicted.iteration_s <= deadline);
  CHECK(*between.predicted.cost_per_sample <= *fast.predicted.cost_per_sample);
  CHECK(*between.predicted.cost_per_sample >= *cheap.predicted.cost_per_sample);

  const auto late =
      w.run(command + "--objective cost --deadline " + std::to_string(fast.predicted.iteration_s / 3) + " --out late.json");
  CHECK(late.status == 1);
  CHECK(late.errors.find("deadline") != std::string::npos);
  CHECK(w.files().count("late.json") == 0);
}

TEST_CASE("nodes that are rented whole: money counts the nodes in use, and is told per iteration and per million tokens") {
  const workplace w;
  fill(w);
  auto text = cluster_text(R"("V100-SXM2-16GB": {"price_per_hour": 100})");  // a node's price counts in its place
  text.insert(text.find("\"nodes\": 2"), "\"price_per_node_hour\": 2.5, ");
  text.insert(text.find("\"nodes\": 1"), "\"price_per_node_hour\": 9, ");
  w.put("cluster.json", text);
  const auto said = w.run(command + "--objective cost --out plan.json");
  CAPTURE(said.output);
  REQUIRE(said.status == 0);
  const auto p = parse_plan(w.get("plan.json"), "plan.json").plan;
  std::set<std::pair<int, int>> nodes;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices)
        for (int d = g.first_device; d < g.first_device + g.mesh.device_count(); ++d)
          nodes.insert({g.mesh.subcluster, d / (g.mesh.subcluster == 0 ? 2 : 4)});
  double per_hour = 0;
  for (const auto& [subcluster, ignored] : nodes) per_hour += subcluster == 0 ? 2.5 : 9;
  const double per_iteration = p.predicted.iteration_s * per_hour / 3600;
  CHECK(*p.predicted.cost_per_sample == doctest::Approx(per_iteration / 16));
  CHECK(said.output.find(format_money(per_iteration)) != std::string::npos);
  CHECK(said.output.find("per iteration, " + format_money(per_iteration / 16 / 1024 * 1e6) +
                         " per million tokens, for what is in use") != std::string::npos);
  CHECK(said.output.find(" per sample, for what is in use") == std::string::npos);
  const auto judged = w.run("hetsched-predict --cluster cluster.json --model model.json --plan plan.json");
  REQUIRE(judged.status == 0);
  CHECK(judged.output.find("per iteration, for what is in use") != std::string::npos);
  CHECK(judged.output.find(format_money(per_iteration / 16 / 1024 * 1e6)) != std::string::npos);
}

TEST_CASE("no row of a frontier is both slower and dearer than another, over all microbatch sizes") {
  const workplace w;
  fill(w);
  for (const char* more : {"", "--objective cost "}) {
    CAPTURE(more);
    const auto said = w.run(command + more + "--planner parallel_pipelines --frontier f.svg --json");
    CAPTURE(said.errors);
    REQUIRE(said.status == 0);
    const auto rows = nlohmann::json::parse(said.output).at("frontier");
    CHECK(rows.size() >= 2);
    for (const auto& a : rows) {
      CHECK(a.at("cost_per_iteration").get<double>() == doctest::Approx(16 * a.at("cost_per_sample").get<double>()));
      for (const auto& b : rows)
        if (a != b)
          CHECK_FALSE((a["iteration_s"].get<double>() >= b["iteration_s"].get<double>() &&
                       a["cost_per_iteration"].get<double>() >= b["cost_per_iteration"].get<double>()));
    }
  }
}

TEST_CASE("the frontier: a table that falls, a picture with as many points, and the chosen plan on it") {
  const workplace w;
  fill(w);
  const auto said = w.run(command + "--microbatch-size 2 --objective cost --frontier frontier.svg --out plan.json");
  CAPTURE(said.errors);
  CAPTURE(said.output);
  REQUIRE(said.status == 0);
  std::istringstream lines(said.output);
  std::string line;
  std::getline(lines, line);
  CHECK(line.find("iteration") != std::string::npos);
  std::vector<double> costs;
  int chosen = 0;
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream cells(line);
    double seconds = 0, cost = 0;
    std::string unit;
    cells >> seconds >> unit >> cost;
    if (!costs.empty()) CHECK(cost <= costs.back());
    costs.push_back(cost);
    chosen += line.back() == '*';
  }
  CHECK(costs.size() >= 2);
  CHECK(chosen == 1);
  CHECK(line.empty());
  const auto picture = w.get("frontier.svg");
  std::size_t points = 0;
  for (auto at = picture.find("<circle"); at != std::string::npos; at = picture.find("<circle", at + 1)) ++points;
  CHECK(points + 1 == costs.size());  // the chosen one is a diamond
  CHECK(picture.find("class=\"chosen\"") != std::string::npos);
}

TEST_CASE("what money needs is asked for") {
  const workplace w;
  fill(w);
  struct row {
    std::string line;
    const char* part;
  };
  const std::string half = "hetsched-plan --cluster half.json --model model.json --global-batch 16 --out plan.json ";
  const row rows[] = {
      {half + "--objective cost", "device A100-SXM4-40GB of subcluster a has no price_per_hour"},
      {half + "--frontier f.svg", "device A100-SXM4-40GB of subcluster a has no price_per_hour"},
      {command + "--out plan.json --deadline 3", "--deadline: needs --objective cost"},
      {command + "--out plan.json --objective cost --deadline 0", "--deadline"},
      {command + "--out plan.json --objective cost --deadline nan", "deadline"},
      {command + "--out plan.json --objective money", "--objective"},
      {command + "--out plan.json --objective cost --planner interop_dp", "interop_dp plans for the iteration only"},
      {command + "--out plan.json --planner hexiscale --frontier f.svg", "--frontier: planner hexiscale does not know money"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run(r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
  }
  CHECK(w.files() == before);
  // Without money no price is needed.
  CHECK(w.run(half).status == 0);
  CHECK(!parse_plan(w.get("plan.json"), "plan.json").plan.predicted.cost_per_sample);
}
