// SPDX-License-Identifier: Apache-2.0
// --stack: the trainer that a plan is priced for, in hetsched-plan, -compare, -predict and -export.
#include <string>

#include <nlohmann/json.hpp>

#include <doctest/doctest.h>

#include "workplace.hpp"

namespace {

using hetsched::test::workplace;
using json = nlohmann::json;

const std::string model = R"({"model_type": "gpt2", "n_layer": 8, "n_embd": 1024, "n_head": 16, "vocab_size": 50257,
  "n_positions": 1024, "torch_dtype": "bfloat16"})";

std::string cluster(const std::string& more) {
  return R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "g", "device": "A100-SXM4-80GB", "nodes": 1,
    "devices_per_node": 8, "intra_node": {"gbit_per_s": 2400, "latency_us": 3}}])" +
         more + "}";
}

// All on one stage of eight replicas.
std::string plan_of(int zero) {
  return R"({"format": "hetsched/plan", "version": 2, "setting": {"granularity": "block"}, "pipelines": [{"microbatches": 2,
    "microbatch_size": 32, "stages": [{"layers": [0, 9], "degrees": {"data": 8}, "zero": )" +
         std::to_string(zero) + R"(, "devices": [{"subcluster": "g", "first_device": 0, "nodes": 1, "devices_per_node": 8}]}],
    "schedule": {"name": "1f1b"}}]})";
}

struct place : workplace {
  place() {
    put("m.json", model);
    put("c.json", cluster(""));
  }
  [[nodiscard]] json predicted(const std::string& options) const {
    const auto r = run("hetsched-predict --model m.json --json " + options);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return json::parse(r.output);
  }
};

json memory(const json& predicted) { return predicted["stages"][0]["memory_bytes"]; }

}  // namespace

TEST_CASE("a plan records its stack, the summary names it, and prediction, comparison and export go by it") {
  const place w;
  const std::string search = " --cluster c.json --model m.json --global-batch 64 --granularity block";
  auto r = w.run("hetsched-plan --planner interop_dp --stack megatron --zero 1 --out p.json" + search);
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(r.output.find("\nstack         megatron") != std::string::npos);
  CHECK(r.output.find("2 + 4 + 12 bytes a parameter") != std::string::npos);
  CHECK(json::parse(w.get("p.json"))["setting"]["stack"] == "megatron");

  const auto own = w.predicted("--cluster c.json --plan p.json");
  CHECK(own["stack"] == "megatron");
  CHECK(own["iteration_s"] == own["plan"]["iteration_s"]);
  CHECK(memory(own)["gradients"] == 2 * memory(own)["weights"].get<long>());
  const auto other = w.predicted("--cluster c.json --plan p.json --stack hetsched");
  CHECK(memory(other)["gradients"] == memory(other)["weights"]);
  CHECK(other["iteration_s"] < own["iteration_s"]);

  const auto script = [&](const std::string& plan) {
    REQUIRE(w.run("hetsched-export --to megatron --out m --plan " + plan).status == 0);
    return w.get("m/launch.sh");
  };
  CHECK(script("p.json").find("--grad-reduce-in-bf16") == std::string::npos);
  REQUIRE(w.run("hetsched-plan --planner interop_dp --zero 1 --out q.json" + search).status == 0);
  CHECK(json::parse(w.get("q.json"))["setting"]["stack"] == "hetsched");
  CHECK(script("q.json").find("--grad-reduce-in-bf16") != std::string::npos);

  r = w.run("hetsched-compare --planners interop_dp --stack megatron --zero 1 --json" + search);
  REQUIRE(r.status == 0);
  CHECK(json::parse(r.output)["planners"][0]["iteration_s"] == own["iteration_s"]);
}

TEST_CASE("stacks by name, by file and in the cluster file: the option wins over the plan, the plan over the cluster") {
  const place w;
  w.put("p.json", plan_of(3));
  const auto plain = w.predicted("--cluster c.json --plan p.json");
  CHECK(plain["stack"] == "hetsched");
  w.put("c2.json", cluster(R"(, "stack": "fsdp")"));
  const auto sharded = w.predicted("--cluster c2.json --plan p.json --out full.json");
  CHECK(sharded["stack"] == "fsdp");
  CHECK(memory(sharded)["weights"] == 0);
  CHECK(memory(sharded)["gradients"] == 2 * memory(plain)["gradients"].get<long>());
  CHECK(w.predicted("--cluster c.json --plan full.json")["stack"] == "fsdp");
  CHECK(w.predicted("--cluster c2.json --plan full.json --stack deepspeed")["stack"] == "deepspeed");

  w.put("mine.json", R"({"format": "hetsched/stack", "version": 1, "name": "mine", "like": "fsdp", "gather_overlap": 0,
    "bf16": {"gradient_bytes": 2}})");
  const auto mine = w.predicted("--cluster c.json --plan p.json --stack mine.json --out mine-plan.json");
  CHECK(memory(mine)["gradients"] == memory(plain)["gradients"]);
  CHECK(mine["iteration_s"] > sharded["iteration_s"]);
  CHECK(w.run("hetsched-predict --model m.json --cluster c.json --plan p.json --stack mine.json --out mine.json").status == 2);
  // The plan holds it all; and a cluster file can.
  w.put("mine.json", "");
  CHECK(w.predicted("--cluster c.json --plan mine-plan.json")["iteration_s"] == mine["iteration_s"]);
  const auto stack = json::parse(w.get("mine-plan.json"))["setting"]["stack"];
  CHECK(stack["name"] == "mine");
  w.put("c3.json", cluster(", \"stack\": " + stack.dump()));
  CHECK(w.predicted("--cluster c3.json --plan p.json")["iteration_s"] == mine["iteration_s"]);
}

