// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/export/placed_plan.hpp>
#include <hetsched/schedule/text.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("ranks go stage by stage, tensor ranks next to each other, then context, then data") {
  const auto placed = place_plan(equal_plan(10, 2, {.data = 2, .context = 2, .tensor = 2}), "x", hosts_of_two_sizes());
  REQUIRE(placed.ranks.size() == 16);
  const auto listed = nlohmann::json::parse(ranks_json(placed))["ranks"];
  for (int r = 0; r < 16; ++r) {
    const auto& rank = placed.ranks[static_cast<std::size_t>(r)];
    CHECK(rank ==
          placed_rank{
              .pipeline_rank = r / 8, .data = r / 4 % 2, .context = r / 2 % 2, .tensor = r % 2, .subcluster = 0, .device = r});
    const auto& row = listed[static_cast<std::size_t>(r)];
    CHECK(row["rank"] == r);
    CHECK(row["device"] == r);
    CHECK(row["data"] == r / 4 % 2);
    CHECK(row["subcluster"] == "a");
    CHECK(row["stages"] == std::vector{r / 8});
  }
}

TEST_CASE("on a cluster, subclusters count as there, and devices have to be there") {
  auto file = plan_of({{.end = 9, .subcluster = 1}, {.end = 18}});
  file.subclusters = {"v", "a"};
  const auto placed = place_plan(file, "x", hosts_of_two_sizes());
  CHECK(placed.subclusters() == std::vector{0, 1});
  CHECK(placed.file.subclusters == std::vector<std::string>{"a", "v"});
  file.subclusters = {"v", "b"};
  CHECK_THROWS_AS((void)place_plan(file, "x", hosts_of_two_sizes(), "p.json"), file_error);
}

TEST_CASE("what has no ranks of stages is refused by name") {
  const auto refused = [](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return place_plan(file, "X"); }), std::string("X cannot express this plan: ") + why));
  };
  auto file = equal_plan(18, 2);
  file.plan.pipelines.push_back(file.plan.pipelines.front());
  file.plan.pipelines.back().microbatches = 4;
  refused(file, "it has 2 pipelines, which differ: pipeline 1: other microbatches");
}

TEST_CASE("one setting of recomputation and ZeRO for all stages is the most that one has, and that is told") {
  auto file = equal_plan(18, 2, {.data = 2});
  auto& stages = file.plan.pipelines.front().stages;
  std::vector<std::string> remarks;
  const auto recompute = [&] { return common_recomputation(place_plan(file, "X"), remarks = {}); };
  const auto zero = [&](int most) { return common_zero(place_plan(file, "X"), most, remarks = {}); };
  CHECK(recompute() == recomputation::none);
  CHECK(remarks.empty());
  stages[1].recompute = recomputation::selective;
  CHECK(recompute() == recomputation::selective);
  REQUIRE(remarks.size() == 1);
  CHECK(has(remarks[0], "X has one setting: it is selective for all"));
  stages[0].recompute = stages[1].recompute = recomputation::full;
  CHECK(recompute() == recomputation::full);
  CHECK(remarks.empty());
  stages[0].zero = stages[1].zero = 3;
  CHECK(zero(3) == 3);
  CHECK(remarks.empty());
  CHECK(zero(1) == 1);
  REQUIRE(remarks.size() == 1);
  CHECK(remarks[0] == "stage 0 has ZeRO stage 3, and with X all have 1: memory is not as in the plan");
  stages[0].zero = 1;
  stages[1].zero = 0;
  CHECK(zero(1) == 1);
  CHECK(has(remarks[0], "stage 1 has ZeRO stage 0"));
  // One data rank shares nothing, whatever it says.
  file = plan_of({{.end = 9, .degrees = {.data = 4}, .zero = 1}, {.end = 18, .first_device = 4, .degrees = {.tensor = 4}}});
  CHECK(common_zero(place_plan(file, "X"), 1, remarks = {}) == 1);
  CHECK(remarks.empty());
  // Context ranks are replicas, too.
  file = equal_plan(18, 2, {.context = 2});
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 1;
  CHECK(common_zero(place_plan(file, "X"), 1, remarks = {}) == 1);
  CHECK(remarks.empty());
}

TEST_CASE("the precision of devices, and bytes of gradients under the stack") {
  const auto placed = [](const plan_file& file) { return place_plan(file, "X", hosts_of_two_sizes()); };
  CHECK(precision_of(placed(equal_plan(18, 2))) == precision::bf16);
  const auto on_v = plan_of({{.end = 18, .subcluster = 1}});
  CHECK(precision_of(placed(on_v)) == precision::fp16);
  CHECK(precision_of(place_plan(on_v, "X")) == precision::bf16);
  auto file = on_v;
  file.plan.setting.precision = "";
  CHECK(!precision_of(placed(file)));
  CHECK(gradient_bytes(placed(on_v), precision::bf16) == 2);
  file.plan.setting.stack = find_training_stack("megatron");
  CHECK(gradient_bytes(placed(file), precision::bf16) == 4);
  CHECK(gradient_bytes(placed(file), precision::fp16) == 2);
  file.plan.setting.costs = "profile";
  CHECK(gradient_bytes(placed(file), precision::bf16) == 0);
}

TEST_CASE("blocks of stages, and names of layers") {
  auto file = plan_of({{.end = 1}, {.end = 8, .first_device = 1}, {.end = 11, .first_device = 2}});
  auto blocks = blocks_of_stages(place_plan(file, "X"));
  CHECK((blocks[0].embedding && blocks[0].first == blocks[0].last && !blocks[0].head));
  CHECK((!blocks[1].embedding && blocks[1].first == 0 && blocks[1].last == 7));
  CHECK((blocks[2].first == 7 && blocks[2].last == 9 && blocks[2].head));
  CHECK(module_name(place_plan(file, "X"), 8) == "blocks.7");
  file.plan.setting.granularity = "sublayer";
  file.plan.pipelines.front().stages[1].layers.last = file.plan.pipelines.front().stages[2].layers.first = 7;
  blocks = blocks_of_stages(place_plan(file, "X"));
  CHECK((blocks[1].first == 0 && blocks[1].last == 2 && blocks[2].last == 3));
  CHECK(module_name(place_plan(file, "X"), 8) == "blocks.2.norm");
  file.plan.setting.granularity = "";
  CHECK(module_name(place_plan(file, "X"), 8) == "layers.8");
}

TEST_CASE("the table is of computing only") {
  const auto placed = place_plan(equal_plan(12, 4, {}, "zb_h1"), "X");
  const auto order = parse_schedule_csv(computed_csv(placed));
  CHECK(order.ranks == 4);
  for (const auto& l : order.lanes) CHECK(l.actions.size() == 24);  // forward, and both halves of the backward
  const plan_export made{.files = {{"a", "1"}}};
  CHECK(made.text("a") == "1");
  CHECK(made.text("b") == "");
}
