// SPDX-License-Identifier: Apache-2.0
// hetsched-plan --for: what is found for a target is exported to it, and recorded; what cannot be is told.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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
    const auto free =
        w.plan("--stack " + t.stack + " --sends asynchronous --granularity " + p.setting.granularity + " --out free.json");
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

TEST_CASE("hetsched-plan --planner uniform: its stages are as long as each other under sends that hold ranks up, too") {
  const place w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "a", "device": "RTX3090", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 100, "latency_us": 10}},
    {"name": "b", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 2,
     "intra_node": {"gbit_per_s": 100, "latency_us": 10}}], "links": [{"between": ["a", "b"], "gbit_per_s": 2, "latency_us": 50}]})");
  w.put("m.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 12, "hidden": 2048, "heads": 16,
    "vocab": 50000, "sequence": 1024, "dtype": "fp16", "norm": "rms", "tie": false}})");
  for (const std::string sends : {"asynchronous", "blocking"}) {
    CAPTURE(sends);
    REQUIRE(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 1 --planner uniform "
                  "--granularity block --stack megatron --out p.json --sends " +
                  sends)
                .status == 0);
    for (const auto& line : hetsched::read_plan(w.path("p.json")).plan.pipelines)
      for (const auto& s : line.stages) {
        const auto blocks = [](const hetsched::layer_range& r) { return std::min(r.last, 13) - std::max(r.first, 1); };
        CHECK(blocks(s.layers) == blocks(line.stages.front().layers));
      }
  }
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
    REQUIRE(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 128 --sends asynchronous --for " + name +
                  " --out p.json")
                .status == 0);
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
  // Where ranks wait for what they send, another plan than p.json is better for them; what it is searched for bounds it.
  const auto waits = json::parse(
      w.run("hetsched-plan --cluster c.json --model m.json --global-batch 128 --for deepspeed --json --out q.json").output);
  const auto of_p = json::parse(w.run("hetsched-predict --cluster c.json --model m.json --plan p.json --json").output);
  REQUIRE(of_p["sends"] == "blocking");
  const double sent_s = waits.value("iteration_with_sends_s", waits["plan"]["predicted"]["iteration_s"].get<double>());
  CHECK(sent_s < 0.99 * of_p["iteration_with_sends_s"].get<double>());
  const auto q = hetsched::read_plan(w.path("q.json")).plan;
  CHECK(q.predicted.iteration_s >= hetsched::read_plan(w.path("p.json")).plan.predicted.iteration_s);
  CHECK(q.evidence->objective_bound <= sent_s);
  CHECK(q.evidence->objective_value == doctest::Approx(q.predicted.iteration_s));
  CHECK(hetsched::gaps(q, *hetsched::find_plan_target("deepspeed")).empty());
  CHECK(json::parse(w.run("hetsched-predict --cluster c.json --model m.json --plan q.json --json").output)
            .value("iteration_with_sends_s", q.predicted.iteration_s) == doctest::Approx(sent_s));
  // Ranks that wait for what they send over the slow link are slower.
  CHECK(of_p["iteration_with_sends_s"].get<double>() > 1.2 * of_p["iteration_s"].get<double>());
  const auto grouped = w.plan("--sends grouped").output;
  const auto end = grouped.find("with grouped sends an iteration takes ");
  REQUIRE(end != std::string::npos);
  const auto seconds = grouped.substr(end + 38, grouped.find('\n', end) - end - 38);
  CHECK(grouped.find(", with sends " + seconds + ", no plan below ") != std::string::npos);
}

