// SPDX-License-Identifier: Apache-2.0
// The commands as a user calls them: exit status, what they print, and which files they touch.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string cluster_text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
  {"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5},
   "inter_node": {"gbit_per_s": 100, "latency_us": 10}},
  {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 2400, "latency_us": 5},
   "inter_node": {"gbit_per_s": 100, "latency_us": 10}}],
  "links": [{"between": ["v", "a"], "gbit_per_s": 5, "latency_us": 100}]})";
const std::string model_text =
    R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 12, "hidden": 1024, "heads": 16,
  "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})";
const std::string pipeline_text = R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 64,
  "forward_s": [1, 1, 1, 1], "backward_s": [2, 2, 2, 2], "transfer_s": [0, 1.5, 0]})";

const std::string plan_command = "hetsched-plan --cluster cluster.json --model model.json --global-batch 32 ";

void fill(const workplace& w) {
  w.put("cluster.json", cluster_text);
  w.put("model.json", model_text);
  w.put("pipeline.json", pipeline_text);
}

}  // namespace

TEST_CASE("hetsched-plan writes a plan that hetsched-simulate plays as predicted") {
  const workplace w;
  fill(w);
  const auto planned = w.run(plan_command + "--microbatch-size 1 --out plan.json --report report.html --trace trace.json");
  CAPTURE(planned.errors);
  REQUIRE(planned.status == 0);
  // Its pipeline comes back to a.
  CHECK(planned.complaints().find("hetsched-plan: between v and a: 2 pairs of stages, each priced at the whole rate") == 0);
  CHECK(planned.output.find("period") != std::string::npos);
  CHECK(planned.output.find(" of 6 in use") != std::string::npos);
  CHECK(w.files() ==
        std::set<std::string>{"cluster.json", "model.json", "pipeline.json", "plan.json", "report.html", "trace.json"});

  const auto file = parse_plan(w.get("plan.json"), "plan.json");
  CHECK(file.plan.planner == "parallel_pipelines");
  CHECK(file.plan.pipelines.at(0).schedule.name == "exact_1f1b");
  CHECK(sample_count(file.plan) == 32);
  CHECK(file.subclusters == std::vector<std::string>{"v", "a"});
  CHECK(file.plan.evidence.value().objective_value == file.plan.predicted.iteration_s);
  CHECK(file.plan.evidence->objective_bound > 0);
  CHECK(file.plan.evidence->objective_bound <= file.plan.predicted.iteration_s);
  const auto& p = file.plan.predicted;
  CHECK(p.mfu > 0);
  CHECK(p.mfu < 1);
  CHECK(p.iteration_s >= p.lower_bound_s);
  for (const auto& s : file.plan.pipelines.at(0).stages) CHECK(s.memory_bytes <= s.memory_capacity_bytes);

  const auto played = w.run("hetsched-simulate --plan plan.json --json");
  REQUIRE(played.status == 0);
  const auto json = nlohmann::json::parse(played.output);
  CHECK(json.at("period_s").get<double>() == doctest::Approx(p.period_s));
  const double makespan_s = json.at("makespan_s"), bound_s = json.at("lower_bound_s");
  CHECK(makespan_s <= p.iteration_s * (1 + 1e-12));
  // A plan's bound counts the step of the optimizer too, on the first stage, which ends last.
  CHECK(bound_s < p.lower_bound_s);
  CHECK(p.lower_bound_s - bound_s <= (p.iteration_s - makespan_s) * (1 + 1e-12));
  std::vector<int> counts;  // of all pipelines, one after the other
  for (const auto& line : file.plan.pipelines)
    for (const auto& s : line.stages) counts.push_back(s.warmup);
  CHECK(json.at("warmup").get<std::vector<int>>() == counts);

  // One stage has no boundary.
  const bool several = std::any_of(file.plan.pipelines.begin(), file.plan.pipelines.end(),
                                   [](const auto& line) { return line.stages.size() > 1; });
  CHECK((w.get("report.html").find("Transports") != std::string::npos) == several);
  CHECK((w.get("report.html").find("hetsched-train --nccl: 2 channels, while transfers last 3% of the smallest GPU") !=
         std::string::npos) == several);

  const auto trace = nlohmann::json::parse(w.get("trace.json"));
  CHECK(trace.at("traceEvents").size() > 0);
  CHECK(w.get("report.html").starts_with("<!DOCTYPE html>"));
}

