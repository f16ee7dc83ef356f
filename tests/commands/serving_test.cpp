// SPDX-License-Identifier: Apache-2.0
// hetsched-plan for inference.
#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>

#include "workplace.hpp"

namespace {

hetsched::inference_plan served_plan(const hetsched::test::workplace& w) {
  return std::get<hetsched::inference_plan_file>(hetsched::read_any_plan(w.path("plan.json"))).plan;
}

}  // namespace

TEST_CASE("hetsched-plan plans inference, and says what is missing") {
  const hetsched::test::workplace w;
  w.put("pool.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "a5000", "device": "A5000", "nodes": 2, "devices_per_node": 1, "inter_node": {"gbit_per_s": 1, "latency_us": 50}},
    {"name": "a4000", "device": "A4000", "nodes": 1, "devices_per_node": 1}],
    "links": [{"between": ["a5000", "a4000"], "gbit_per_s": 1, "latency_us": 50}]})");
  w.put("llama.json", R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096})");
  const std::string start = "hetsched-plan --cluster pool.json --model llama.json ";
  const auto served = w.run(start + "--objective throughput --in-flight 4 --planner placement --out plan.json");
  CAPTURE(served.errors);
  REQUIRE(served.status == 0);
  CHECK(served.output.find("first token") != std::string::npos);
  CHECK(served.output.find("tokens per second") != std::string::npos);
  const auto plan = served_plan(w);
  REQUIRE(plan.predicted);
  CHECK(plan.stages.size() == 3);
  CHECK(plan.in_flight == 4);
  const auto played = w.run("hetsched-simulate --plan plan.json --json");
  CAPTURE(played.errors);
  REQUIRE(played.status == 0);
  double sum_s = 0, slowest_s = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    sum_s += plan.stages[i].cost.forward_s + (i < 2 ? plan.boundaries[i].forward_s : 0);
    slowest_s = std::max({slowest_s, plan.stages[i].cost.forward_s, i < 2 ? plan.boundaries[i].forward_s : 0});
  }
  CHECK(nlohmann::json::parse(played.output)["makespan_s"].get<double>() == doctest::Approx(sum_s + 3 * slowest_s));
  CHECK(w.run("hetsched-simulate --plan plan.json --chunks 2").status == 2);
  CHECK(w.run(start).status == 2);
  CHECK(w.run(start + "--objective latency --planner interop_dp").status == 2);
  CHECK(w.run(start + "--objective latency --schedule gpipe").status == 2);
  const auto drawn = w.run(start + "--objective throughput --in-flight 4 --report page.html --trace trace.json");
  CAPTURE(drawn.errors);
  REQUIRE(drawn.status == 0);
  const auto page = w.get("page.html");
  for (const char* const part : {"Inference plan", "llama.json on pool.json", "4 batches in flight", "tokens per second", "a5000",
                                 "Timeline of the batches in flight", "<svg"})
    CHECK_MESSAGE(page.find(part) != std::string::npos, part);
  for (const char* const part : {"backward", "warm-up", "Timeline of one iteration"})
    CHECK_MESSAGE(page.find(part) == std::string::npos, part);
  // Every stage computes every batch once.
  const auto trace = nlohmann::json::parse(w.get("trace.json"));
  int computations = 0;
  for (const auto& e : trace.at("traceEvents")) computations += e.value("cat", "") == "forward";
  CHECK(computations == 3 * 4);
  CHECK(w.run(start + "--objective latency --prompt-tokens 4000000 --in-flight 4").status == 1);
}

