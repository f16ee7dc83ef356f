// SPDX-License-Identifier: Apache-2.0
// hetsched-plan --for: what is found for a target is exported to it, and recorded; what cannot be is told.
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <doctest/doctest.h>

#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/plan/target.hpp>

#include "workplace.hpp"

namespace {

using hetsched::test::workplace;
using json = nlohmann::json;

struct place : workplace {
  place() {
    put("m.json", R"({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 2048, "num_attention_heads": 16,
      "intermediate_size": 5504, "vocab_size": 32000, "max_position_embeddings": 1024, "torch_dtype": "bfloat16"})");
    put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
      {"name": "old", "device": "RTX3090", "nodes": 1, "devices_per_node": 2,
       "intra_node": {"gbit_per_s": 100, "latency_us": 10}},
      {"name": "new", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4,
       "intra_node": {"gbit_per_s": 2400, "latency_us": 5}}],
      "links": [{"between": ["old", "new"], "gbit_per_s": 25, "latency_us": 30}]})");
  }
  [[nodiscard]] auto plan(const std::string& options) const {
    return run("hetsched-plan --cluster c.json --model m.json --global-batch 32 --microbatch-size 4 " + options);
  }
};

}  // namespace

TEST_CASE("hetsched-plan --for: the plan goes to the target as it is, at no less than a free one costs under the same stack") {
  const place w;
  for (const auto& t : hetsched::plan_targets()) {
    CAPTURE(t.name);
    const auto found = w.plan("--for " + t.name + " --out p.json");
    CAPTURE(found.errors);
    REQUIRE(found.status == 0);
    CHECK(found.output.find("\ntarget ") != std::string::npos);
    CHECK(found.output.find("that " + t.name + " runs") != std::string::npos);
    const auto p = hetsched::read_plan(w.path("p.json")).plan;
    CHECK(p.setting.target == t.name);
    REQUIRE(p.setting.stack);
    CHECK(p.setting.stack->name == t.stack);
    CHECK(hetsched::gaps(p, t).empty());
    const auto free = w.plan("--stack " + t.stack + " --granularity " + p.setting.granularity + " --out free.json");
    REQUIRE(free.status == 0);
    CHECK(hetsched::read_plan(w.path("free.json")).plan.predicted.iteration_s <= p.predicted.iteration_s * (1 + 1e-9));
    CHECK(free.output.find("\nruns in ") != std::string::npos);
    if (t.name == "hetsched") continue;
    const auto exported = w.run("hetsched-export --plan p.json --cluster c.json --to " + t.name + " --out " + t.name);
    CAPTURE(exported.errors);
    CHECK(exported.status == 0);
    if (t.name == "megatron" || t.name == "torch") CHECK(exported.errors == "");  // nor is anything left to its own way
  }
  CHECK(w.get("megatron/launch.sh").find("--grad-reduce-in-bf16") == std::string::npos);  // as its stack holds fp32 gradients
}