TEST_CASE("hetsched-plan hands its stages to any schedule, and hetsched-simulate plays it as written") {
  const workplace w;
  fill(w);
  REQUIRE(w.run(plan_command + "--planner interop_dp --out plain.json").status == 0);  // a single schedule is of one pipeline
  const double plain_s = parse_plan(w.get("plain.json"), "plain.json").plan.predicted.iteration_s;
  for (const std::string name : {"auto", "gpipe", "zb_h1"}) {
    CAPTURE(name);
    const auto planned =
        w.run(plan_command + "--schedule " + name + " --schedule-csv order.csv --out plan.json --report report.html");
    CAPTURE(planned.errors);
    REQUIRE(planned.status == 0);
    const auto p = parse_plan(w.get("plan.json"), "plan.json").plan;
    CHECK(p.pipelines.at(0).schedule.name == name);
    CHECK(p.predicted.lower_bound_s <= p.predicted.iteration_s);
    if (name == "auto") CHECK(p.predicted.iteration_s <= plain_s);
    for (const auto& s : p.pipelines.at(0).stages) CHECK(s.memory_bytes <= s.memory_capacity_bytes);
    for (const std::string& schedule : {name, std::string("@order.csv")}) {
      const auto played = w.run("hetsched-simulate --plan plan.json --json --schedule " + schedule);
      CAPTURE(played.errors);
      REQUIRE(played.status == 0);
      const auto json = nlohmann::json::parse(played.output);
      CHECK(json.at("makespan_s").get<double>() <= p.predicted.iteration_s * (1 + 1e-12));
      CHECK(json.at("makespan_s").get<double>() >= p.predicted.iteration_s * 0.9);  // less the optimizer step
      CHECK(json.at("warmup").get<std::vector<int>>() == warmups(p.pipelines.at(0)));
    }
  }
}

TEST_CASE("hetsched-plan cuts layers for the schedule where that is faster") {
  const workplace w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "a", "device": "A100-SXM4-80GB",
    "nodes": 4, "devices_per_node": 1, "intra_node": {"gbit_per_s": 1200, "latency_us": 5},
    "inter_node": {"gbit_per_s": 100, "latency_us": 20}}]})");
  // Untied: what shares parameters wants its ends on one device.
  w.put("m.json", R"({"model_type": "gpt2", "n_layer": 24, "n_embd": 2048, "n_head": 16, "vocab_size": 50257, "n_positions": 1024,
    "torch_dtype": "float16", "tie_word_embeddings": false})");
  const std::string plan =
      "hetsched-plan --cluster c.json --model m.json --global-batch 16 --microbatch-size 2 --planner interop_dp ";
  REQUIRE(w.run(plan + "--out plain.json").status == 0);
  REQUIRE(w.run(plan + "--schedule auto --out auto.json").status == 0);
  const auto same_layers = nlohmann::json::parse(w.run("hetsched-simulate --plan plain.json --schedule auto --json").output);
  const auto own = parse_plan(w.get("auto.json"), "auto.json").plan;
  const auto& stages = own.pipelines.at(0).stages;
  const double computing_s = own.predicted.iteration_s - stages.front().update_s;
  CHECK(computing_s < 0.97 * same_layers.at("makespan_s").get<double>());
  for (const auto& s : stages) CHECK(s.memory_bytes <= s.memory_capacity_bytes);
}

TEST_CASE("hetsched-plan finds other devices for the schedule where that is faster") {
  const workplace w;
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "a", "device": "T4", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 240, "latency_us": 5}},
    {"name": "b", "device": "V100-SXM2-32GB", "nodes": 1, "devices_per_node": 1, "intra_node": {"gbit_per_s": 240, "latency_us": 5}},
    {"name": "c", "device": "A100-SXM4-40GB", "nodes": 2, "devices_per_node": 2, "intra_node": {"gbit_per_s": 240, "latency_us": 5},
     "inter_node": {"gbit_per_s": 50, "latency_us": 10}}],
    "links": [{"between": ["a", "b"], "gbit_per_s": 5, "latency_us": 50}, {"between": ["a", "c"], "gbit_per_s": 5, "latency_us": 50},
              {"between": ["b", "c"], "gbit_per_s": 5, "latency_us": 50}]})");
  w.put("m.json", R"({"model_type": "gpt2", "n_layer": 20, "n_embd": 1024, "n_head": 16, "vocab_size": 32000, "n_positions": 1024,
    "torch_dtype": "float16", "tie_word_embeddings": false})");
  REQUIRE(w.run("hetsched-plan --cluster c.json --model m.json --global-batch 16 --schedule auto --out auto.json").status == 0);
  const auto found = parse_plan(w.get("auto.json"), "auto.json").plan;
  CHECK(found.predicted.iteration_s < 0.056);  // 0.0584 on the devices that are best under 1F1B
  for (const auto& s : found.pipelines.at(0).stages) CHECK(s.memory_bytes <= s.memory_capacity_bytes);
}

TEST_CASE("a plan does not depend on the number of threads or the seed") {
  const workplace w;
  fill(w);
  CHECK(w.run(plan_command + "--microbatch-size 2 --out one.json").status == 0);
  CHECK(w.run(plan_command + "--microbatch-size 2 --threads 3 --seed 7 --out three.json").status == 0);
  CHECK(w.get("one.json") == w.get("three.json"));
}

