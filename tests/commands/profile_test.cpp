// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/operators_csv.hpp>

#include <train/device.hpp>

#include "processes.hpp"
#include "workplace.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

const std::string sizes = "--layers 3 --hidden 32 --heads 4 --sequence 32 --microbatch-size 2 ";
const std::string outputs = "--out-profile profile.json --out-cluster cluster.json --out-model model.json ";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("profile, plan, run, compare: each takes what the one before has written") {
  const workplace w;
  const auto measured = w.run("hetsched-profile " + sizes + "--repeats 3 --ranks 3 " + outputs);
  CAPTURE(measured.errors);
  REQUIRE(measured.status == 0);
  CHECK(contains(measured.output, "block 0 to block 2"));
  CHECK(contains(measured.output, "within ranks-0-2"));

  const auto costs = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  REQUIRE(costs.layers.size() == 5);
  CHECK(costs.layers[0].name == "embedding");
  CHECK(costs.layers[0].boundary_bytes_per_sample == 32 * 32 * 4);
  CHECK(costs.layers[4].boundary_bytes_per_sample == 32 * 256 * 4);
  REQUIRE(costs.rows.size() == 1);
  const auto& entry = costs.rows[0];
  CHECK(entry.microbatch_size == 2);
  for (std::size_t l = 0; l < 5; ++l) {
    CHECK(entry.forward_s[l] > 0);
    CHECK(entry.backward_s[l] > 0);
    CHECK(entry.weight_bytes[l] > 0);
    CHECK(entry.weight_bytes[l] == 4 * entry.gradient_bytes[l]);
  }
  CHECK(entry.forward_s[1] == entry.forward_s[3]);  // equal blocks are measured once
  const auto hardware = parse_cluster(w.get("cluster.json"), "cluster.json");
  REQUIRE(hardware.subclusters.size() == 1);
  CHECK(hardware.subclusters[0].device_count() == 3);
  CHECK(replica_cost_model(hardware, costs).layer_count() == 5);
  // A layer that beat its host's peak would make plans of an MFU above 100 %.
  const auto blocks = parse_model(w.get("model.json"), "model.json", {.cut = granularity::block}).chain.layers;
  for (std::size_t l = 0; l < 5; ++l) {
    const double took_s = entry.forward_s[l] + entry.backward_s[l];
    CHECK(2 * (blocks[l].forward_flops + blocks[l].backward_flops) / took_s <=
          hardware.subclusters[0].device.peak_flops[static_cast<std::size_t>(precision::fp32)] * (1 + 1e-9));
  }

  const auto planned = w.run(
      "hetsched-plan --cluster cluster.json --model model.json --profile profile.json --global-batch 8 --microbatch-size 2 "
      "--use-all-devices --out plan.json --trace predicted.json");
  CAPTURE(planned.errors);
  REQUIRE(planned.status == 0);
  const auto trained = w.run("hetsched-train --model model.json --plan plan.json --steps 3 --trace measured.json --json");
  CAPTURE(trained.errors);
  REQUIRE(trained.status == 0);
  CHECK(nlohmann::json::parse(trained.output).at("ranks").get<int>() == 3);
  const auto compared = w.run("hetsched-compare-timeline --predicted predicted.json --measured measured.json");
  CAPTURE(compared.errors);
  CHECK(compared.status == 0);
}

TEST_CASE("every kind of the example's layers can be profiled") {
  const workplace w;
  const auto r = w.run(
      "hetsched-profile --layers 1 --hidden 16 --heads 2 --kv-heads 1 --sequence 8 --norm rms --activation swiglu "
      "--positions rotary --untied --no-bias --precision fp64 --repeats 1 --warmup 0 --out-profile profile.json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(
      std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json")).layers[1].boundary_bytes_per_sample ==
      8 * 16 * 8);
}