TEST_CASE("hetsched-plan --for: where a target runs one pipeline, single devices and equal parts are searched, too") {
  const place w;
  const auto part = [](const std::string& name, const std::string& device, int nodes, int between) {
    return R"({"name": ")" + name + R"(", "device": ")" + device + R"(", "nodes": )" + std::to_string(nodes) +
           R"(, "devices_per_node": 1, "intra_node": {"gbit_per_s": 256, "latency_us": 5},
           "inter_node": {"gbit_per_s": )" +
           std::to_string(between) + R"(, "latency_us": 30}})";
  };
  const auto link = [](const std::string& a, const std::string& b, int rate) {
    return R"({"between": [")" + a + R"(", ")" + b + R"("], "latency_us": 50, "gbit_per_s": )" + std::to_string(rate) + "}";
  };
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)" + part("v", "V100-SXM2-16GB", 2, 1) + ", " +
                      part("r", "RTX3090", 2, 100) + ", " + part("a", "A100-SXM4-40GB", 2, 10) + ", " +
                      part("s", "RTX4060", 1, 100) + R"(], "links": [)" + link("r", "v", 1) + ", " + link("a", "v", 25) + ", " +
                      link("a", "r", 5) + ", " + link("s", "v", 1) + ", " + link("s", "r", 5) + ", " + link("s", "a", 100) +
                      "]}");
  w.put("m.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 4, "hidden": 2048, "heads": 16,
    "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})");
  const auto iteration_of = [&](const std::string& options) {
    const auto found =
        w.run("hetsched-plan --cluster c.json --model m.json --global-batch 16 --for torch --out p.json" + options);
    CAPTURE(found.errors);
    REQUIRE(found.status == 0);
    const auto p = hetsched::read_plan(w.path("p.json")).plan;
    CHECK(p.evidence->objective_bound <= p.evidence->objective_value);
    CHECK(p.evidence->objective_value == p.predicted.iteration_s);
    return p.predicted.iteration_s;
  };
  const double own_s = iteration_of("");
  CHECK(own_s <= iteration_of(" --planner placement") * (1 + 1e-9));
  CHECK(own_s <= iteration_of(" --planner hetauto_exact") * (1 + 1e-9));
  // A rule that is asked for is kept, also for a target that takes any schedule.
  w.put("t.json", R"({"format": "hetsched/target", "version": 1, "name": "mine", "several_pipelines": false})");
  const auto ruled = w.run(
      "hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 2 --for t.json --warmup 1f1b --out "
      "r.json");
  CAPTURE(ruled.errors);
  REQUIRE(ruled.status == 0);
  for (const auto& line : hetsched::read_plan(w.path("r.json")).plan.pipelines) CHECK(line.schedule.name == "1f1b");
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

TEST_CASE("hetsched-plan --for: a head that predicts several tokens goes to Megatron-LM, and torch says that it has none") {
  const place w;
  w.put("further.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 8, "hidden": 2048, "heads": 16,
    "vocab": 32000, "sequence": 1024, "dtype": "bf16", "norm": "rms", "tie": false, "further_tokens": 2}})");
  const std::string plan = "hetsched-plan --cluster c.json --model further.json --global-batch 8 --microbatch-size 4 --for ";
  const auto found = w.run(plan + "megatron --out p.json");
  CAPTURE(found.errors);
  REQUIRE(found.status == 0);
  REQUIRE(w.run("hetsched-export --plan p.json --to megatron --out m").status == 0);
  CHECK(w.get("m/pipeline_layout.txt").ends_with("m*2L\n"));
  CHECK(w.get("m/launch.sh").find("--mtp-num-layers 2 ") != std::string::npos);
  // To predict it with a head of another number of tokens is told, either way; with its own it is not.
  REQUIRE(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 8 --microbatch-size 4 --out one.json").status == 0);
  for (const auto& [planned, model, told] : {std::tuple{"p.json", "further.json", ""},
                                             {"one.json", "m.json", ""},
                                             {"p.json", "m.json", "predicts 2 further tokens"},
                                             {"one.json", "further.json", "predicts 0 further tokens"}}) {
    CAPTURE(planned);
    CAPTURE(model);
    const auto errors = w.run(std::string("hetsched-predict --cluster c.json --plan ") + planned + " --model " + model).errors;
    CHECK((errors.find("further tokens") != std::string::npos) == !std::string(told).empty());
    CHECK(errors.find(told) != std::string::npos);
  }
  const auto none = w.run(plan + "torch");
  CHECK(none.status == 1);
  CHECK(none.complaints().find("torch can run none: the model's head predicts further tokens") != std::string::npos);
}

TEST_CASE("hetsched-plan --for: what there is no plan for, and what does not go together") {
  const place w;
  w.put("t.json", R"({"format": "hetsched/target", "version": 1, "name": "small", "like": "torch", "stack": "deepspeed",
    "zero": [0], "most": {"data": 8, "context": 1, "tensor": 1, "expert": 1}})");
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

