// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/export/torch.hpp>
#include <hetsched/schedule/text.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("stages of PyTorch's pipelining read back are the plan's, and so is the schedule") {
  for (const auto* name : {"1f1b", "interleaved_1f1b", "zb_v"}) {
    auto file = equal_plan(18, 2, {.data = 2}, name);
    auto& planned = file.plan.pipelines.front().stages;
    planned[1].recompute = recomputation::full;
    const auto placed = place_plan(file, "x");
    const auto made = export_torch(placed);
    const auto read = nlohmann::json::parse(made.text("stages.json"));
    CHECK(read["data"] == 2);
    CHECK(read["pipeline_ranks"] == 2);
    CHECK(read["microbatches"] == 8);
    REQUIRE(read["stages"].size() == placed.layout.stages.size());
    for (std::size_t v = 0; v < placed.layout.stages.size(); ++v) {
      const auto& s = read["stages"][v];
      CHECK(s["first_layer"] == placed.layout.stages[v].layers.first);
      CHECK(s["last_layer"] == placed.layout.stages[v].layers.last - 1);
      CHECK(s["modules"].size() == static_cast<std::size_t>(placed.layout.stages[v].layers.size()));
      CHECK(s["pipeline_rank"] == placed.order().rank(0, static_cast<int>(v)));
      const auto how = planned[s["pipeline_rank"]].recompute;
      CHECK(s["recompute"] == name_of(how));
      // Embedding and head are not recomputed, nor priced so.
      const int first = std::max(s["first_layer"].get<int>(), 1),
                last = std::min(s["last_layer"].get<int>(), placed.layers() - 2);
      CHECK(s["recomputed_layers"].size() ==
            (how == recomputation::full ? static_cast<std::size_t>(std::max(last - first + 1, 0)) : 0));
      for (const auto& l : s["recomputed_layers"]) CHECK((l >= first && l <= last));
    }
    const auto order = parse_schedule_csv(made.text("schedule.csv"));
    CHECK(order.rank_of == placed.order().rank_of);
    for (std::size_t r = 0; r < 2; ++r) CHECK(order.lanes[r].actions.size() == placed.order().lanes[r].actions.size());
  }
}

TEST_CASE("an order that a plan lists goes to PyTorch, wherever its stages lie") {
  auto file = equal_plan(18, 2, {}, "mine");
  file.plan.pipelines.front().microbatches = 1;
  file.plan.pipelines.front().schedule.actions = parse_schedule_csv("1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0\n");
  const auto made = export_plan(file, "torch");
  const auto read = nlohmann::json::parse(made.text("stages.json"));
  REQUIRE(read["stages"].size() == 4);
  for (int v = 0; v < 4; ++v) CHECK(read["stages"][static_cast<std::size_t>(v)]["pipeline_rank"] == (v == 1 || v == 2 ? 0 : 1));
  CHECK(parse_schedule_csv(made.text("schedule.csv")).rank_of == file.plan.pipelines.front().schedule.actions->rank_of);
  CHECK(has(refusal([&] { return export_plan(file, "torchtitan"); }), "schedule mine"));
}

TEST_CASE("what PyTorch's pipelining cannot do") {
  const auto refused = [](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return export_plan(file, "torch"); }), why));
  };
  refused(equal_plan(18, 2, {.tensor = 4}), "stage 0: tensor degree 4, expected 1");
  refused(equal_plan(18, 2, {}, "dualpipe"), "schedule dualpipe");
  auto file = equal_plan(18, 2, {.data = 2});
  CHECK(export_torch(place_plan(file, "X")).remarks.empty());
  file.plan.pipelines.front().stages[0].zero = 1;
  file.plan.pipelines.front().stages[1].zero = 2;
  file.plan.pipelines.front().stages[1].recompute = recomputation::selective;
  const auto made = export_torch(place_plan(file, "X"));
  CHECK(nlohmann::json::parse(made.text("stages.json"))["stages"][1]["recompute"] == "full");
  REQUIRE(made.remarks.size() == 2);
  CHECK(has(made.remarks[0], "stage 1 has ZeRO stage 2, and in run.py 1"));
  const auto stages = nlohmann::json::parse(made.text("stages.json"))["stages"];
  for (const auto& s : stages) CHECK(s["zero"] == 1);
  CHECK(has(made.remarks[1], "stage 1 recomputes selectively, and in run.py whole layers"));
}
