// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/json/stack_json.hpp>

#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "../documents.hpp"

using namespace hetsched;

namespace {

const std::string own = R"({
  "format": "hetsched/stack", "version": 1, "name": "ours", "like": "fsdp",
  "bf16": { "gradient_bytes": 2, "reduced_bytes": 2, "accumulation_bytes": 6 },
  "loss_copies": 2.5, "selective_kept": 0.5, "whole_inputs": false, "runtime_bytes": 1500000000, "margin": 0.01,
  "fusion": "absorbed", "host_launch_us": 4.3, "gather_overlap": 0.75, "update_bandwidth": 0.625, "attention": "first", "autocast": true,
  "products": "fp8", "sends": "blocking"
})";

}  // namespace

TEST_CASE("stack.json: what it says, over the stack that it is like; and back") {
  const auto s = parse_stack(own, "own.json");
  auto expected = *find_training_stack("fsdp");
  expected.name = "ours";
  expected.bf16.gradient_bytes = expected.bf16.reduced_bytes = 2;
  expected.bf16.accumulation_bytes = 6;
  expected.activations.loss_copies = 2.5;
  expected.activations.selective_kept = 0.5;
  expected.activations.whole_inputs = false;
  expected.overheads.runtime_bytes = 1'500'000'000;
  expected.overheads.margin = 0.01;
  expected.fusion = elementwise_fusion::absorbed;
  expected.host_launch_s = 4.3 * 1e-6;
  expected.update_bandwidth = 0.625;
  expected.gather_overlap = 0.75;
  expected.flash = flash_kernels::first;
  expected.autocast = true;
  expected.fp8_products = true;
  expected.sends = send_mode::blocking;
  CHECK(s == expected);
  CHECK(parse_stack(to_json(s), "again") == s);
  // What torchtitan adds in pipelines is not another's who tells what it adds.
  auto adds = nlohmann::json::parse(
      R"({"format": "hetsched/stack", "version": 1, "name": "ours", "like": "torchtitan", "bf16": {"accumulation_bytes": 0}})");
  CHECK(parse_stack(adds.dump(), "own.json").bf16.staged_accumulation_bytes == 0);
  CHECK(parse_stack(adds.dump(), "own.json").fp16 == find_training_stack("torchtitan")->fp16);
  adds["bf16"]["staged_accumulation_bytes"] = 4;
  CHECK(parse_stack(adds.dump(), "own.json").bf16.staged_accumulation_bytes == 4);
  for (const auto& known : training_stacks()) {
    CHECK(read_stack(known.name) == known);
    CHECK(parse_stack(to_json(known), "again") == known);
  }
}

TEST_CASE("stack.json: of a known name, what files did not always tell is as it is known") {
  for (const auto* name : {"megatron", "deepspeed"}) {
    const auto known = find_training_stack(name).value();
    REQUIRE(known.sends != send_mode::asynchronous);
    auto old = nlohmann::json::parse(to_json(known));
    old.erase("sends"), old.erase("products");
    for (const auto* computed : {"bf16", "fp16", "fp32"}) CHECK(old[computed].erase("accumulation_bytes") == 1);
    CHECK(parse_stack(old.dump(), "old.json") == known);
  }
  // Own figures without the newest key are complete; hetsched's were as others' once.
  auto old = nlohmann::json::parse(to_json(training_stack{}));
  for (const auto* computed : {"bf16", "fp16", "fp32"}) {
    CHECK(old[computed].erase("working_part_bytes") == 1);
    old[computed]["working_bytes"] = old[computed]["weight_bytes"];
  }
  CHECK(parse_stack(old.dump(), "old.json") == training_stack{});
  old["name"] = "mine";
  CHECK(parse_stack(old.dump(), "old.json").bf16 == training_memory{});
}

TEST_CASE("stack.json: complaints name the place") {
  const auto complaint = [](const std::string& from, const std::string& to) {
    auto text = own;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    try {
      (void)parse_stack(text.replace(at, from.size(), to), "own.json");
    } catch (const file_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(complaint("\"like\": \"fsdp\"", "\"like\": \"fdsp\"").find("/like: there is no stack \"fdsp\"") != std::string::npos);
  CHECK(complaint("\"ours\"", "\"megatron\"").find("/name") != std::string::npos);
  CHECK(complaint("\"name\": \"ours\", ", "").find("name") != std::string::npos);
  CHECK(complaint("0.75", "1.5").find("/gather_overlap: found 1.5") != std::string::npos);
  CHECK(complaint("\"gradient_bytes\": 2", "\"gradient_bytes\": 2.5").find("/bf16/gradient_bytes") != std::string::npos);
  CHECK(complaint("absorbed", "all").find("none, grouped or absorbed") != std::string::npos);
  CHECK(complaint("blocking", "blocked").find("/sends: there is no \"blocked\" here; did you mean \"blocking\"?") !=
        std::string::npos);
  CHECK(complaint("\"fp8\"", "\"fp4\"").find("/products: there is no \"fp4\"") != std::string::npos);
  CHECK(complaint("loss_copies", "loss_copy").find("loss_copy") != std::string::npos);
  CHECK_THROWS_WITH_AS((void)read_stack("megatrom"),
                       doctest::Contains("there is neither a stack nor a file megatrom; did you mean \"megatron\"?"),
                       input_error);
}
