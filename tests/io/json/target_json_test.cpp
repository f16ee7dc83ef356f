// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/json/target_json.hpp>

#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/json_reader.hpp>

using namespace hetsched;

namespace {

const std::string own = R"({
  "format": "hetsched/target", "version": 1, "name": "ours", "like": "megatron", "program": "our fork", "stack": "hetsched",
  "several_pipelines": true, "uneven_shares": true, "cuts": "blocks_with_ends", "most": { "tensor": 8 },
  "equal": ["tensor", "zero"], "recompute": ["none", "full"], "zero": [0, 1, 2], "schedules": ["zb_h1", "auto"],
  "equal_at_ends": ["data"], "strict": true, "zero_alone": [3], "equal_pipelines": false
})";

}  // namespace

TEST_CASE("target.json: what it says, over the target that it is like; and back") {
  const auto t = parse_target(own, "own.json");
  auto expected = *find_plan_target("megatron");
  expected.name = "ours";
  expected.program = "our fork";
  expected.stack = "hetsched";
  expected.several_pipelines = expected.uneven_shares = true;
  expected.equal_pipelines = false;
  expected.cuts = target_cuts::blocks_with_ends;
  expected.most.tensor = 8;
  expected.equal = {stage_trait::tensor, stage_trait::zero};
  expected.recompute = {recomputation::none, recomputation::full};
  expected.zero = {0, 1, 2};
  expected.schedules = {schedule_id::zb_h1, schedule_id::searched};
  expected.equal_at_ends = {stage_trait::data};
  expected.strict = true;
  expected.zero_alone = {3};
  CHECK(t == expected);
  CHECK(parse_target(to_json(t), "again") == t);
  for (const auto& known : plan_targets()) {
    CHECK(read_target(known.name) == known);
    CHECK(parse_target(to_json(known), "again") == known);
  }
  CHECK(parse_target(R"({"format": "hetsched/target", "version": 1, "name": "any"})", "any.json") == plan_target{.name = "any"});
}

TEST_CASE("target.json: of a known name, what files did not always tell is as it is known") {
  const auto known = find_plan_target("torchtitan").value();
  REQUIRE(!known.recompute_parted);
  auto old = nlohmann::json::parse(to_json(known));
  old.erase("recompute_parted");
  CHECK(parse_target(old.dump(), "old.json") == known);
}

TEST_CASE("target.json: complaints name the place") {
  const auto complaint = [](const std::string& from, const std::string& to) {
    auto text = own;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    try {
      (void)parse_target(text.replace(at, from.size(), to), "own.json");
    } catch (const file_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(complaint("\"like\": \"megatron\"", "\"like\": \"megatorn\"").find("/like: there is no \"megatorn\"") !=
        std::string::npos);
  CHECK(complaint("\"ours\"", "\"megatron\"").find("/name") != std::string::npos);
  CHECK(complaint("\"tensor\", \"zero\"", "\"tensor\", \"one\"").find("/equal/1") != std::string::npos);
  CHECK(complaint("blocks_with_ends", "anywhere").find("/cuts") != std::string::npos);
  CHECK(complaint("\"zb_h1\"", "\"zb_h9\"").find("/schedules/0") != std::string::npos);
  CHECK(complaint("[0, 1, 2]", "[0, 4]").find("/zero/1") != std::string::npos);
  CHECK(complaint("[0, 1, 2]", "[]").find("ZeRO stage") != std::string::npos);
  CHECK(complaint("\"stack\"", "\"staks\"").find("staks") != std::string::npos);
  CHECK_THROWS_AS((void)read_target("/nowhere/target.json"), input_error);
}