namespace {

std::string subcluster(const std::string& name, const std::string& device, int nodes, int each, int inside, int between) {
  return R"({"name": ")" + name + R"(", "device": ")" + device + R"(", "nodes": )" + std::to_string(nodes) +
         R"(, "devices_per_node": )" + std::to_string(each) + R"(, "intra_node": {"gbit_per_s": )" + std::to_string(inside) +
         R"(, "latency_us": 5}, "inter_node": {"gbit_per_s": )" + std::to_string(between) + R"(, "latency_us": 10}})";
}

/// Subclusters, any two of which are joined alike.
std::string joined(const std::vector<std::string>& names, const std::vector<std::string>& all, int gbit, int us) {
  std::string text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)", links;
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += (i == 0 ? "" : ", ") + all[i];
    for (std::size_t j = 0; j < i; ++j)
      links += (links.empty() ? R"({"between": [")" : R"(, {"between": [")") + names[j] + R"(", ")" + names[i] +
               R"("], "gbit_per_s": )" + std::to_string(gbit) + R"(, "latency_us": )" + std::to_string(us) + "}";
  }
  return text + R"(], "links": [)" + links + "]}";
}

std::string llama(int layers, int hidden, int heads, int inner, int vocabulary, int sequence, bool tied = false) {
  return R"({"model_type": "llama", "num_hidden_layers": )" + std::to_string(layers) + R"(, "hidden_size": )" +
         std::to_string(hidden) + R"(, "num_attention_heads": )" + std::to_string(heads) +
         R"(, "num_key_value_heads": 8, "intermediate_size": )" + std::to_string(inner) + R"(, "vocab_size": )" +
         std::to_string(vocabulary) + R"(, "max_position_embeddings": )" + std::to_string(sequence) +
         R"(, "torch_dtype": "bfloat16", "tie_word_embeddings": )" + (tied ? "true}" : "false}");
}

/// The integers of a text, but those behind a word's letters.
std::vector<int> numbers(const std::string& text) {
  std::vector<int> all;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(text[i]))) {
      all.push_back(std::stoi(text.substr(i)));
      while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]))) ++i;
    }
  return all;
}

/// What follows a word up to the end of its line.
std::string behind(const std::string& text, const std::string& word) {
  const auto begin = text.find(word);
  REQUIRE(begin != std::string::npos);
  return text.substr(begin + word.size(), text.find('\n', begin) - begin - word.size());
}

