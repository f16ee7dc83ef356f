// SPDX-License-Identifier: Apache-2.0
// What hetsched-plan makes for small clusters, hetsched-train runs as it is.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/plan_json.hpp>

#include "../sanitizer_share.hpp"
#include "workplace.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// By nodes and devices per node; the second subcluster's devices are twice as fast.
cluster small_cluster(const std::vector<std::pair<int, int>>& sizes) {
  cluster c;
  for (const auto& [nodes, devices] : sizes) {
    const auto number = std::to_string(c.subclusters.size());
    device d{.name = "device-" + number, .memory_bytes = 16 * gib, .memory_bandwidth = 1e11};
    d.peak_flops[static_cast<std::size_t>(precision::fp32)] = c.subclusters.empty() ? 1e9 : 2e9;
    c.subclusters.push_back({.name = "kind-" + number,
                             .device = d,
                             .nodes = nodes,
                             .devices_per_node = devices,
                             .intra_node = {.latency_s = 1e-6, .bandwidth = gbit_per_s(800)},
                             .inter_node = {.latency_s = 1e-5, .bandwidth = gbit_per_s(100)}});
  }
  if (c.subclusters.size() > 1) c.links.push_back({.a = 0, .b = 1, .link = {.latency_s = 5e-5, .bandwidth = gbit_per_s(100)}});
  return c;
}

std::string model_of(int layers, int heads, int kv_heads = 0) {
  return R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": )" + std::to_string(layers) +
         R"(, "hidden": 32, "heads": )" + std::to_string(heads) +
         (kv_heads > 0 ? ", \"kv_heads\": " + std::to_string(kv_heads) : "") +
         R"(, "vocab": 256, "sequence": 32, "dtype": "fp32"}})";
}

std::vector<double> losses_of(const std::string& csv) {
  std::vector<double> losses;
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) losses.push_back(std::stod(line.substr(line.find(',') + 1)));
  return losses;
}

/// The prediction of plan.json is the plan's own.
void check_predicted(const workplace& w, const plan& p) {
  const auto predicted = w.run("hetsched-predict --cluster cluster.json --model model.json --plan plan.json --out again.json");
  CAPTURE(predicted.errors);
  REQUIRE(predicted.status == 0);
  const auto again = parse_plan(w.get("again.json"), "again.json").plan;
  CHECK(again.predicted.iteration_s == p.predicted.iteration_s);
  CHECK(again.pipelines == p.pipelines);
}

/// Two steps of plan.json have these losses. Returns what the command notes.
std::string check_trained(const workplace& w, const std::vector<double>& wanted) {
  const auto trained = w.run("hetsched-train --model model.json --plan plan.json --steps 2 --losses losses.csv");
  CAPTURE(trained.errors);
  REQUIRE(trained.status == 0);
  const auto found = losses_of(w.get("losses.csv"));
  REQUIRE(found.size() == 2);
  REQUIRE(wanted.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) CHECK(std::abs(found[s] - wanted[s]) <= 1e-5 * wanted[s]);
  return trained.errors;
}

}  // namespace

