// SPDX-License-Identifier: Apache-2.0
// A planner of one's own: one function and its line in the table, and it is in --planner, in the plan and in the report.
// Compiled by itself: it brings a table of planners.
#include <cstdio>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <plan/command.hpp>

#include "workplace.hpp"

namespace {

using namespace hetsched;

// The best of 200 random plans: stages of one device each on the first devices of every subcluster, cut anywhere.
outcome<plan> random_plans(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                           const hetsched::planner_choice& given) {
  validate(hardware, problem);
  random_source random(given.seed);
  std::optional<plan> best;
  constexpr int rounds = 200;
  const int layers = costs.layer_count();
  for (int round = 0; round < rounds; ++round) {
    if (best && problem.progress && !problem.progress({round, "plans", best->predicted.iteration_s, 0})) break;
    plan p{.planner = "random",
           .pipelines = {{.microbatches = problem.microbatches, .microbatch_size = problem.microbatch_size}}};
    auto& line = p.pipelines.front();
    line.schedule.name = "1f1b";
    int first = 0;
    for (int k = 0; k < static_cast<int>(hardware.subclusters.size()) && first < layers; ++k)
      for (int d = 0; d < hardware.subclusters[static_cast<std::size_t>(k)].device_count() && first < layers; ++d) {
        const int last = std::min(layers, first + random.integer(1, layers / 2));
        line.stages.push_back({.layers = {first, last}, .devices = {{{.subcluster = k}, d}}});
        first = last;
      }
    line.stages.back().layers.last = layers;
    auto judged =
        evaluate(hardware, costs, std::move(p), {.flops_per_sample = problem.flops_per_sample, .arithmetic = problem.arithmetic});
    if (!judged || !judged->shortage.empty()) continue;
    if (!best || judged->plan.predicted.iteration_s < best->predicted.iteration_s) best = std::move(judged->plan);
  }
  if (!best) return refusal{refusal::kind::infeasible, "none of the random plans fits in memory"};
  const double found = best->predicted.iteration_s;
  best->evidence =
      search_evidence{.objective_value = found, .objective_bound = 0, .complete = false, .work = {{"plans", rounds}}};
  return *std::move(best);
}

int run_planner(std::vector<std::string> line) {
  const hetsched::planner_entry table[] = {hetsched::planners().front(),
                                           {"random", "the best of many random plans", random_plans}};
  std::vector<char*> arguments;
  for (auto& word : line) arguments.push_back(word.data());
  return command::plan_main(static_cast<int>(arguments.size()), arguments.data(), table);
}

}  // namespace

TEST_CASE("a new planner is a function and a line in the table") {
  const test::workplace w;
  w.put("cluster.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "v", "device": "V100-SXM2-32GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}},
    {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
    "links": [{"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100}]})");
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 12, "hidden": 1024, "heads": 16,
    "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})");
  const auto line = [&](const std::string& planner) {
    return std::vector<std::string>{"hetsched-plan",
                                    "--cluster",
                                    w.path("cluster.json"),
                                    "--model",
                                    w.path("model.json"),
                                    "--global-batch",
                                    "32",
                                    "--microbatch-size",
                                    "2",
                                    "--planner",
                                    planner,
                                    "--out",
                                    w.path(planner + ".json"),
                                    "--report",
                                    w.path(planner + ".html"),
                                    "--trace",
                                    w.path(planner + ".trace.json")};
  };
  REQUIRE(run_planner(line("random")) == 0);
  REQUIRE(run_planner(line("parallel_pipelines")) == 0);
  const auto random = parse_plan(w.get("random.json"), "random.json").plan;
  const auto exact = parse_plan(w.get("parallel_pipelines.json"), "parallel_pipelines.json").plan;
  CHECK(random.planner == "random");
  CHECK(random.evidence.value().work == std::vector<std::pair<std::string, std::int64_t>>{{"plans", 200}});
  CHECK(exact.planner == "parallel_pipelines");
  CHECK(exact.predicted.iteration_s <= random.predicted.iteration_s);
  CHECK(w.get("random.html").find("planner random") != std::string::npos);
  CHECK(w.get("random.html").find("not proven") != std::string::npos);
  CHECK(run_planner(line("magic")) == 2);
}
