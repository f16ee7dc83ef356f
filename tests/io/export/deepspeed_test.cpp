// SPDX-License-Identifier: Apache-2.0
// run.py's PipelineModule is tested by tests/commands/export_test.cpp.
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/export/deepspeed.hpp>
#include <hetsched/io/export/export_plan.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// ds_config.json by DeepSpeed's rules: _batch_assertion, and what _do_optimizer_sanity_check takes of types.
nlohmann::json sound_config(const plan_export& made, int data) {
  auto config = nlohmann::json::parse(made.text("ds_config.json"));
  CHECK(config["train_batch_size"] ==
        config["train_micro_batch_size_per_gpu"].get<int>() * config["gradient_accumulation_steps"].get<int>() * data);
  CHECK(config["zero_optimization"]["stage"] <= 1);
  const bool sums_in_fp32 = config.contains("data_types") && config["data_types"]["grad_accum_dtype"] == "fp32";
  if (sums_in_fp32) CHECK(config["zero_optimization"]["stage"] == 1);
  CHECK(!(config.contains("bf16") && config.contains("fp16")));
  return config;
}

}  // namespace

TEST_CASE("DeepSpeed: sizes, precision and cuts are the plan's") {
  auto file = equal_plan(18, 2, {.data = 2});
  file.plan.setting.stack = find_training_stack("megatron");  // gradients of 4 bytes
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 1;
  file.plan.pipelines.front().stages[0].recompute = recomputation::full;
  const auto placed = place_plan(file, "DeepSpeed", hosts_of_two_sizes());
  const auto made = export_deepspeed(placed);
  auto config = sound_config(made, 2);
  CHECK(config["gradient_accumulation_steps"] == 8);
  CHECK(config["bf16"]["enabled"] == true);
  CHECK(config["data_types"]["grad_accum_dtype"] == "fp32");
  const auto stages = nlohmann::json::parse(made.text("stages.json"));
  REQUIRE(stages["stages"].size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    CHECK(stages["stages"][s]["first_layer"] == placed.line().stages[s].layers.first);
    CHECK(stages["stages"][s]["last_layer"] == placed.line().stages[s].layers.last - 1);
    CHECK(stages["stages"][s]["recompute"] == (s == 0));
  }
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 0;
  config = sound_config(export_deepspeed(place_plan(file, "DeepSpeed")), 2);
  CHECK(!config.contains("data_types"));
}

TEST_CASE("what DeepSpeed's pipelines do not do") {
  const auto refused = [](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return export_plan(file, "deepspeed", hosts_of_two_sizes()); }), why));
  };
  refused(equal_plan(18, 2, {.tensor = 2}), "stage 0: tensor degree 2, expected 1");
  refused(equal_plan(18, 2, {}, "interleaved_1f1b"), "schedule interleaved_1f1b, expected 1f1b");
  refused(plan_of({{.end = 9}, {.end = 18, .subcluster = 1}}),
          "stage 1: devices that compute in fp16, expected bf16 as in stage 0");
  auto file = equal_plan(18, 2, {.data = 2});
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 2;
  file.plan.pipelines.front().stages[1].recompute = recomputation::selective;
  const auto made = export_deepspeed(place_plan(file, "DeepSpeed"));
  REQUIRE(made.remarks.size() == 2);
  CHECK(sound_config(made, 2)["zero_optimization"]["stage"] == 1);
  CHECK(has(made.remarks[0], "has ZeRO stage 2, and with DeepSpeed all have 1"));
  CHECK(has(made.remarks[1], "stage 1 recomputes selectively, and with DeepSpeed whole layers"));
  CHECK(nlohmann::json::parse(made.text("stages.json"))["stages"][1]["recompute"] == true);
}