TEST_CASE("hetsched-plan without --planner finds what the planner of HetAuto's space finds on a small cluster") {
  const workplace w;
  w.put("cluster.json",
        R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "s0", "device": "A10", "nodes": 2,
    "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 5}, "inter_node": {"gbit_per_s": 25, "latency_us": 20}}],
    "links": []})");
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 32, "hidden": 2048, "heads": 16,
    "vocab": 50257, "sequence": 1024, "dtype": "fp16"}})");
  const auto iteration = [&](const std::string& planner) {
    REQUIRE(w.run(plan_command + "--microbatch-size 1 --out plan.json " + planner).status == 0);
    return parse_plan(w.get("plan.json"), "plan.json").plan.predicted.iteration_s;
  };
  const double uniform = iteration("--planner hetauto_exact");
  CHECK(iteration("--planner interop_dp") <= uniform);
  CHECK(iteration("") <= uniform);
}

TEST_CASE("hetsched-plan --explain counts the plans that each principle leaves") {
  const workplace w;
  fill(w);
  const auto told = w.run(plan_command + "--planner hetauto_exact --explain");
  REQUIRE(told.status == 0);
  double before = std::numeric_limits<double>::infinity();
  for (const std::string line : {"  cut anywhere", "  1. ", "  2. ", "  3. ", "  4. "}) {
    CAPTURE(line);
    const auto begin = told.output.find(line);
    REQUIRE(begin != std::string::npos);
    const auto end = told.output.find('\n', begin), word = told.output.rfind(' ', end);
    const double count = std::stod(told.output.substr(word + 1, end - word));
    CHECK(count >= 1);
    CHECK(count <= before);
    before = count;
  }
  const auto none = w.run(plan_command + "--planner interop_dp --explain");
  CHECK(none.status == 2);
  CHECK(none.errors.find("--explain") != std::string::npos);
}

TEST_CASE("predictions do not change, to the bit, where another device is added, and say what they rest on") {
  const workplace w;
  const auto file = [](const std::string& subclusters, const std::string& links) {
    return R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)" + subclusters + R"(], "links": [)" + links + "]}";
  };
  const auto node = [](const std::string& name, const std::string& device) {
    return R"({"name": ")" + name + R"(", "device": ")" + device + R"(", "nodes": 1, "devices_per_node": 2,
      "intra_node": {"gbit_per_s": 1200, "latency_us": 5}, "inter_node": {"gbit_per_s": 100, "latency_us": 10}})";
  };
  w.put("model.json", model_text);
  for (const auto& [device, other] : {std::pair{"A100-SXM4-40GB", "Ascend910B2(A2)"}, {"Ascend910B2(A2)", "A100-SXM4-40GB"}}) {
    CAPTURE(device);
    const std::string link = R"({"between": ["x", "y"], "gbit_per_s": 25, "latency_us": 20})";
    w.put("alone.json", file(node("x", device), ""));
    w.put("both.json", file(node("x", device) + ", " + node("y", other), link));
    REQUIRE(w.run("hetsched-plan --cluster alone.json --model model.json --global-batch 16 --out plan.json").status == 0);
    const auto seconds = [&](const std::string& cluster) {
      const auto r = w.run("hetsched-predict --cluster " + cluster + " --model model.json --plan plan.json --json");
      CAPTURE(r.errors);
      REQUIRE(r.status == 0);
      return nlohmann::json::parse(r.output).at("iteration_s").get<double>();
    };
    CHECK(seconds("alone.json") == seconds("both.json"));
    const auto r =
        w.run("hetsched-plan --cluster both.json --model model.json --global-batch 16 --planner interop_dp --out both-plan.json");
    CHECK(r.output.find("\nprecision     fp16") != std::string::npos);
    CHECK(r.output.find("\ncosts         tile ") != std::string::npos);
    const std::string whole = device[0] == 'A' && device[1] == 's' ? "x" : "y";
    CHECK(r.output.find("from datasheets; " + whole + " priced by whole layers") != std::string::npos);
    CHECK(parse_plan(w.get("both-plan.json"), "p").plan.setting.whole_layers == std::vector<std::string>{whole});
  }
}

TEST_CASE("what a model, a device or a plan lacks is told where it is") {
  const workplace w;
  w.put("cluster.json", R"({"format": "hetsched/cluster", "version": 1, "devices": {"Studio":
    {"peak_tflops": {"fp16": 54, "fp32": 27}, "memory_gib": 140, "memory_bandwidth_gb_per_s": 800}}, "subclusters":
    [{"name": "desk", "device": "Studio", "nodes": 1, "devices_per_node": 4, "intra_node": {"gbit_per_s": 1200, "latency_us": 5}}]})");
  w.put("bert.json", R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2,
    "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2})");
  w.put("gpt.json",
        R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024})");
  const auto says = [&](const std::string& command, const std::string& text) {
    const auto r = w.run(command);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(text) != std::string::npos);
  };
  const std::string plan = "hetsched-plan --cluster cluster.json --out plan.json --model ";
  says(plan + "bert.json --global-batch 8 --sequence 4096", "found 512 learned positions, expected at least the 4096 tokens");
  says(plan + "gpt.json --objective latency",
       "device Studio of subcluster desk lacks multiprocessors, l2_mib, clock_mhz, optional keys otherwise");
  REQUIRE(w.run(plan + "gpt.json --global-batch 8 --sequence 512 --planner hexiscale").status == 0);
  w.put("plan.json", R"({"format": "hetsched/plan", "version": 2, "pipelines": [{"microbatches": 2, "microbatch_size": 3,
    "stages": [{"layers": [0, 7], "degrees": {"data": 2, "tensor": 2},
    "devices": [{"subcluster": "desk", "first_device": 0, "nodes": 1, "devices_per_node": 4}]}],
    "schedule": {"name": "1f1b"}}]})");
  says("hetsched-predict --cluster cluster.json --model gpt.json --plan plan.json",
       "/pipelines/0/microbatch_size: found 3, expected a multiple of the data degree of stage 0, 2");
}