TEST_CASE("every plan for a small cluster runs as it is, with the losses of one rank") {
  const workplace w;
  w.put("model.json", model_of(3, 4));
  const std::vector<std::vector<std::pair<int, int>>> clusters{{{1, 2}},         {{1, 1}, {1, 2}}, {{1, 2}, {1, 2}},
                                                               {{2, 2}, {1, 2}}, {{1, 4}, {1, 1}}, {{2, 2}, {1, 1}}};
  std::set<std::string> whole;         // samples of a step, whose losses on one rank are known
  std::set<std::pair<int, int>> seen;  // data and tensor degrees
  int moved = 0, runs = 0, several = 0;
  for (const auto& sizes : clusters) {
    w.put("cluster.json", to_json(small_cluster(sizes)));
    for (const char* const batch : {"4 --microbatch-size auto --planner interop_dp", "8 --microbatch-size 2 --planner interop_dp",
                                    "6 --use-all-devices --planner interop_dp", "8"}) {
      if (++runs % sanitizer_share != 0) continue;
      CAPTURE(sizes.front().first);
      CAPTURE(sizes.back().second);
      CAPTURE(batch);
      const auto planned =
          w.run("hetsched-plan --cluster cluster.json --model model.json --out plan.json --global-batch " + std::string(batch));
      CAPTURE(planned.errors);
      REQUIRE(planned.status == 0);
      const auto plan = parse_plan(w.get("plan.json"), "plan.json").plan;
      const auto& line = plan.pipelines.at(0);
      for (const auto& s : line.stages) seen.insert({s.degrees.data, s.degrees.tensor});
      const int microbatches = microbatch_count(plan);
      several += plan.pipelines.size() > 1 ? 1 : 0;
      const auto one = "one-" + std::to_string(microbatches) + "-" + std::to_string(line.microbatch_size) + ".csv";
      if (whole.insert(one).second)
        REQUIRE(w.run("hetsched-train --model model.json --ranks 1 --steps 2 --microbatches " + std::to_string(microbatches) +
                      " --microbatch-size " + std::to_string(line.microbatch_size) + " --losses " + one)
                    .status == 0);
      moved += contains(check_trained(w, losses_of(w.get(one))), "cuts inside blocks") ? 1 : 0;
    }
  }
  if (sanitizer_share > 1) return;  // too few plans were made to have all kinds
  CHECK(moved > 0);
  CHECK(several > 0);
  bool both = false, data = false, tensor = false;
  for (const auto& [d, t] : seen) {
    both = both || (d > 1 && t > 1);
    data = data || (d > 1 && t == 1);
    tensor = tensor || (d == 1 && t > 1);
  }
  CHECK(both);
  CHECK(data);
  CHECK(tensor);
}

TEST_CASE("context degrees are planned on request, predicted and run") {
  const workplace w;
  w.put("model.json", model_of(1, 1));  // one head: no tensor degrees
  w.put("cluster.json", to_json(small_cluster({{1, 4}})));
  // One sample at a time, and three layers: four devices have work only if some share a sequence.
  const std::string asked =
      "hetsched-plan --cluster cluster.json --model model.json --global-batch 4 --microbatch-size 1 --granularity block "
      "--use-all-devices --out plan.json --planner ";
  REQUIRE(w.run("hetsched-train --model model.json --ranks 1 --steps 2 --microbatches 4 --microbatch-size 1 --losses one.csv")
              .status == 0);
  const auto wanted = losses_of(w.get("one.csv"));
  CHECK(w.run(asked + "interop_dp").status == 1);
  CHECK(contains(w.run(asked + "interop_dp --max-context 0").errors, "--max-context"));
  for (const char* const planner : {"interop_dp", "hetauto", "hetauto_exact"}) {
    CAPTURE(planner);
    const auto planned = w.run(asked + planner + " --max-context 4");
    CAPTURE(planned.errors);
    REQUIRE(planned.status == 0);
    const auto plan = parse_plan(w.get("plan.json"), "plan.json").plan;
    int context = 1;
    for (const auto& s : plan.pipelines.at(0).stages) context = std::max(context, s.degrees.context);
    CHECK(context > 1);
    check_predicted(w, plan);
    check_trained(w, wanted);
  }
}