TEST_CASE("hetsched-plan --for: pipelines that are copies of one, where links are slow") {
  const place w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5},
     "inter_node": {"gbit_per_s": 200, "latency_us": 20}},
    {"name": "b", "device": "A100-SXM4-80GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5},
     "inter_node": {"gbit_per_s": 200, "latency_us": 20}}],
    "links": [{"between": ["a", "b"], "gbit_per_s": 10, "latency_us": 20}]})");
  for (const std::string name : {"megatron", "torch", "deepspeed"}) {
    CAPTURE(name);
    REQUIRE(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 128 --for " + name + " --out p.json").status ==
            0);
    const auto p = hetsched::read_plan(w.path("p.json")).plan;
    CHECK(p.pipelines.size() > 1);
    REQUIRE(p.evidence);
    CHECK(p.evidence->objective_bound < 0.99 * p.evidence->objective_value);  // what copies take is not proven
    CHECK_FALSE(p.evidence->complete);
    CHECK(hetsched::gaps(p, *hetsched::find_plan_target(name)).empty());
    const auto uniform = w.run("hetsched-plan --cluster c.json --model m.json --global-batch 128 --planner uniform --for " +
                               name + " --out u.json");
    REQUIRE(uniform.status == 0);
    CHECK(p.predicted.iteration_s <= hetsched::read_plan(w.path("u.json")).plan.predicted.iteration_s * (1 + 1e-9));
    CHECK(w.run("hetsched-export --plan p.json --cluster c.json --to " + name + " --out x-" + name).status == 0);
    const auto ranks = json::parse(w.get("x-" + name + "/ranks.json"))["ranks"];
    std::size_t devices = 0;
    for (const auto& line : p.pipelines)
      for (const auto& s : line.stages) devices += static_cast<std::size_t>(s.degrees.device_count());
    CHECK(ranks.size() == devices);
  }
  // Ranks that wait for what they send over the slow link are slower.
  const auto held_up =
      w.run("hetsched-plan --cluster c.json --model m.json --global-batch 128 --for torch --sends blocking --json");
  const auto told = json::parse(held_up.output);
  CHECK(told["iteration_with_sends_s"].get<double>() > 1.2 * told["plan"]["predicted"]["iteration_s"].get<double>());
  CHECK(w.plan("--sends grouped").output.find("with grouped sends an iteration takes ") != std::string::npos);
}

TEST_CASE("hetsched-plan --for: devices that no target takes together are not in one plan, which exports") {
  const place w;
  // V100 have no bf16, and the two A100 are not joined by NCCL. Their stages would share hosts in any order.
  const std::string cluster = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "v", "device": "V100-SXM2-32GB", "nodes": 2, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5},
     "inter_node": {"gbit_per_s": 100, "latency_us": 10}},
    {"name": "a", "device": "A100-SXM4-40GB", "nodes": 2, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5},
     "inter_node": {"gbit_per_s": 100, "latency_us": 10, "nccl": false}}],
    "links": [{"between": ["v", "a"], "gbit_per_s": 25, "latency_us": 30}]})";
  w.put("c.json", cluster);
  for (const std::string name : {"megatron", "torch", "torchtitan", "flagscale", "deepspeed"})
    for (const std::string budget : {"", " --time-budget 0"}) {
      CAPTURE(name);
      const auto found = w.plan("--for " + name + budget + " --out p.json");
      CAPTURE(found.errors);
      REQUIRE(found.status == 0);
      const auto p = hetsched::read_plan(w.path("p.json")).plan;
      std::set<std::pair<int, int>> hosts;
      std::set<int> kinds;
      for (const auto& s : p.pipelines.at(0).stages)
        for (const auto& g : s.devices) {
          kinds.insert(g.mesh.subcluster);
          hosts.emplace(g.mesh.subcluster, g.first_device / (g.mesh.subcluster == 0 ? 4 : 2));
        }
      if (name != "torch") CHECK(kinds.size() == 1);
      if (name == "torchtitan") CHECK(kinds == std::set{1});
      if (name != "flagscale") CHECK(hosts.count({1, 0}) + hosts.count({1, 1}) <= 1);
      const auto exported = w.run("hetsched-export --plan p.json --cluster c.json --to " + name + " --out x");
      CAPTURE(exported.errors);
      CHECK(exported.status == 0);
    }
  const auto all = w.plan("--for megatron --use-all-devices --out all.json");
  CHECK(all.status == 1);
  CHECK(all.errors.find("all devices are to be used, and with those of ") != std::string::npos);
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "v", "device": "V100-SXM2-32GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}}]})");
  const auto none = w.plan("--for torchtitan --out none.json");
  CHECK(none.status == 1);
  CHECK(none.errors.find("torchtitan can run none: no device computes in fp32, tf32 or bf16") != std::string::npos);
  CHECK(none.errors.find("but stage 0: devices that compute in fp16") != std::string::npos);
}