TEST_CASE("a config.json that stores weights in float32 is priced so, and the commands say it") {
  const workplace w;
  w.put("cluster.json", cluster_text);
  w.put("config.json", R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 1024, "n_head": 16, "vocab_size": 50257,
    "n_positions": 1024, "torch_dtype": "float32"})");
  const std::string plan =
      "hetsched-plan --cluster cluster.json --model config.json --global-batch 8 --planner hexiscale --out p.json";
  const auto silent = w.run(plan), told = w.run(plan + " --dtype bf16");
  CHECK(silent.errors.find("config.json stores weights in float32") != std::string::npos);
  CHECK(silent.output.find("\nprecision     fp32") != std::string::npos);
  CHECK(told.errors.find("stores weights") == std::string::npos);
  CHECK(told.output.find("\nprecision     bf16") != std::string::npos);
}

TEST_CASE("hetsched-plan --without: what the plan is on the cluster that is left") {
  const workplace w;
  fill(w);
  // Two nodes of v, so that one device less leaves a node and a part of one.
  auto two = cluster_text;
  two.replace(two.find("\"nodes\": 1"), 10, "\"nodes\": 2");
  w.put("cluster.json", two);
  // Sums of parameters in copies are priced over the network where a subcluster has one, also between devices of one node.
  w.put("model.json", R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 1024, "n_head": 16, "vocab_size": 50257,
    "n_positions": 1024, "tie_word_embeddings": false})");
  const auto r = w.run(plan_command + "--microbatch-size 1 --planner interop_dp --without v:4,v,a:all,v:8");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  const std::string v1 = R"({"name": "v", "device": "V100-SXM2-16GB", "nodes": 1, "devices_per_node": 4,
    "intra_node": {"gbit_per_s": 1200, "latency_us": 5}, "inter_node": {"gbit_per_s": 100, "latency_us": 10}})";
  auto part = v1, a = v1;
  part.replace(part.find("\"v\""), 3, "\"v rest\"").replace(part.find("_node\": 4"), 9, "_node\": 3");
  a.replace(a.find("\"v\""), 3, "\"a\"").replace(a.find("V100-SXM2-16GB"), 14, "A100-SXM4-40GB");
  a.replace(a.find("_node\": 4"), 9, "_node\": 2").replace(a.find("1200"), 4, "2400");
  const auto link = [](const char* x, const char* y, const char* rest) {
    return std::string(R"({"between": [")") + x + R"(", ")" + y + R"("], )" + rest + "}";
  };
  const std::string far = R"("gbit_per_s": 5, "latency_us": 100)", near = R"("gbit_per_s": 100, "latency_us": 10)";
  const auto file = [](const std::string& subclusters, const std::string& links) {
    return R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)" + subclusters + R"(], "links": [)" + links + "]}";
  };
  auto two_v = v1;
  two_v.replace(two_v.find("\"nodes\": 1"), 10, "\"nodes\": 2");
  const std::pair<std::string, std::string> left[] = {
      {"4 of 8 devices of v ", file(v1 + ", " + a, link("v", "a", far.c_str()))},
      {"1 of 8 devices of v ",
       file(v1 + ", " + a + ", " + part,
            link("v", "a", far.c_str()) + ", " + link("v", "v rest", near.c_str()) + ", " + link("v rest", "a", far.c_str()))},
      {"2 of 2 devices of a ", file(two_v, "")},
      {"8 of 8 devices of v ", file(a, "")}};
  for (const auto& [name, text] : left) {
    CAPTURE(name);
    w.put("left.json", text);
    const auto alone = w.run(
        "hetsched-plan --cluster left.json --model model.json --global-batch 32 --microbatch-size 1 "
        "--planner interop_dp --out left-plan.json");
    CAPTURE(alone.errors);
    REQUIRE(alone.status == 0);
    const auto line = r.output.substr(r.output.find("\n" + name) + 1);
    CHECK(line.substr(0, line.find('\n'))
              .find(format_seconds(parse_plan(w.get("left-plan.json"), "p").plan.predicted.iteration_s)) != std::string::npos);
    CHECK(r.output.find("\nwithout " + name.substr(0, name.size() - 1) + ":\nstage ") != std::string::npos);
  }
  // The plan that is left is one for the whole cluster: others find it there, and its prediction again.
  for (const char* lost : {"v", "v:2", "v:5", "v:all", "a"}) {
    CAPTURE(lost);
    const auto written = w.run(plan_command + "--microbatch-size 1 --planner interop_dp --out left.json --without " + lost);
    CAPTURE(written.errors);
    REQUIRE(written.status == 0);
    const auto p = parse_plan(w.get("left.json"), "p").plan;
    const auto again = w.run("hetsched-predict --cluster cluster.json --model model.json --plan left.json --json");
    CAPTURE(again.errors);
    REQUIRE(again.status == 0);
    CHECK(nlohmann::json::parse(again.output).at("iteration_s").get<double>() == doctest::Approx(p.predicted.iteration_s));
    const std::string text = lost;
    const int gone = text == "v" ? 1 : text == "v:2" ? 2 : text == "v:5" ? 5 : text == "v:all" ? 8 : 0;
    for (const auto& s : p.pipelines.front().stages)
      for (const auto& g : s.devices)
        if (g.mesh.subcluster == 0) CHECK(g.first_device + g.mesh.device_count() <= 8 - gone);
  }
  // Where sends hold ranks up, what is compared are the iterations with them, as they are predicted of both plans.
  const auto sent = w.run(plan_command + "--microbatch-size 1 --planner interop_dp --sends blocking --json --without a:1");
  REQUIRE(sent.status == 0);
  const auto told = nlohmann::json::parse(sent.output);
  const auto& less = told["without"][0];
  const auto with_sends = [&](const nlohmann::json& p) {
    w.put("sent.json", p.dump());
    const auto predicted = nlohmann::json::parse(
        w.run("hetsched-predict --cluster cluster.json --model model.json --plan sent.json --sends blocking --json").output);
    CHECK(predicted["iteration_with_sends_s"].get<double>() > 1.001 * predicted["iteration_s"].get<double>());
    return predicted["iteration_with_sends_s"].get<double>();
  };
  const double less_s = with_sends(less["plan"]);
  CHECK(less["iteration_with_sends_s"].get<double>() == doctest::Approx(less_s));
  CHECK(less["change"].get<double>() == doctest::Approx(less_s / with_sends(told["plan"]) - 1));
  CHECK(w.run(plan_command + "--without v,a --out left.json").errors.find("--out: is for the plan that is left") !=
        std::string::npos);
  w.put("left-alone.json", file(v1, ""));
  const auto none =
      w.run("hetsched-plan --cluster left-alone.json --model model.json --global-batch 32 --without v:all --out x.json");
  CHECK(none.status == 1);
  CHECK(none.errors.find("no plan without 4 of 4 devices of v: no devices are left") != std::string::npos);
  CHECK(w.files().count("x.json") == 0);
  CHECK(w.run(plan_command + "--without b").errors.find("found b, expected one of consecutive, uniform, v, a") !=
        std::string::npos);
  CHECK(w.run(plan_command + "--without v:9").status == 2);
  CHECK(w.run(plan_command + "--without uniform").status == 2);
}