TEST_CASE("expert degrees are planned on request, predicted and run") {
  const workplace w;
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 1, "hidden": 32, "heads": 1,
    "vocab": 256, "sequence": 32, "dtype": "fp32", "experts": 4, "experts_per_token": 2}})");
  // Adding up whole experts' gradients takes longer than sending tokens to them.
  auto hardware = small_cluster({{1, 2}});
  hardware.subclusters[0].intra_node.bandwidth = gbit_per_s(1);
  w.put("cluster.json", to_json(hardware));
  const std::string asked =
      "hetsched-plan --cluster cluster.json --model model.json --global-batch 4 --microbatch-size 4 --granularity block "
      "--zero 0 --out plan.json --planner ";
  REQUIRE(w.run("hetsched-train --model model.json --ranks 1 --steps 2 --microbatches 1 --microbatch-size 4 --losses one.csv")
              .status == 0);
  const auto wanted = losses_of(w.get("one.csv"));
  for (const char* const planner : {"interop_dp", "hetauto", "hetauto_exact"}) {
    CAPTURE(planner);
    const auto planned = w.run(asked + planner + " --max-expert 2");
    CAPTURE(planned.errors);
    REQUIRE(planned.status == 0);
    const auto plan = parse_plan(w.get("plan.json"), "plan.json").plan;
    CHECK(plan.pipelines.at(0).stages.at(0).degrees == degrees{.data = 2, .expert = 2});
    check_predicted(w, plan);
    check_trained(w, wanted);
  }
  // By hand: shares of the samples are run, but have no price; experts' state has nowhere else to go.
  auto text = nlohmann::json::parse(w.get("plan.json"));
  auto& stage = text["pipelines"][0]["stages"][0];
  const std::string predict = "hetsched-predict --cluster cluster.json --model model.json --plan plan.json";
  const auto refused = [](const finished& run, const std::string& why) {
    CAPTURE(run.errors);
    CHECK(run.status == 2);
    CHECK(contains(run.errors, why));
  };
  stage["shares"] = {{"data", {0.75, 0.25}}};
  w.put("plan.json", text.dump());
  refused(w.run(predict), "stage 0: experts on data ranks with different devices or numbers of samples have no price");
  check_trained(w, wanted);
  stage["zero"] = 1;
  stage["shares"] = {{"state", {0.75, 0.25}}};
  w.put("plan.json", text.dump());
  refused(w.run(predict), "stage 0: uneven shares of the state of data ranks that share out experts have no price");
  refused(w.run("hetsched-train --model model.json --plan plan.json --steps 1"),
          "pipeline 0: stage 0 has uneven shares of the state of data ranks that share out experts");
}

TEST_CASE("cuts inside blocks go to the nearest between them") {
  const workplace w;
  w.put("model.json", model_of(2, 4));
  // By sublayer: embedding, attention, norm and mlp of two blocks, head.
  const auto with_cuts = [&](const std::vector<int>& cuts) {
    pipeline_plan line{.microbatches = 2, .microbatch_size = 1, .schedule = {.name = "gpipe"}};
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      line.stages.push_back({.layers = {cuts[i], cuts[i + 1]}, .devices = {{{}, static_cast<int>(i)}}});
      if (i > 0) line.boundaries.push_back({});
    }
    plan p{.pipelines = {line}};
    p.setting.granularity = "sublayer";
    w.put("plan.json", to_json(p, {"local"}));
    return w.run("hetsched-train --model model.json --plan plan.json --steps 1 --out-plan run.json");
  };
  struct row {
    std::vector<int> cuts, wanted;
    bool told;
  };
  for (const auto& [cuts, wanted, told] : std::vector<row>{{{0, 4, 8}, {0, 2, 4}, false},
                                                           {{0, 2, 8}, {0, 1, 4}, true},
                                                           {{0, 3, 8}, {0, 2, 4}, true},
                                                           {{0, 2, 3, 8}, {0, 1, 2, 4}, true},
                                                           {{0, 5, 6, 7, 8}, {0, 1, 2, 3, 4}, true},
                                                           {{0, 8}, {0, 4}, false}}) {
    CAPTURE(cuts);
    const auto r = with_cuts(cuts);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    CHECK(contains(r.errors, "plan.json cuts inside blocks") == told);
    const auto file = parse_plan(w.get("run.json"), "run.json");
    CHECK(file.plan.setting.granularity == "block");
    std::vector<int> found{0};
    for (const auto& s : file.plan.pipelines.at(0).stages) found.push_back(s.layers.last);
    CHECK(found == wanted);
  }
  const auto many = with_cuts({0, 2, 3, 5, 6, 8});
  CHECK(many.status == 2);
  CHECK(contains(many.errors, "plan.json: /pipelines: found 5 stages, but the model has 4 layers to train"));
}

