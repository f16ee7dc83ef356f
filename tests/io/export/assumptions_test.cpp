// SPDX-License-Identifier: Apache-2.0
// What check.py says is tested by tests/commands/export_test.cpp.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/export/assumptions.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("assumptions: devices, precision of each, schedule, stack, gradients, overlap, and what the plan is worth") {
  auto file = plan_of({{.end = 9}, {.end = 18, .subcluster = 1}}, "h1f1b");
  file.plan.setting.stack = find_training_stack("torchtitan");
  file.plan.predicted.iteration_s = 1.5;
  file.plan.predicted.samples_per_s = 32 / 1.5;
  const auto all = nlohmann::json::parse(assumptions_json(place_plan(file, "X", hosts_of_two_sizes())));
  CHECK(all["format"] == "hetsched/assumptions");
  CHECK(all["target"] == "X");
  REQUIRE(all["starts"].size() == 2);
  CHECK(all["starts"][0]["precision"] == "bf16");
  CHECK(all["starts"][1]["precision"] == "fp16");
  CHECK(all["starts"][1]["host"] == "v-0");
  CHECK(all["starts"][1]["slots"] == std::vector{0});
  CHECK(all["starts"][1]["memory_bytes"] == find_device("V100-SXM2-32GB")->memory_bytes);
  CHECK(all["schedule"] == "h1f1b");
  CHECK(all["microbatches"] == 8);
  CHECK(all["precision"] == "bf16");
  CHECK(all["gradient_bytes"] == 4);
  CHECK(all["stack"] == "torchtitan");
  CHECK(all["overlap"]["gathers"] == 1);
  CHECK(all["predicted"]["iteration_s"] == 1.5);
}

TEST_CASE("what a plan does not say is no assumption") {
  auto file = equal_plan(18, 2);
  file.plan.setting = {};
  const auto all = nlohmann::json::parse(assumptions_json(place_plan(file, "X")));
  for (const auto* key : {"precision", "gradient_bytes", "stack", "overlap", "predicted", "sequence", "costs"})
    CHECK(all.count(key) == 0);
  CHECK(all["starts"].empty());
  CHECK(assumption_files(place_plan(file, "X")).size() == 2);
}

TEST_CASE("remarks tell of another schedule, and of another stack") {
  auto file = equal_plan(18, 2, {}, "gpipe");
  CHECK(assumption_remarks(place_plan(file, "X"), "1F1B", "1f1b", "megatron").size() == 1);
  file.plan.setting.stack = training_stack{};
  const auto both = assumption_remarks(place_plan(file, "X"), "1F1B", "1f1b", "megatron");
  REQUIRE(both.size() == 2);
  CHECK(both[0] == "X runs its own 1F1B, not the plan's schedule gpipe");
  CHECK(both[1] == "the plan is priced for stack hetsched; hetsched-plan --stack megatron prices what X does");
  CHECK(assumption_remarks(place_plan(file, "X"), "", "", "").empty());
}