TEST_CASE("hetsched-plan chooses a microbatch size that is at least as fast as each power of two") {
  const workplace w;
  fill(w);
  REQUIRE(w.run(plan_command + "--microbatch-size auto --out auto.json").status == 0);
  const auto best = parse_plan(w.get("auto.json"), "auto.json").plan.predicted.samples_per_s;
  for (const char* size : {"1", "2", "4", "8", "16", "32"}) {
    const auto found = w.run(plan_command + "--microbatch-size " + size + " --out one.json");
    if (found.status == 1) continue;
    REQUIRE(found.status == 0);
    CHECK(best >= parse_plan(w.get("one.json"), "one.json").plan.predicted.samples_per_s);
  }
}

TEST_CASE("bad input and usage: status 2, one line that names the cause, no file touched") {
  const workplace w;
  fill(w);
  auto typo = cluster_text;
  typo.replace(typo.find("\"nodes\""), 7, "\"node\"");
  w.put("typo.json", typo);
  w.put("cut.json", cluster_text.substr(0, 200));
  w.put("plan.json", "an older plan");
  struct row {
    std::string line;
    const char* part;
  };
  const row rows[] = {
      {"hetsched-plan --cluster typo.json --model model.json --global-batch 32 --out plan.json",
       "typo.json: /subclusters/0/node"},
      {"hetsched-plan --cluster cut.json --model model.json --global-batch 32 --out plan.json", "cut.json: /subclusters"},
      {"hetsched-plan --cluster none.json --model model.json --global-batch 32 --out plan.json", "none.json: cannot be opened"},
      {"hetsched-plan --cluster cluster.json --model cluster.json --global-batch 32 --out plan.json", "cluster.json: /format"},
      {plan_command + "--out none/plan.json", "none/plan.json"},
      {plan_command + "--schedule 2f2b --out plan.json", "--schedule: found 2f2b, expected one of auto, gpipe, 1f1b"},
      {plan_command + "--out .", "is a folder"},
      {plan_command + "--out plan.json --report plan.json", "two outputs"},
      {plan_command + "--out plan.json --microbatch-size 5", "does not divide"},
      {plan_command + "--out plan.json --microbatch-size 0", "--microbatch-size"},
      {plan_command + "--out plan.json --microbatch-size many", "--microbatch-size"},
      {plan_command + "--out plan.json --epsilon nan", "--epsilon"},
      {plan_command + "--out plan.json --stages 2", "--stages: planner parallel_pipelines chooses how many"},
      {plan_command + "--out plan.json --prompt-tokens 7", "--objective latency or throughput"},
      {plan_command + "--out plan.json --in-flight 2", "--objective latency or throughput"},
      {plan_command + "--out plan.json --time-budget inf", "--time-budget"},
      {plan_command + "--out plan.json --warmup often", "--warmup"},
      {plan_command + "--out plan.json --planner magic", "--planner"},
      {plan_command + "--out plan.json --profile none.json", "none.json"},
      {plan_command + "--out plan.json --unknown", "--unknown"},
      {plan_command + "--out plan.json --time-budget -1", "--time-budget"},
      {"hetsched-plan --cluster cluster.json --global-batch 32 --out plan.json", "--model is required without --profile"},
      {"hetsched-plan --cluster cluster.json --model model.json --global-batch 0 --out plan.json", "--global-batch"},
      {"hetsched-plan --cluster cluster.json --model model.json --global-batch 99999999999999999999 --out plan.json",
       "--global-batch"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run(r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
  CHECK(w.get("plan.json") == "an older plan");
}

TEST_CASE("no feasible plan: status 1, what is short, and no file touched") {
  const workplace w;
  fill(w);
  auto huge = model_text;
  huge.replace(huge.find("\"hidden\": 1024"), 14, "\"hidden\": 65536");
  w.put("model.json", huge);
  const auto before = w.files();
  const auto result = w.run(plan_command + "--out plan.json --report report.html");
  CHECK(result.status == 1);
  CHECK(result.output.empty());
  CHECK(result.errors.find("GiB") != std::string::npos);
  CHECK(w.files() == before);
}

TEST_CASE("--help is no error") {
  const workplace w;
  for (const char* name : {"hetsched-plan", "hetsched-simulate", "hetsched-predict", "sailor-to-profile"}) {
    const auto result = w.run(std::string(name) + " --help");
    CHECK(result.status == 0);
    CHECK(result.output.find("--") != std::string::npos);
  }
}

TEST_CASE("the shipped profile is what the converter makes of the shipped measurements") {
  const workplace w;
  const std::string data = HETSCHED_SOURCE_DIR "/examples/data/";
  const auto result = w.run("sailor-to-profile --csv " + data + "sailor_gpt_neo_2.7b.csv --measured-model GPT-Neo-2.7 --model " +
                            data + "model.json --gpu V100-16=V100-SXM2-16GB --gpu A100-40=A100-SXM4-40GB --out profile.json");
  REQUIRE(result.status == 0);
  CHECK(w.get("profile.json") == read_text(data + "profile.json"));
  const auto wrong = w.run("sailor-to-profile --csv " + data + "model.json --measured-model GPT-Neo-2.7 --model " + data +
                           "model.json --gpu V100-16=V100-SXM2-16GB --out other.json");
  CHECK(wrong.status == 2);
  CHECK(wrong.errors.find("expected a microbatch size as key") != std::string::npos);
}

TEST_CASE("Sailor's own profile.json, of a GPU that its folder names") {
  const workplace w;
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 10, "hidden": 64, "heads": 4,
                          "vocab": 1000, "sequence": 32}})");
  // 12 layers, so that "10" comes before "2" as text
  const auto layers = [](double scale) {
    std::string text;
    for (int l = 0; l < 12; ++l)
      text += (l ? ", \"" : "\"") + std::to_string(l) + "\": [" + std::to_string(scale * (l + 1)) + ", " +
              std::to_string(2 * scale * (l + 1)) + ", 0.003]";
    return text;
  };
  const std::string profile =
      "{\"1\": {\"1\": {" + layers(0.001) + "}, \"2\": {" + layers(0.0005) + "}}, \"2\": {\"1\": {" + layers(0.002) + "}}}";
  std::filesystem::create_directory(w.path("A100-40"));
  std::filesystem::create_directory(w.path("V100-16"));
  w.put("A100-40/profile.json", profile);
  w.put("V100-16/profile.json", profile);
  const std::string one = "sailor-to-profile --model model.json --out out.json --gpu A100-40=A100-SXM4-40GB ";
  const auto check = [&](const test::finished& result, std::size_t rows) {
    CAPTURE(result.errors);
    REQUIRE(result.status == 0);
    const auto read = std::get<replica_profile>(parse_profile_file(w.get("out.json"), "out.json"));
    REQUIRE(read.rows.size() == rows);
    for (const auto& r : read.rows) {
      const double scale = r.tensor == 2 ? 0.0005 : 0.001 * r.microbatch_size;
      REQUIRE(r.forward_s.size() == 12);
      for (std::size_t l = 0; l < 12; ++l) {
        CHECK(r.forward_s[l] == doctest::Approx(scale * static_cast<double>(l + 1)));
        CHECK(r.backward_s[l] == doctest::Approx(2 * scale * static_cast<double>(l + 1)));
        CHECK(r.update_s[l] == 0.003);
      }
    }
  };
  check(w.run(one + "--csv A100-40/profile.json"), 3);
  check(w.run(one + "--measured-model any --csv V100-16/profile.json"), 3);  // there is one GPU
  check(w.run(one + "--gpu V100-16=V100-SXM2-16GB --csv A100-40/profile.json --csv V100-16/profile.json"), 6);
  w.put("profile.json", profile);
  const auto whose = w.run(one + "--gpu V100-16=V100-SXM2-16GB --csv profile.json");
  CHECK(whose.status == 2);
  CHECK(whose.errors.find("which GPU was it measured on?") != std::string::npos);
  const auto refused = [&](const std::string& text, const std::string& place, const std::string& why) {
    w.put("bad.json", text);
    const auto r = w.run(one + "--csv bad.json");
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(place) != std::string::npos);
    CHECK(r.errors.find(why) != std::string::npos);
  };
  refused(R"({"1": {"1": {"0": [1, 2]}}})", "bad.json: /1/1/0", "found 2 entries, expected 3");
  refused(R"({"1": {"1": {"0": [1, -2, 3]}}})", "bad.json: /1/1/0/1", "found -2");
  refused(R"({"1": {"x": {}}})", "bad.json: /1/x", "expected a tensor degree as key");
  refused(R"({"1": {"1": {"1": [1, 2, 3]}}})", "bad.json", "layer 0 is missing");
  refused(R"({"1": {"1": {"0": [1, 2, 3]}}})", "bad.json", "1 layers on");
}