TEST_CASE("products in fp8: two bytes more for each parameter of blocks; by the tile model, in 16 bits where devices lack fp8") {
  const place w;
  w.put("p.json", plan_of(1));
  w.put("fp8.json", R"({"format": "hetsched/stack", "version": 1, "name": "eighths", "products": "fp8"})");
  const std::string with = " --plan p.json --model m.json --stack fp8.json";
  const auto a100 = w.run("hetsched-predict --cluster c.json" + with);
  CHECK(a100.errors.find("g has no fp8: products priced in 16 bits there") != std::string::npos);
  CHECK(a100.output.find("stack eighths, products in fp8") != std::string::npos);
  auto text = cluster("");
  text.replace(text.find("A100-SXM4-80GB"), 14, "H100-SXM5-80GB");
  w.put("h.json", text);
  CHECK(w.run("hetsched-predict --cluster h.json" + with).errors.find("no fp8") == std::string::npos);
  const auto plain = w.predicted("--cluster h.json --plan p.json"),
             rounded = w.predicted("--cluster h.json --plan p.json --stack fp8.json");
  CHECK(memory(rounded)["weights"].get<long>() - memory(plain)["weights"].get<long>() == 2 * 8 * (12 * 1024 + 13) * 1024);
  CHECK(rounded["iteration_s"] < plain["iteration_s"]);
  const auto analytic = w.run("hetsched-predict --cluster h.json --cost analytic" + with);
  CHECK(analytic.status == 2);
  CHECK(analytic.errors.find("stack eighths has products in fp8: only the tile formulas") != std::string::npos);
  // A plan that was made so is predicted so.
  const auto found = w.run(
      "hetsched-plan --planner interop_dp --global-batch 64 --granularity block --cluster h.json --model m.json "
      "--stack fp8.json --out q.json");
  CHECK(found.output.find("; of blocks 2 more, for products in fp8") != std::string::npos);
  const auto again = w.predicted("--cluster h.json --plan q.json");
  CHECK(again["iteration_s"] == again["plan"]["iteration_s"]);
}

TEST_CASE("Llama 3.2 1B, whose ends share a matrix, fits one RTX 4090: 16 bytes a parameter, and no communicators") {
  const workplace w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "links": [],
    "subclusters": [{"name": "n", "device": "RTX4090", "nodes": 1, "devices_per_node": 1}]})");
  w.put("m.json", R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16", "tie_word_embeddings": true})");
  const auto r = w.run("hetsched-plan --cluster c.json --model m.json --global-batch 32 --out p.json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  const auto p = json::parse(w.get("p.json"));
  REQUIRE(p["pipelines"][0]["stages"].size() == 1);
  const auto& s = p["pipelines"][0]["stages"][0];
  CHECK(s["weight_bytes"] == 16 * 1'235'814'400LL);  // the published count
  CHECK(s["overheads"]["runtime_bytes"] == 1'000'000'000);
  CHECK(s["memory_bytes"].get<std::int64_t>() <= 24LL << 30);
  // An idle device beside it changes nothing.
  w.put("c2.json", R"({"format": "hetsched/cluster", "version": 1, "links": [],
    "subclusters": [{"name": "n", "device": "RTX4090", "nodes": 1, "devices_per_node": 1},
                    {"name": "idle", "device": "T4", "nodes": 1, "devices_per_node": 1}]})");
  const auto predicted = [&](const std::string& file) {
    return json::parse(
        w.run("hetsched-predict --cluster " + file + " --model m.json --plan p.json --json").output)["iteration_s"];
  };
  CHECK(predicted("c.json") == predicted("c2.json"));
}

TEST_CASE("a stack that is not there, or where none counts: status 2 and what is wrong") {
  const place w;
  w.put("p.json", plan_of(1));
  w.put("c2.json", cluster(R"(, "stack": "megatrom")"));
  const auto says = [&](const std::string& line, const std::string& text) {
    const auto r = w.run(line);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(text) != std::string::npos);
  };
  says("hetsched-predict --cluster c.json --model m.json --plan p.json --stack megatrom",
       "there is neither a stack nor a file megatrom; did you mean \"megatron\"?");
  says("hetsched-predict --cluster c2.json --model m.json --plan p.json", "c2.json: /stack: there is no stack \"megatrom\"");
  says("hetsched-plan --cluster c.json --model m.json --objective latency --stack fsdp --out q.json", "--stack: is for training");
  says("hetsched-plan --cluster c.json --profile x.json --stack fsdp --global-batch 8 --out q.json",
       "--profile excludes --stack");
}
