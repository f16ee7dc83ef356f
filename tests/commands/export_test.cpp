// SPDX-License-Identifier: Apache-2.0
// hetsched-export as a user calls it.
#include <cstddef>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/schedule/text.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

// A plan of equal stages by hand.
std::string plan_text(int layers, int stages, int data, int tensor, const std::string& schedule, int microbatches = 8,
                      int size = 4) {
  auto all = nlohmann::ordered_json::array();
  const int per = layers / stages, devices = data * tensor;
  for (int s = 0; s < stages; ++s) {
    all.push_back(
        {{"layers", {s * per, s + 1 == stages ? layers - 1 : (s + 1) * per - 1}},
         {"devices", {{{"subcluster", "a"}, {"first_device", s * devices}, {"nodes", 1}, {"devices_per_node", devices}}}},
         {"degrees", {{"data", data}, {"context", 1}, {"tensor", tensor}}}});
  }
  return nlohmann::ordered_json{
      {"format", "hetsched/plan"},
      {"version", 2},
      {"subclusters", {{{"name", "a"}, {"devices", 64}}}},
      {"pipelines",
       {{{"microbatches", microbatches}, {"microbatch_size", size}, {"stages", all}, {"schedule", {{"name", schedule}}}}}}}
      .dump();
}

// A layout as Megatron-LM reads it: commas are dropped, (...)*n and x*n unrolled, stages split at '|'.
std::vector<std::string> unrolled(std::string text) {
  text = std::regex_replace(text, std::regex(",|\\s"), "");
  const auto unroll = [&](const std::regex& pattern) {
    std::smatch m;
    while (std::regex_search(text, m, pattern)) {
      std::string repeated;
      for (int i = std::stoi(m[2]); i > 0; --i) repeated += m[1];
      text = m.prefix().str() + repeated + m.suffix().str();
    }
  };
  unroll(std::regex("\\(([^()]*)\\)\\*(\\d+)"));
  unroll(std::regex("([^()|*])\\*(\\d+)"));
  std::vector<std::string> stages{""};
  for (const char c : text)
    if (c == '|')
      stages.emplace_back();
    else
      stages.back() += c;
  return stages;
}

}  // namespace

TEST_CASE("the layout reader of these tests reads Megatron-LM's own example") {
  const auto stages = unrolled("Et*3|(tt|)*29,m|L");
  REQUIRE(stages.size() == 32);
  CHECK(stages[0] == "Ettt");
  CHECK(stages[1] == "tt");
  CHECK(stages[30] == "m");
  CHECK(stages[31] == "L");
}

TEST_CASE("hetsched-export --to megatron: every block once, in the plan's stages, and the sizes") {
  const workplace w;
  for (const auto& [layers, stages, schedule, virtual_stages] :
       {std::tuple{26, 4, "1f1b", 4}, std::tuple{8, 8, "1f1b", 8}, std::tuple{34, 2, "interleaved_1f1b", 4},
        std::tuple{3, 1, "1f1b", 1}}) {
    CAPTURE(layers);
    CAPTURE(stages);
    w.put("p.json", plan_text(layers, stages, 2, 4, schedule));
    const auto run = w.run("hetsched-export --plan p.json --to megatron --out m");
    REQUIRE(run.status == 0);
    CHECK(run.errors == "");
    const auto parts = unrolled(w.get("m/pipeline_layout.txt"));
    CHECK(parts.size() == static_cast<std::size_t>(virtual_stages));
    std::string joined;
    for (const auto& part : parts) joined += part;
    CHECK(joined == "E" + std::string(static_cast<std::size_t>(layers) - 2, 't') + "L");
    const auto script = w.get("m/launch.sh");
    for (const auto& flag : {"--tensor-model-parallel-size 4", "--micro-batch-size 2", "--global-batch-size 32"})
      CHECK(script.find(flag) != std::string::npos);
    CHECK(script.find("--pipeline-model-parallel-size " + std::to_string(stages)) != std::string::npos);
    CHECK(std::system(("bash -n " + w.path("m/launch.sh")).c_str()) == 0);
    const auto ranks = nlohmann::json::parse(w.get("m/ranks.json"))["ranks"];
    REQUIRE(ranks.size() == static_cast<std::size_t>(8 * stages));
    // Tensor ranks lie next to each other, then data, then the pipeline.
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      CHECK(ranks[r]["device"] == r);
      CHECK(ranks[r]["tensor"] == r % 4);
      CHECK(ranks[r]["data"] == r / 4 % 2);
      CHECK(ranks[r]["pipeline_rank"] == r / 8);
    }
  }
}