TEST_CASE("hetsched-plan plans inference of a model that is told by its layers: a request is one forward") {
  const hetsched::test::workplace w;
  w.put("pair.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "fast", "device": "A5000", "nodes": 1, "devices_per_node": 1},
    {"name": "slow", "device": "T4", "nodes": 1, "devices_per_node": 1}],
    "links": [{"between": ["fast", "slow"], "gbit_per_s": 10, "latency_us": 50}]})");
  std::string layers;
  for (int l = 0; l < 6; ++l)
    layers +=
        std::string(l > 0 ? ", " : "") +
        R"({"name": "l", "forward_flops": 4e11, "weight_bytes": 8000000, "activation_bytes": 3000000, "boundary_bytes": 100000})";
  w.put("graph.json", R"({"format": "hetsched/model", "version": 1, "layers": [)" + layers + "]}");
  const std::string start = "hetsched-plan --cluster pair.json --model graph.json --out plan.json --objective ";
  const auto soonest = w.run(start + "latency");
  CAPTURE(soonest.errors);
  REQUIRE(soonest.status == 0);
  CHECK(soonest.output.find("token") == std::string::npos);
  // On the fast one alone.
  const auto alone = served_plan(w);
  REQUIRE(alone.stages.size() == 1);
  CHECK(alone.stages[0].cost.weight_bytes == 48'000'000);
  CHECK(alone.predicted->latency_s == alone.stages[0].cost.forward_s);
  CHECK(alone.predicted->latency_s * 55.5e12 > 6 * 4e11);

  REQUIRE(w.run(start + "throughput --batch 2").status == 0);
  const auto both = served_plan(w);
  REQUIRE(both.stages.size() == 2);
  const double slowest_s = std::max({both.stages[0].cost.forward_s, both.stages[1].cost.forward_s, both.boundaries[0].forward_s});
  CHECK(both.boundaries[0].forward_s == doctest::Approx(50e-6 + 2 * 1e5 / 1.25e9));
  CHECK(both.predicted->requests_per_s == doctest::Approx(2 / slowest_s));
  CHECK(both.predicted->requests_per_s > 1 / alone.predicted->latency_s);
}

TEST_CASE("hetsched-plan: quantised weights, by option, by model.json and by config.json") {
  const hetsched::test::workplace w;
  w.put("pool.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "one", "device": "RTX3090", "nodes": 1, "devices_per_node": 1}]})");
  const std::string sizes = R"("model_type": "llama", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
    "intermediate_size": 13824, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "float16")";
  w.put("plain.json", "{" + sizes + "}");
  w.put("gptq.json", "{" + sizes + R"(, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})");
  w.put("transformer.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 40, "hidden": 5120,
    "heads": 40, "vocab": 32000, "sequence": 2048, "weight_bits": 4.5, "cache_bits": 8}})");
  const auto run = [&](const std::string& rest) {
    return w.run("hetsched-plan --cluster pool.json --objective latency --model " + rest + " --out plan.json");
  };
  const auto none = run("plain.json");
  CHECK(none.status == 1);
  CHECK(none.errors.find("--weight-bits says how many bits") != std::string::npos);
  for (const auto& [rest, bits] : {std::pair{"plain.json --weight-bits 4.5", "weights in 4.50 bits"},
                                   {"gptq.json", "weights in 4.16 bits"},
                                   {"gptq.json --weight-bits 3", "weights in 3.00 bits"},
                                   {"transformer.json", "weights in 4.50 bits, cache in 8.00 bits"}}) {
    CAPTURE(rest);
    const auto r = run(rest);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    CHECK(r.output.find(bits) != std::string::npos);
    const auto stage = served_plan(w).stages[0];
    CHECK(stage.memory_bytes < 12e9);
    CHECK(stage.memory_bytes > 4.5e9);
  }
  CHECK(run("plain.json --weight-bits 0").status == 2);

  // Products in 8 bits, as a file or an option says; what the device lacks is told, and a stack's products are not of inference.
  w.put("w8a8.json", "{" + sizes + R"(, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0":
    {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}}}})");
  w.put("pool.json", R"({"format": "hetsched/cluster", "version": 1, "stack": {"name": "mine", "like": "fsdp", "products": "fp8"},
    "subclusters": [{"name": "one", "device": "RTX3090", "nodes": 1, "devices_per_node": 1}]})");
  const auto first_token_s = [&](const std::string& rest, const std::string& said, const std::string& told) {
    CAPTURE(rest);
    const auto r = run(rest);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    CHECK(r.output.find(said) != std::string::npos);
    CHECK(r.errors == told);
    return served_plan(w).predicted->first_token_s;
  };
  const double int8_s = first_token_s("w8a8.json", "weights in 8.00 bits, products in int8", ""),
               same_s = first_token_s("w8a8.json --products same", "weights in 8.00 bits", ""),
               fp8_s = first_token_s("w8a8.json --products fp8", "products in fp8",
                                     "hetsched-plan: one has no fp8: products priced in 16 bits there\n");
  CHECK(int8_s < 0.8 * same_s);
  CHECK(fp8_s == same_s);
  CHECK(run("w8a8.json --dtype fp8").errors.find("\"products\": \"fp8\" of a --stack file") != std::string::npos);
}