TEST_CASE("Metis's profiles, of a GPU, tensor degree and batch size that their names tell") {
  const workplace w;
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 64, "heads": 4,
                          "vocab": 1000, "sequence": 32}})");
  const std::string one = R"({"model": {"model_name": "GPT3", "num_layers": 4, "parameters": {"total_parameters_bytes": 1000,
      "parameters_per_layer_bytes": [400, 100, 100, 400]}},
      "execution_time": {"total_time_ms": 120, "forward_backward_time_ms": 100, "batch_generator_time_ms": 1,
        "layernorm_grads_all_reduce_time_ms": 0.02, "embedding_grads_all_reduce_time_ms": 0.04, "optimizer_time_ms": 20,
        "layer_compute_total_ms": [3, 30, 30, 1.5]},
      "execution_memory": {"total_memory": 5312, "layer_memory_total_mb": [782, 414, 414, 1213]}})";
  w.put("DeviceType.A100_tp1_bs2.json", one);
  w.put("DeviceType.A100_tp2_bs2.json", one);
  const std::string convert = "metis-to-profile --model model.json --gpu A100=A100-SXM4-40GB --out p.json --measured ";
  const auto result = w.run(convert + "DeviceType.A100_tp1_bs2.json DeviceType.A100_tp2_bs2.json");
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  const auto read = std::get<replica_profile>(parse_profile_file(w.get("p.json"), "p.json"));
  REQUIRE(read.rows.size() == 2);
  CHECK(read.rows[1].tensor == 2);
  const auto& row = read.rows[0];
  CHECK(row.tensor == 1);
  CHECK(row.microbatch_size == 2);
  // Forward and backward together, one to two; what no layer took is the loss behind the last.
  const double both_ms[] = {3, 30, 30, 1.5 + 100 - 64.5}, update_ms[] = {8, 2, 2, 8};
  for (std::size_t l = 0; l < 4; ++l) {
    CHECK(row.forward_s[l] == doctest::Approx(both_ms[l] / 3000));
    CHECK(row.backward_s[l] == doctest::Approx(both_ms[l] / 1500));
    CHECK(row.update_s[l] == doctest::Approx(update_ms[l] / 1000));
  }
  const auto refused = [&](const std::string& file, const std::string& text, const std::string& why) {
    w.put(file, text);
    const auto r = w.run(convert + file);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(file) != std::string::npos);
    CHECK(r.errors.find(why) != std::string::npos);
  };
  refused("A100_tp1.json", one, "expected a name as Metis has it");
  refused("DeviceType.H100_tp1_bs1.json", one, "no --gpu says which device H100 is");
  refused("DeviceType.A100_tp0_bs1.json", one, "expected a name as Metis has it");
  refused("DeviceType.A100_tp1_bs3.json", R"({"execution_time": {}})", "/execution_time/layer_compute_total_ms");
  refused("DeviceType.A100_tp1_bs4.json", R"({"execution_time": {"layer_compute_total_ms": [1, -2]}})",
          "/layer_compute_total_ms/1");
}

