// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <doctest/doctest.h>

#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/schedule_csv.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("a plan of equal stages goes to every target, with its ranks and assumptions") {
  for (const auto& target : export_targets()) {
    CAPTURE(target);
    auto file = equal_plan(18, 2, {.data = 2});
    file.plan.setting.precision = target == "torchtitan" ? "fp32" : "bf16";
    const auto made = export_plan(file, target, hosts_of_two_sizes());
    CHECK(!made.text("ranks.json").empty());
    CHECK(made.text("assumptions.json").empty() == (target == "csv"));
    for (const auto& f : made.files) CHECK(f.text.back() == '\n');
  }
  CHECK(export_targets().size() == 6);
}

TEST_CASE("no target runs a plan for inference") {
  const auto refused = [](const char* target, const char* why) {
    CHECK(has(refusal([&] { return export_plan(inference_plan_file{}, target); }), why));
  };
  refused("torch", "cannot run this plan: plan: requests that are served, expected training (hetsched-plan --for torch");
  refused("csv", "a table cannot express this plan: it serves requests");
}

TEST_CASE("the table is the whole schedule, of any target's or none's") {
  const auto made = export_plan(equal_plan(18, 2, {.tensor = 4}, "dualpipe"), "csv");
  CHECK(parse_schedule(made.text("schedule.csv"), "s").directions == 2);
  CHECK_THROWS_AS((void)export_plan(equal_plan(18, 2), "caffe"), input_error);
  CHECK_THROWS_AS((void)export_plan(equal_plan(18, 2), "flagscale"), input_error);  // without a cluster
}