TEST_CASE("uneven shares, recomputation and ZeRO stages of a plan are run, without flags") {
  const workplace w;
  w.put("model.json", model_of(3, 4));
  const auto plan_with = [&](auto change) {
    pipeline_plan line{.microbatches = 3, .microbatch_size = 5, .schedule = {.name = "1f1b"}};
    line.stages.push_back({.layers = {0, 2}, .devices = {{{.devices_per_node = 2}, 0}}, .degrees = {.data = 2}});
    line.stages.push_back({.layers = {2, 5}, .devices = {{{.devices_per_node = 4}, 2}}, .degrees = {.data = 2, .tensor = 2}});
    line.stages[0].shares.data = {0.6, 0.4};
    line.stages[1].shares.data = {0.25, 0.75};
    line.boundaries.push_back({});
    change(line);
    w.put("plan.json", to_json(plan{.pipelines = {line}}, {"local", "other"}));
    return w.run("hetsched-train --model model.json --plan plan.json --steps 3 --precision fp64 --losses losses.csv");
  };
  REQUIRE(w.run("hetsched-train --model model.json --ranks 1 --steps 3 --microbatches 3 --microbatch-size 5 --precision fp64 "
                "--losses one.csv")
              .status == 0);
  const auto wanted = losses_of(w.get("one.csv"));
  REQUIRE(wanted.size() == 3);
  const auto plain = plan_with([](pipeline_plan&) {});
  CAPTURE(plain.errors);
  REQUIRE(plain.status == 0);
  const auto text = w.get("losses.csv");
  const auto found = losses_of(text);
  REQUIRE(found.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) CHECK(std::abs(found[s] - wanted[s]) <= 1e-12 * wanted[s]);
  // The same to the last bit, whatever is computed again and wherever the optimizer's state lies.
  const std::vector<std::pair<recomputation, int>> ways{{recomputation::full, 0}, {recomputation::selective, 1},
                                                        {recomputation::none, 2}, {recomputation::full, 2},
                                                        {recomputation::full, 3}, {recomputation::none, -1}};
  for (const auto& [recompute, zero] : ways) {
    const auto r = plan_with([&, r = recompute, z = zero](pipeline_plan& line) {
      line.stages[0].recompute = line.stages[1].recompute = r;
      line.stages[0].zero = std::max(z, 0);
      line.stages[1].zero = z == 3 ? 3 : 2 - z;
      line.stages[1].shares.state = {0.9, 0.1};  // by room, not by samples
    });
    CAPTURE(r.errors);
    CAPTURE(zero);
    CHECK(r.status == 0);
    CHECK(contains(r.errors, "in stages of ZeRO stage 3 weights that others hold") == (zero == 3 || zero < 0));
    CHECK(w.get("losses.csv") == text);
  }
  // Devices of two subclusters are ranks like any others.
  const auto mixed = plan_with([](pipeline_plan& line) { line.stages[0].devices = {{{0, 1, 1}, 0}, {{1, 1, 1}, 0}}; });
  CAPTURE(mixed.errors);
  CHECK(mixed.status == 0);
  CHECK(w.get("losses.csv") == text);
  // Tensor ranks with one and three of four heads.
  const auto heads = plan_with([](pipeline_plan& line) { line.stages[1].shares.tensor = {0.3, 0.7}; });
  CAPTURE(heads.errors);
  REQUIRE(heads.status == 0);
  const auto by_heads = losses_of(w.get("losses.csv"));
  REQUIRE(by_heads.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) CHECK(std::abs(by_heads[s] - wanted[s]) <= 1e-12 * wanted[s]);
  const auto refused = [&](auto change, const char* why) {
    const auto r = plan_with([&](pipeline_plan& line) { change(line.stages[1]); });
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, why));
  };
  refused([](stage_plan& s) { s.shares.tensor = {0.95, 0.05}; }, "a tensor rank has none of the 4 heads");
  refused(
      [](stage_plan& s) {
        s.degrees = {.data = 1, .context = 2, .tensor = 2};
        s.shares = {.context = {0.7, 0.3}};
      },
      "stage 1 has uneven shares of its context axis");
  refused([](stage_plan& s) { s.shares.data = {0.99, 0.01}; }, "stage 1 shares microbatches of 5 samples among 2 data ranks");
}