TEST_CASE("Galvatron's computation_profiling, for samples of one length") {
  const workplace w;
  w.put("model.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 3, "hidden": 64, "heads": 4,
                          "vocab": 1000, "sequence": 2048}})");
  w.put("times.json", R"({"layernum[2]_bsz4_seq2048": 45.4, "layernum[4]_bsz4_seq2048": 78.4, "layertype_0_bsz4_seq2048": 4.125,
      "layertype_other_bsz4_seq2048": 3.11, "layertype_0_bsz1_seq2048": 4.4, "layertype_other_bsz1_seq2048": 6.3,
      "layertype_0_bsz1_seq4096": 9, "layertype_other_bsz1_seq4096": 12})");
  const std::string convert = "galvatron-to-profile --gpu a=A100-SXM4-80GB --out p.json --model model.json --measured ";
  const auto result = w.run(convert + "times.json");
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  const auto read = std::get<replica_profile>(parse_profile_file(w.get("p.json"), "p.json"));
  REQUIRE(read.rows.size() == 2);
  const auto& row = read.rows[1];
  CHECK(row.microbatch_size == 4);
  const double forward_ms[] = {0, 4 * 4.125, 4 * 4.125, 4 * 4.125, 4 * 3.11};
  REQUIRE(row.forward_s.size() == 5);
  for (std::size_t l = 0; l < 5; ++l) {
    CHECK(row.forward_s[l] == doctest::Approx(forward_ms[l] / 1000));
    CHECK(row.backward_s[l] == doctest::Approx(forward_ms[l] / 500));
  }
  CHECK(w.run(convert + "times.json --sequence 1024").errors.find("only of 2048, 4096: --sequence takes one") !=
        std::string::npos);
  const auto refused = [&](const std::string& text, const std::string& why) {
    w.put("bad.json", text);
    const auto r = w.run(convert + "bad.json");
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.errors.find(why) != std::string::npos);
  };
  refused(R"({"layernum[2]_bsz1_seq2048": 24.5})", "no times of layertype_0 for samples of 2048 tokens");
  refused(R"({"layertype_0_bsz1_seq2048": 4.4})", "/layertype_other_bsz1_seq2048 is missing");
  refused(R"({"layertype_1_bsz1_seq2048": 4.4})", "/layertype_1_bsz1_seq2048: expected layertype_0 or layertype_other");
  refused(R"({"1_1_8_sp": {}})", "/1_1_8_sp: expected a key as in layertype_0_bsz8_seq2048");
}