TEST_CASE("hetsched-plan --for: a target of one's own, and its stack unless another is asked for") {
  const place w;
  w.put("t.json", R"({"format": "hetsched/target", "version": 1, "name": "ours", "like": "megatron", "stack": "torchtitan",
    "most": {"tensor": 1}, "schedules": ["gpipe"]})");
  const auto found = w.plan("--for t.json --json");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  const auto p = json::parse(found.output)["plan"];
  CHECK(p["setting"]["target"] == "ours");
  CHECK(p["setting"]["stack"] == "torchtitan");
  CHECK(p["pipelines"][0]["schedule"]["name"] == "gpipe");
  for (const auto& s : p["pipelines"][0]["stages"]) CHECK(s["degrees"]["tensor"] == 1);
  const auto other = w.plan("--for t.json --stack ddp --json");
  REQUIRE(other.status == 0);
  CHECK(json::parse(other.output)["plan"]["setting"]["stack"] == "ddp");
  // With no time at all, too.
  const auto soon = w.plan("--for megatron --time-budget 0 --out p.json");
  REQUIRE(soon.status == 0);
  CHECK(hetsched::gaps(hetsched::read_plan(w.path("p.json")).plan, *hetsched::find_plan_target("megatron")).empty());
}

TEST_CASE("hetsched-plan --for: what there is no plan for, and what does not go together") {
  const place w;
  w.put("t.json", R"({"format": "hetsched/target", "version": 1, "name": "small", "like": "torch", "stack": "deepspeed",
    "most": {"data": 8, "context": 1, "tensor": 1, "expert": 1}})");
  w.put("big.json", R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16384, "num_attention_heads": 128,
    "intermediate_size": 65536, "vocab_size": 8000, "max_position_embeddings": 1024, "torch_dtype": "bfloat16"})");
  const auto none =
      w.run("hetsched-plan --cluster c.json --model big.json --global-batch 32 --for t.json --stack hetsched --out p.json");
  CAPTURE(none.errors);
  CHECK(none.status == 1);
  CHECK(none.errors.find("small can run none: ") != std::string::npos);
  CHECK(none.errors.find("; without that: ") != std::string::npos);
  CHECK(w.files().count("p.json") == 0);
  const auto refused = [&](const std::string& options, const std::string& why) {
    const auto r = w.plan(options);
    CAPTURE(options);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(why) != std::string::npos);
  };
  refused("--objective throughput --sends blocking", "--sends: is for training");
  refused("--sends sometimes", "--sends");
  refused("--for megatorn", "did you mean \"megatron\"");
  refused("--for megatron --planner parallel_pipelines", "planner parallel_pipelines makes several");
  refused("--for megatron --schedule zb_h1", "does not run schedule zb_h1");
  refused("--for megatron --warmup eager", "does not run eager_1f1b");
  refused("--for megatron --granularity sublayer", "cuts between blocks");
  refused("--for megatron --mixed-stages", "mixed stages");
  refused("--for megatron --frontier f.svg", "--frontier");
}

TEST_CASE("hetsched-plan --for: a first plan that is hard to find is waited for") {
  const place w;
  // 18 bytes for each of 70e9 parameters, of which nothing is shared out, on 48 GPUs of 80 GB.
  w.put("m.json", R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16"})");
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "h", "device": "H100-SXM5-80GB", "nodes": 2, "devices_per_node": 8,
     "intra_node": {"gbit_per_s": 3600, "latency_us": 5}, "inter_node": {"gbit_per_s": 400, "latency_us": 10}},
    {"name": "a", "device": "A100-SXM4-80GB", "nodes": 4, "devices_per_node": 8,
     "intra_node": {"gbit_per_s": 2400, "latency_us": 5}, "inter_node": {"gbit_per_s": 200, "latency_us": 10}}],
    "links": [{"between": ["a", "h"], "gbit_per_s": 100, "latency_us": 20}]})");
  const auto found =
      w.run("hetsched-plan --cluster c.json --model m.json --global-batch 256 --for torch --time-budget 0 --out p.json");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  CHECK(hetsched::gaps(hetsched::read_plan(w.path("p.json")).plan, *hetsched::find_plan_target("torch")).empty());
}