TEST_CASE("several microbatch sizes are measured, however they are listed") {
  const workplace w;
  const auto r = w.run(
      "hetsched-profile --layers 1 --hidden 16 --heads 2 --sequence 8 --repeats 2 --warmup 0 --ranks 2 --microbatch-size 4,1 "
      "--microbatch-size 2 --microbatch-size 4 --out-profile profile.json --out-cluster cluster.json --out-model model.json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(contains(r.output, "ranks-0-1, microbatches of 4"));
  const auto costs = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  REQUIRE(costs.rows.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(costs.rows[i].microbatch_size == 1 << i);
    CHECK(costs.rows[i].weight_bytes == costs.rows[0].weight_bytes);
    CHECK(costs.rows[i].activation_bytes[1] == (1 << i) * costs.rows[0].activation_bytes[1]);
    for (const double s : costs.rows[i].forward_s) CHECK(s > 0);
  }
  CHECK(costs.layers[1].boundary_bytes_per_sample == 8 * 16 * 4);
  const auto planned =
      w.run("hetsched-plan --cluster cluster.json --model model.json --profile profile.json --global-batch 8 --out plan.json");
  CAPTURE(planned.errors);
  CHECK(planned.status == 0);
  CHECK(planned.complaints().empty());
  CHECK(contains(w.run("hetsched-profile --microbatch-size 2,0").errors, "--microbatch-size"));
}

TEST_CASE("ranks that Gloo connects are subclusters, with the links between them") {
  const workplace w;
  if (contains(w.run("hetsched-profile --transport gloo").errors, "built without Gloo")) {
    MESSAGE("skipped: hetsched-profile is built without Gloo");
    return;
  }
  auto all = start_ranks(w, 3, "links", [&](int) { return "hetsched-profile " + sizes + "--repeats 2 --each-rank " + outputs; });
  for (auto& p : all) {
    const auto ended = p.wait();
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
  }
  const auto hardware = parse_cluster(w.get("cluster.json"), "cluster.json");
  CHECK(hardware.subclusters.size() == 3);
  CHECK(hardware.subclusters[2].name == "ranks-2-2");
  REQUIRE(hardware.links.size() == 3);
  for (const auto& l : hardware.links) CHECK(l.link.bandwidth > 0);
  REQUIRE(
      w.run("hetsched-plan --cluster cluster.json --model model.json --profile profile.json --global-batch 8 --microbatch-size 2 "
            "--use-all-devices --out plan.json")
          .status == 0);
  // The stages go to the ranks that they were planned for, whatever their order.
  auto trained = start_ranks(w, 3, "trains", [&](int) { return "hetsched-train --model model.json --plan plan.json --steps 2"; });
  for (auto& p : trained) {
    const auto ended = p.wait();
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
  }
}

TEST_CASE("bad input of hetsched-profile: status 2, one line that names the cause, no file touched") {
  const workplace w;
  for (const auto& [line, part] :
       {std::pair{"--hidden 30 --heads 4 --out-profile p.json", "divisible by heads"},
        std::pair{"--repeats 0 --out-profile p.json", "--repeats"},
        std::pair{"--text none.txt --out-profile p.json", "none.txt: cannot be opened"},
        std::pair{"--out-profile p.json --out-cluster p.json", "two outputs"},
        std::pair{"--out-profile none/p.json", "there is no folder none"}, std::pair{"--sequence 1000000", "too short"}}) {
    CAPTURE(line);
    const auto r = w.run(std::string("hetsched-profile ") + line);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(r.output.empty());
    CHECK(contains(r.errors, part));
    CHECK(r.errors.find('\n') == r.errors.size() - 1);
  }
  CHECK(w.files().empty());
}

TEST_CASE("layers that several ranks share are measured by them, for plans with tensor degrees") {
  const workplace w;
  const auto r = w.run("hetsched-profile " + sizes + "--tensor 2,1 --repeats 2 --ranks 4 " + outputs);
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(contains(r.output, "ranks-0-3, tensor 2"));
  const auto costs = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  REQUIRE(costs.rows.size() == 2);
  const auto &one = costs.rows[0], &two = costs.rows[1];
  CHECK(one.tensor == 1);
  CHECK(two.tensor == 2);
  CHECK(costs.layers[1].boundary_bytes_per_sample == 32 * 32 * 4);
  for (std::size_t l = 0; l < 5; ++l) {
    CHECK(two.forward_s[l] > 0);
    CHECK(two.backward_s[l] > 0);
    CHECK(2 * two.activation_bytes[l] == one.activation_bytes[l]);
    CHECK(two.weight_bytes[l] <= one.weight_bytes[l]);
  }
  CHECK(two.weight_bytes[1] < 0.6 * static_cast<double>(one.weight_bytes[1]));
  const auto planned = w.run(
      "hetsched-plan --cluster cluster.json --model model.json --profile profile.json --global-batch 8 --microbatch-size 2 "
      "--use-all-devices --out plan.json");
  CAPTURE(planned.errors);
  REQUIRE(planned.status == 0);
  const auto trained = w.run("hetsched-train --model model.json --plan plan.json --steps 1");
  CAPTURE(trained.errors);
  CHECK(trained.status == 0);

  // Also from the larger degree alone, where a rank puts out a part.
  REQUIRE(w.run("hetsched-profile " + sizes + "--tensor 2 --repeats 1 --ranks 2 " + outputs).status == 0);
  const auto alone = std::get<replica_profile>(parse_profile_file(w.get("profile.json"), "profile.json"));
  CHECK(alone.layers == costs.layers);
  const auto uneven = w.run("hetsched-profile " + sizes + "--tensor 2 --repeats 1 --ranks 3");
  CHECK(uneven.status == 2);
  CHECK(contains(uneven.errors, "--tensor: ranks-0-2 cannot be cut into groups of 2"));
  const auto heads = w.run("hetsched-profile " + sizes + "--tensor 3 --repeats 1 --ranks 3");
  CHECK(heads.status == 2);
  CHECK(contains(heads.errors, "heads (4) must be divisible by the tensor degree (3)"));
}

TEST_CASE("--device names the place of each rank") {
  using list = std::vector<int>;
  CHECK(train::places_of("cpu", 3, 0) == list{-1, -1, -1});
  CHECK(train::places_of("cuda", 5, 2) == list{0, 1, 0, 1, 0});
  CHECK(train::places_of("cuda:1", 2, 2) == list{1, 1});
  CHECK(train::places_of("cuda,cpu,cuda:0,cuda", 4, 2) == list{0, -1, 0, 1});
  for (const auto& [text, what] :
       std::vector<std::pair<const char*, const char*>>{{"cuda,cpu", "found 2 names for 3 ranks"},
                                                        {"cuda:2", "there is no GPU 2 among 2"},
                                                        {"gpu", "expected cpu, cuda or cuda:N, found \"gpu\""},
                                                        {"cuda:", "expected cpu, cuda or cuda:N, found \"cuda:\""},
                                                        {"cuda:99999", "expected cpu, cuda or cuda:N, found \"cuda:99999\""},
                                                        {"", "expected cpu, cuda or cuda:N, found \"\""}}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS((void)train::places_of(text, 3, 2), (std::string("--device: ") + what).c_str(), input_error);
  }
}

TEST_CASE("--device cuda: without CUDA, or without a GPU, one clear error and no file") {
  const workplace w;
  for (const std::string command :
       {"hetsched-train --steps 1 --ranks 2 --losses losses.csv", "hetsched-profile --out-cluster c.json"}) {
    CAPTURE(command);
    const auto misspelt = w.run(command + " --device cpu,banana --layers 2 --hidden 32 --heads 4 --sequence 32");
    CHECK(misspelt.status == 2);
    CHECK(contains(misspelt.errors, "--device: expected cpu, cuda or cuda:N, found \"banana\""));
    const auto found = w.run(command + " --device cuda --layers 2 --hidden 32 --heads 4 --sequence 32");
    CAPTURE(found.errors);
    if (found.status == 0) continue;  // there is one
    CHECK(found.status == (contains(found.errors, "built without CUDA (HETSCHED_CUDA)") ? 2 : 3));
    CHECK((found.status == 2 || contains(found.errors, ": there is no GPU to use: cudaGetDeviceCount: ")));
    CHECK(found.errors.find('\n') == found.errors.size() - 1);
    CHECK(w.files().empty());
  }
}

TEST_CASE("--boundaries: what ranks cannot hand on is refused, not ignored") {
  const workplace w;
  const std::string small = " --layers 1 --hidden 15 --heads 3 --sequence 4";
  for (const std::string command : {"hetsched-train --steps 1 --losses losses.csv", "hetsched-profile --out-cluster c.json"}) {
    for (const auto& [options, part] :
         {std::pair{" --boundaries bf16",
                    "--boundaries bf16 needs --device cuda; a host beside GPUs is named in one --device of"},
          std::pair{" --boundaries fp16", "--boundaries: found fp16, expected one of bf16, fp32"},
          std::pair{" --boundaries fp32 --precision fp64", "--boundaries fp32 needs --precision fp32"},
          std::pair{" --boundaries bf16 --device hip", "--device: expected cpu, cuda or cuda:N, found \"hip\""},
          std::pair{" --boundaries bf16 --device cuda", "--boundaries bf16 needs an even --hidden, found 15"}}) {
      const auto r = w.run(command + small + options);
      CAPTURE(command);
      CAPTURE(options);
      CAPTURE(r.errors);
      CHECK(r.status == 2);
      CHECK((contains(r.errors, part) || contains(r.errors, "--device: this program was built without CUDA (HETSCHED_CUDA)")));
      CHECK(r.errors.find('\n') == r.errors.size() - 1);
      CHECK(w.files().empty());
    }
  }
  CHECK(w.run("hetsched-train --steps 1 --boundaries fp32" + small).status == 0);  // hosts do
}

TEST_CASE("operators are timed on this machine, for hetsched-calibrate") {
  const workplace w;
  w.put("asked.csv",
        "op,batch,m,n,k,dtype\nlinear,1,16,32,64,fp32\nln,2,8,16,,float\ngelu,1,8,16,1,fp16\nfoo,1,1,1,1,fp32\nadd,1,64,64,1,"
        "fp32\n");
  const auto r = w.run("hetsched-profile --operators asked.csv --out-operators measured.csv --warmup 0 --repeats 2 --json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(contains(r.errors, "asked.csv: line 4: hosts compute in fp32 here"));
  CHECK(contains(r.errors, "asked.csv: line 5: column op: found \"foo\""));
  CHECK(contains(r.errors, "2 of 5 rows left out"));
  const auto measured = parse_operators(w.get("measured.csv"), "measured.csv");
  REQUIRE(measured.rows.size() == 3);
  CHECK(measured.rows[0] == operator_row{"gemm", {1, 16, 32, 64}, number_format::fp32});
  CHECK(measured.rows[1] == operator_row{"layernorm", {2, 8, 16, 1}, number_format::fp32});
  CHECK(measured.rows[2] == operator_row{"elementwise_add", {1, 64, 64, 1}, number_format::fp32});
  const auto told = nlohmann::json::parse(r.output);
  CHECK(told.at("skipped") == 2);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(measured.measured_ms[i] > 0);
    CHECK(told.at("operators").at(i).at("measured_ms").get<double>() == doctest::Approx(measured.measured_ms[i]).epsilon(1e-3));
  }
  w.put("device.json",
        R"({"format": "hetsched/device", "version": 1, "peak_tflops": {"fp32": 0.1}, "memory_gib": 8,
            "memory_bandwidth_gb_per_s": 20, "multiprocessors": 1, "l2_mib": 1, "clock_mhz": 2500})");
  const auto calibrated = w.run("hetsched-calibrate --device device.json --operators measured.csv --out fitted.json");
  CAPTURE(calibrated.errors);
  CHECK(calibrated.status == 0);

  w.put("empty.csv", "op,batch,m,n,k,dtype\n");
  for (const auto& [options, what] : std::vector<std::pair<const char*, const char*>>{
           {"--operators asked.csv --strict --out-operators none.csv", "line 5: column op"},
           {"--operators asked.csv --out-profile none.csv", "--out-profile goes without --operators and --out-operators"},
           {"--out-operators none.csv --ranks 2", "--ranks goes without --operators and --out-operators"},
           {"--operators empty.csv", "empty.csv: has a heading alone, expected rows under it"},
           {"--operators missing.csv", "missing.csv: cannot be opened"}}) {
    CAPTURE(options);
    const auto refused = w.run(std::string("hetsched-profile ") + options);
    CHECK(refused.status == 2);
    CHECK(contains(refused.errors, what));
  }
  CHECK(w.files().count("none.csv") == 0);
}