TEST_CASE("- is standard output and standard input, and what is packed says so") {
  const workplace w;
  w.put("pipeline.json", R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 4, "forward_s": [0.01, 0.01],
    "backward_s": [0.02, 0.02], "transfer_s": [0.02]})");
  const auto out = w.run("hetsched-simulate --pipeline pipeline.json --schedule 1f1b --trace -");
  REQUIRE(out.status == 0);
  CHECK(parse_trace(out.output, "-").ranks == 2);  // nothing else is there
  CHECK(out.errors.find("makespan") != std::string::npos);
  CHECK(!std::filesystem::exists(w.path("-")));
  const auto quiet = w.run("hetsched-simulate --quiet --pipeline pipeline.json --schedule 1f1b --trace -");
  CHECK(quiet.output == out.output);
  CHECK(quiet.errors.empty());
  CHECK(w.run("hetsched-simulate --pipeline - --schedule 1f1b < pipeline.json").status == 0);
  const auto twice = w.run("hetsched-compare-timeline --predicted - --measured - < pipeline.json");
  CHECK(twice.status == 2);
  CHECK(twice.errors.find("standard input is named for two files") != std::string::npos);
  w.put("trace.json.gz", "\x1f\x8b\x08\x08more");
  const auto packed = w.run("hetsched-compare-timeline --predicted trace.json.gz --measured pipeline.json");
  CHECK(packed.status == 2);
  CHECK(packed.errors.find("trace.json.gz: is packed (gzip), expected a text: gunzip -c") != std::string::npos);
}

TEST_CASE("a config.json of experts, on devices as drivers print them: the summary says what was read") {
  const workplace w;
  w.put("cluster.json",
        R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "h", "device": "NVIDIA H100 80GB HBM3",
      "nodes": 1, "devices_per_node": 8, "intra_node": {"gbit_per_s": 3600, "latency_us": 3}}]})");
  const std::string config = R"({"model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
      "max_position_embeddings": 40960, "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 4, "vocab_size": 151936, "rms_norm_eps": 1e-6,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
  w.put("config.json", config);
  const std::string line =
      "hetsched-plan --cluster cluster.json --model config.json --sequence 512 --global-batch 16 --time-budget 5";
  const auto planned = w.run(line);
  CAPTURE(planned.errors);
  CHECK(planned.status == 0);
  CHECK(planned.output.find("parameters    3,114,814,464") != std::string::npos);
  CHECK(planned.output.find("per second, with 512 per sample") != std::string::npos);
  CHECK(planned.errors.find("model_type") == std::string::npos);

  auto other = config;
  other.replace(other.find("qwen3_moe"), 9, "newer_moe");
  w.put("config.json", other);
  const auto guessed = w.run(line);
  CHECK(guessed.status == 0);
  CHECK(guessed.errors.find(
            "hetsched-plan: config.json: model_type \"newer_moe\" is not known; taken from the keys: 4 blocks of 2048, "
            "32 heads (4 of keys) of 128, 128 experts, 8 of a token, MLP of 768, 151936 words, 512 tokens; guessed: ") !=
        std::string::npos);
}