/// Blocks by stage of a layout of Megatron-LM of one stage a rank: E, t, L, x*n and (x|)*n.
std::vector<int> blocks_of(const std::string& layout) {
  std::vector<int> all{0};
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == '(') {
      const auto end = layout.find(')', i);
      const auto inner = blocks_of(layout.substr(i + 1, end - i - 2)).front();
      all.insert(all.end() - 1, static_cast<std::size_t>(std::stoi(layout.substr(end + 2))), inner);
      i = layout.find_first_not_of("0123456789", end + 2) - 1;
    } else if (layout[i] == 't') {
      const bool more = i + 1 < layout.size() && layout[i + 1] == '*';
      all.back() += more ? std::stoi(layout.substr(i + 2)) : 1;
    } else if (layout[i] == '|') {
      all.push_back(0);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("hetsched-plan --for: what is exported for six clusters and three targets is the plan") {
  CHECK(blocks_of("Et|(t*3|)*4,t*2|L") == std::vector{1, 3, 3, 3, 3, 2, 0});
  const workplace w;
  const auto h100 = [](int nodes, int gbit) { return subcluster("h", "H100-SXM5-80GB", nodes, 8, 3600, gbit); };
  const auto a100 = [](const std::string& name, const std::string& size, int nodes) {
    return subcluster(name, "A100-SXM4-" + size, nodes, 8, 2400, 200);
  };
  const auto home = [](const std::string& name, const std::string& device) { return subcluster(name, device, 2, 1, 100, 1); };
  const auto seventy = llama(80, 8192, 64, 28672, 32000, 4096);
  const std::string gpt = R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 40, "hidden": 5120, "heads": 40,
    "vocab": 50257, "sequence": 2048, "dtype": "bf16"}})";
  const std::tuple<std::string, std::string, int> settings[] = {
      {joined({"h", "a"}, {h100(2, 400), a100("a", "80GB", 4)}, 100, 20), seventy, 256},
      {joined({"h", "a"}, {h100(16, 200), a100("a", "80GB", 32)}, 200, 20), llama(126, 16384, 128, 53248, 128256, 8192), 1024},
      {joined({"p", "q", "r"}, {a100("p", "80GB", 4), a100("q", "80GB", 4), a100("r", "40GB", 4)}, 5, 20000), gpt, 1024},
      {joined({"a", "b", "c", "d"},
              {home("a", "RTX4090"), home("b", "RTX3090"), home("c", "RTX3060-12GB"), home("d", "RTX4060Ti-16GB")}, 1, 50),
       llama(28, 3072, 24, 8192, 128256, 2048, true), 64},
      {joined({"h"}, {h100(1, 400)}, 0, 0), llama(32, 4096, 32, 14336, 128256, 8192), 256},
      {joined({"h"}, {h100(8, 400)}, 0, 0), seventy, 256}};
  for (const auto& [hosts, model, batch] : settings)
    for (const std::string name : {"megatron", "torch", "flagscale"}) {
      CAPTURE(hosts);
      CAPTURE(name);
      w.put("c.json", hosts);
      w.put("m.json", model);
      const auto found = w.run("hetsched-plan --cluster c.json --model m.json --global-batch " + std::to_string(batch) +
                               " --time-budget 0.05 --for " + name + " --out p.json");
      CAPTURE(found.errors);
      REQUIRE(found.status == 0);
      const auto exported = w.run("hetsched-export --plan p.json --cluster c.json --to " + name + " --out x");
      CAPTURE(exported.errors);
      REQUIRE(exported.status == 0);
      const auto p = hetsched::read_plan(w.path("p.json")).plan;
      const auto& line = p.pipelines.front();
      const auto copies = static_cast<int>(p.pipelines.size()), count = static_cast<int>(line.stages.size());
      int ranks = 0;
      std::vector<int> blocks;
      const int last = line.stages.back().layers.last - 1;
      for (const auto& s : line.stages) {
        ranks += copies * s.degrees.device_count();
        blocks.push_back(std::min(s.layers.last, last) - std::max(s.layers.first, 1));
      }
      const auto& first = line.stages.front().degrees;
      CHECK(json::parse(w.get("x/ranks.json"))["ranks"].size() == static_cast<std::size_t>(ranks));
      if (name == "torch") {
        const auto read = json::parse(w.get("x/stages.json"));
        CHECK(read["data"] == copies * first.data);
        CHECK(read["microbatches"] == line.microbatches);
        CHECK(read["microbatch_size"] == copies * line.microbatch_size);
        REQUIRE(read["stages"].size() == line.stages.size());
        for (std::size_t i = 0; i < line.stages.size(); ++i) {
          const auto& s = line.stages[i];
          CHECK(read["stages"][i]["first_layer"] == s.layers.first);
          CHECK(read["stages"][i]["last_layer"] == s.layers.last - 1);
          CHECK(read["stages"][i]["recompute"] == hetsched::name_of(s.recompute));
        }
      } else if (name == "megatron") {
        CHECK(blocks_of(w.get("x/pipeline_layout.txt")) == blocks);
        const auto launch = w.get("x/launch.sh");
        const auto flag = [&](const std::string& word) { return numbers(behind(launch, word)).at(0); };
        CHECK(flag("--tensor-model-parallel-size ") == first.tensor);
        CHECK(flag("--pipeline-model-parallel-size ") == count);
        CHECK(flag("--micro-batch-size ") == line.microbatch_size / first.data);
        CHECK(flag("--global-batch-size ") == batch);
        CHECK((launch.find("--recompute-granularity ") != std::string::npos) ==
              (line.stages.front().recompute != hetsched::recomputation::none));
      } else {
        const auto yaml = w.get("x/flagscale.yaml");
        CHECK(numbers(behind(yaml, "hetero_pipeline_layer_split: ")) == blocks);
        const auto meshes = numbers(behind(yaml, "hetero_process_meshes: "));  // tensor, context, expert, data, pipeline
        std::size_t stage = 0;
        for (std::size_t m = 0; m + 4 < meshes.size(); m += 5)
          for (int k = 0; k < meshes[m + 4]; ++k, ++stage) {
            REQUIRE(stage < line.stages.size());
            CHECK(meshes[m] == line.stages[stage].degrees.tensor);
            CHECK(meshes[m + 3] == line.stages[stage].degrees.data);
          }
        CHECK(stage == line.stages.size());
      }
    }
  // On the last of them, AMP's plan has room under 1F1B only.
  REQUIRE(
      w.run("hetsched-plan --cluster c.json --model m.json --global-batch 256 --planner amp --for torch --out p.json").status ==
      0);
  CHECK(hetsched::gaps(hetsched::read_plan(w.path("p.json")).plan, *hetsched::find_plan_target("torch")).empty());
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