TEST_CASE("hetsched-export --to megatron: what costs were made for, and what Megatron-LM does its own way") {
  const workplace w;
  auto plan = nlohmann::json::parse(plan_text(12, 2, 2, 2, "h1f1b"));
  plan["setting"] = {
      {"costs", "tile"}, {"granularity", "block"}, {"sequence", 2048}, {"precision", "bf16"}, {"attention", "flash"}};
  for (auto& stage : plan["pipelines"][0]["stages"]) stage["zero"] = 1;
  plan["pipelines"][0]["stages"][0]["recompute"] = "full";
  w.put("p.json", plan.dump());
  auto run = w.run("hetsched-export --plan p.json --to megatron --out m");
  REQUIRE(run.status == 0);
  CHECK(run.errors.find("plan: schedule h1f1b, expected 1f1b or interleaved_1f1b") != std::string::npos);
  CHECK(run.errors.find("stage 1: recompute none, expected full as in stage 0") != std::string::npos);
  CHECK(run.errors.find("ZeRO") == std::string::npos);
  const auto script = w.get("m/launch.sh");
  for (const auto& flag :
       {"--sequence-parallel", "--bf16", "--grad-reduce-in-bf16", "--seq-length 2048", "--use-distributed-optimizer"})
    CHECK(script.find(flag) != std::string::npos);
  CHECK(script.find("--recompute") == std::string::npos);
  plan["pipelines"][0]["stages"][1]["zero"] = 0;
  w.put("p.json", plan.dump());
  run = w.run("hetsched-export --plan p.json --to megatron --out m");
  CHECK(run.status == 0);
  CHECK(run.errors.find("stage 1: ZeRO stage 0, expected 1 as in stage 0") != std::string::npos);
  CHECK(w.get("m/launch.sh").find("--use-distributed-optimizer") == std::string::npos);
}

TEST_CASE("hetsched-export --to torch: cuts by module, and the schedule that the plan runs") {
  const workplace w;
  w.put("p.json", plan_text(12, 4, 2, 1, "zb_h1"));
  REQUIRE(w.run("hetsched-export --plan p.json --to torch --out t").status == 0);
  const auto stages = nlohmann::json::parse(w.get("t/stages.json"));
  CHECK(stages["data"] == 2);
  int layer = 0;
  for (const auto& s : stages["stages"]) {
    CHECK(s["first_layer"] == layer);
    layer = s["last_layer"].get<int>() + 1;
    CHECK(s["modules"].size() == 3);
  }
  CHECK(layer == 12);
  const auto order = parse_schedule_csv(w.get("t/schedule.csv"));
  CHECK(order.ranks == 4);
  CHECK(order.microbatches == 8);
  for (const auto& l : order.lanes) CHECK(l.actions.size() == 24);  // forward, and both halves of the backward
  CHECK(std::system(("python3 -m py_compile " + w.path("t/run.py")).c_str()) == 0);
  REQUIRE(w.run("hetsched-export --plan p.json --to csv --out c").status == 0);
  CHECK(w.get("c/schedule.csv").find("0F0") != std::string::npos);
}

TEST_CASE("hetsched-export: what a target cannot express is named, and nothing is written") {
  const workplace w;
  const auto refused = [&](const std::string& to, const std::string& why, int status = 1) {
    const auto run = w.run("hetsched-export --plan p.json --to " + to + " --out x");
    CAPTURE(why);
    CHECK(run.status == status);
    CHECK(run.output == "");
    CHECK(run.errors.find(why) != std::string::npos);
    CHECK(w.files().count("x") == 0);
  };
  w.put("p.json", plan_text(12, 2, 1, 4, "1f1b"));
  refused("torch", "stage 0: tensor degree 4, expected 1; stage 1: tensor degree 4, expected 1");
  refused("torch", "hetsched-plan --for torch");
  refused("caffe", "--to", 2);
  w.put("p.json", plan_text(12, 2, 1, 1, "zb_v"));
  refused("megatron", "schedule zb_v, expected 1f1b or interleaved_1f1b");
  w.put("p.json", plan_text(12, 2, 1, 1, "dualpipe"));
  refused("torch", "schedule dualpipe, expected");
  auto uneven = nlohmann::json::parse(plan_text(12, 2, 4, 1, "1f1b"));
  uneven["pipelines"][0]["stages"][1]["degrees"] = {{"data", 1}, {"context", 1}, {"tensor", 4}};
  w.put("p.json", uneven.dump());
  refused("megatron", "stage 1: tensor degree 4, expected 1 as in stage 0");
  uneven = nlohmann::json::parse(plan_text(12, 2, 1, 1, "1f1b"));
  uneven["setting"] = {
      {"costs", "tile"}, {"granularity", "sublayer"}, {"sequence", 128}, {"precision", "fp16"}, {"attention", "flash"}};
  uneven["pipelines"][0]["stages"][1]["layers"] = {6, 13};
  w.put("p.json", uneven.dump());
  refused("megatron", "stage 1: a begin inside block 1, expected cuts between blocks");
  w.put("p.json", "{}");
  refused("megatron", "p.json", 2);
}
