// SPDX-License-Identifier: Apache-2.0
// What check.py says is tested by tests/commands/export_test.cpp.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/export/assumptions.hpp>
#include <hetsched/io/export/export_plan.hpp>

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
  CHECK(assumption_files(place_plan(file, "X")).size() == 1);
}

namespace {

// Two stages with times and memory: a forward of 1 s and a backward of 2 s each, 1 GiB a microbatch.
plan_file timed_plan(int warmups, bytes_t room) {
  auto file = equal_plan(18, 2, {}, "gpipe");
  auto& line = file.plan.pipelines.front();
  line.microbatches = 4;
  line.schedule.name = "h1f1b";
  for (auto& s : line.stages) {
    s.cost = {.forward_s = 1, .backward_s = 2, .weight_bytes = bytes_t{1} << 30, .activation_bytes = bytes_t{1} << 30};
    s.memory_capacity_bytes = s.cost.weight_bytes + room;
    s.warmup = warmups;
  }
  line.boundaries = {{}};
  file.plan.predicted.iteration_s = 21;
  return file;
}

}  // namespace

TEST_CASE("the iteration under 1F1B is the predicted one and what the orders differ by") {
  // With a warm-up of one, stages take turns: 4 x 6 s. Under 1F1B it is 3 (M + S - 1) = 15 s.
  const auto one = place_plan(timed_plan(1, bytes_t{8} << 30), "X");
  CHECK(*iteration_under_1f1b(one) == doctest::Approx(21 + 15 - 24));
  const auto remarks = remarks_under_1f1b(one, "megatron");
  REQUIRE(remarks.size() == 1);
  CHECK(remarks[0] == "X runs its own 1F1B, not the plan's schedule h1f1b: about 12.0 s an iteration there");
  CHECK(!iteration_under_1f1b(place_plan(equal_plan(18, 2), "X")));
  CHECK(!iteration_under_1f1b(place_plan(equal_plan(18, 2, {}, "interleaved_1f1b"), "X")));
}

TEST_CASE("a stage without room for what 1F1B keeps is refused") {
  const auto refused = [](int gibibytes) {
    return refusal([&] { return export_plan(timed_plan(1, bytes_t{gibibytes} << 30), "megatron"); });
  };
  CHECK(refused(2) == "");
  CHECK(has(refused(1), "stage 0: room for 1 microbatches, expected for 2, which it keeps under 1f1b"));
}

TEST_CASE("remarks tell of another schedule, and of another stack") {
  auto file = equal_plan(18, 2, {}, "gpipe");
  CHECK(remarks_under_1f1b(place_plan(file, "X"), "megatron").size() == 1);
  file.plan.setting.stack = training_stack{};
  const auto both = remarks_under_1f1b(place_plan(file, "X"), "megatron");
  REQUIRE(both.size() == 2);
  CHECK(both[0] == "X runs its own 1F1B, not the plan's schedule gpipe");
  CHECK(both[1] == "the plan is priced for stack hetsched; hetsched-plan --stack megatron prices what X does");
  CHECK(stack_remarks(place_plan(file, "X"), "hetsched").empty());
}
