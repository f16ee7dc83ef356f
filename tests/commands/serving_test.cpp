// SPDX-License-Identifier: Apache-2.0
// hetsched-plan for inference.
#include <string>

#include <doctest/doctest.h>

#include <hetsched/io.hpp>

#include "workplace.hpp"

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
  const auto plan = hetsched::read_plan(w.path("plan.json")).plan;
  REQUIRE(plan.predicted.inference);
  CHECK(plan.pipelines[0].stages.size() == 3);
  CHECK(plan.pipelines[0].microbatches == 4);
  CHECK(w.run(start).status == 2);
  CHECK(w.run(start + "--objective latency --planner interop_dp").status == 2);
  CHECK(w.run(start + "--objective latency --report page.html").status == 2);
  CHECK(w.run(start + "--objective latency --prompt-tokens 4000000 --in-flight 4").status == 1);
}
