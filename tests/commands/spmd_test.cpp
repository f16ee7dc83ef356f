// SPDX-License-Identifier: Apache-2.0
// hetsched-spmd as a user calls it.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/graph_json.hpp>
#include <hetsched/spmd.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string cluster_text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
  {"name": "v", "device": "V100-PCIe-16GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 96, "latency_us": 10}},
  {"name": "p", "device": "P100-PCIe-16GB", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 96, "latency_us": 10}},
  {"name": "alone", "device": "T4", "nodes": 1, "devices_per_node": 1}],
  "links": [{"between": ["v", "p"], "gbit_per_s": 10, "latency_us": 20}]})";

const std::string graph_text = R"({"format": "hetsched/graph", "version": 1, "nodes": [
  {"name": "x", "op": "placeholder", "shape": [4096, 512]},
  {"name": "w1", "op": "parameter", "shape": [512, 2048]},
  {"name": "h", "op": "matmul", "inputs": ["x", "w1"]},
  {"name": "a", "op": "relu", "inputs": ["h"]},
  {"name": "w2", "op": "parameter", "shape": [2048, 512]},
  {"name": "y", "op": "matmul", "inputs": ["a", "w2"]},
  {"name": "loss", "op": "sum", "inputs": ["y"]}]})";

}  // namespace

TEST_CASE("hetsched-spmd --json: the library's program, with a bound and what even data parallelism takes") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("g.json", graph_text);
  for (const bool training : {false, true}) {
    const auto run = w.run("hetsched-spmd --graph g.json --cluster c.json --devices v:0:1x2,p:0:1x2 --json" +
                           std::string(training ? " --training" : ""));
    CHECK(run.errors == "");
    REQUIRE(run.status == 0);
    const auto result = nlohmann::json::parse(run.output);
    auto file = parse_graph(graph_text, "g.json");
    auto goal = tensor_goal{.loss = file.loss, .gradients = {}};
    if (training) goal = add_backward(file.graph, file.loss);
    const auto c = parse_cluster(cluster_text, "c.json");
    const auto problem =
        spmd::make_problem(c, std::vector<device_id>{{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 1}}, file.graph, goal);
    REQUIRE(problem);
    const auto found = spmd::synthesize(*problem);
    REQUIRE(found);
    CHECK(result["cost_s"].get<double>() == doctest::Approx(found->seconds));
    CHECK(result["lower_bound_s"].get<double>() == doctest::Approx(found->bound));
    CHECK(result["lower_bound_s"] <= result["cost_s"]);
    CHECK(result["cost_s"] <= result["data_parallel_s"]);
    const auto ratios = result["ratios"].get<std::vector<std::vector<double>>>();
    REQUIRE(ratios.size() == 1);
    REQUIRE(ratios[0].size() == 4);
    CHECK(ratios[0][0] == ratios[0][1]);
    CHECK(ratios[0][0] + ratios[0][1] + ratios[0][2] + ratios[0][3] == doctest::Approx(1));
    CHECK(ratios[0][0] > ratios[0][2]);  // a V100 has more than a P100
    REQUIRE(result["program"].size() == found->program.size());
    for (std::size_t i = 0; i < found->program.size(); ++i)
      CHECK(result["program"][i] == spmd::text_of(problem->graph, found->program[i]));
    const auto held = result["memory_bytes"].get<std::vector<double>>(),
               there = result["memory_capacity_bytes"].get<std::vector<double>>();
    REQUIRE(held.size() == 4);
    const auto memory = spmd::memory_of(*problem, found->program, training ? 14 : 2);
    CHECK(held[0] == doctest::Approx(memory.at(ratios[0][0])).epsilon(1e-6));
    CHECK(held[3] == doctest::Approx(memory.at(ratios[0][3])).epsilon(1e-6));
    CHECK(there == std::vector<double>(4, 16.0 * (1 << 30)));
    CHECK(result.size() == 8);
  }
}

TEST_CASE("hetsched-spmd: the program as text") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("g.json", graph_text);
  const auto run = w.run("hetsched-spmd --graph g.json --cluster c.json --devices v:0:1x2,p:0:1x2");
  REQUIRE(run.status == 0);
  CHECK(w.run("hetsched-spmd --graph g.json --cluster c.json --devices v:0:1x2:1,1,2,p:0:1x2:2,1,1").output == run.output);
  for (const char* piece : {"h = matmul(x: cut 0, w1: whole): cut 0", "V100-PCIe-16GB", "lower bound", "even data parallelism"})
    CHECK(run.output.find(piece) != std::string::npos);
}

TEST_CASE("hetsched-spmd: a program that fits, where the fastest does not; what is short, where none does") {
  const workplace w;
  w.put("c.json", cluster_text);
  const auto graph_of = [&](int layers, int width) {
    const auto size = std::to_string(width);
    std::string text = R"({"format": "hetsched/graph", "version": 1, "nodes": [
      {"name": "h0", "op": "placeholder", "shape": [16384, )" +
                       size + "]},";
    for (int i = 0; i < layers; ++i) {
      const auto n = std::to_string(i);
      text += R"({"name": "w)" + n + R"(", "op": "parameter", "shape": [)" + size + ", " + size + R"(]},)" + "\n" +
              R"({"name": "h)" + std::to_string(i + 1) + R"(", "op": "matmul", "inputs": ["h)" + n + R"(", "w)" + n + R"("]},)";
    }
    w.put("g.json", text + R"({"name": "loss", "op": "sum", "inputs": ["h)" + std::to_string(layers) + R"("]}]})");
  };
  const std::string command = "hetsched-spmd --graph g.json --cluster c.json --devices v:0:1x2,p:0:1x2 --training --json";
  graph_of(18, 8192);
  const auto fits = w.run(command), free = w.run(command + " --any-memory");
  REQUIRE(fits.status == 0);
  REQUIRE(free.status == 0);
  const auto within = nlohmann::json::parse(fits.output), fastest = nlohmann::json::parse(free.output);
  const auto over = [](const nlohmann::json& r) {
    double most = 0;
    for (std::size_t d = 0; d < r["memory_bytes"].size(); ++d)
      most = std::max(most, r["memory_bytes"][d].get<double>() / r["memory_capacity_bytes"][d].get<double>());
    return most;
  };
  CHECK(over(fastest) > 1);
  CHECK(over(within) <= 1);
  CHECK(within["cost_s"] > fastest["cost_s"]);
  CHECK(within["lower_bound_s"] == fastest["lower_bound_s"]);
  graph_of(100, 8192);
  const auto proved = w.run(command);
  CHECK(proved.status == 1);
  CHECK(proved.output == "");
  CHECK(proved.errors.find(
            "no program fits: parameters with their state, and gradients, take 100 GiB, the devices have 64.0 GiB") !=
        std::string::npos);
  graph_of(55, 8192);
  const auto none = w.run(command);
  CHECK(none.status == 1);
  CHECK(none.output == "");
  CHECK(none.errors.find("no program that was found fits: V100-PCIe-16GB needs ") != std::string::npos);
  CHECK(none.errors.find(" of its 16.0 GiB") != std::string::npos);
}

TEST_CASE("hetsched-spmd --fewer-devices: as fast as the fastest set of kinds, the others with a share of 0") {
  const workplace w;
  w.put("c.json", cluster_text);
  // Few rows and wide weights: the network between V100 and P100 costs more than a P100 computes.
  w.put("g.json", R"({"format": "hetsched/graph", "version": 1, "nodes": [
    {"name": "x", "op": "placeholder", "shape": [64, 4096]}, {"name": "w", "op": "parameter", "shape": [4096, 4096]},
    {"name": "h", "op": "matmul", "inputs": ["x", "w"]}, {"name": "p", "op": "softmax", "inputs": ["h"]},
    {"name": "v", "op": "parameter", "shape": [4096, 4096]}, {"name": "y", "op": "matmul", "inputs": ["p", "v"]},
    {"name": "q", "op": "softmax", "inputs": ["y"]}, {"name": "loss", "op": "sum", "inputs": ["q"]}]})");
  const auto result_of = [&](const std::string& devices) {
    const auto run = w.run("hetsched-spmd --graph g.json --cluster c.json --training --json --devices " + devices);
    CAPTURE(run.errors);
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.output);
  };
  const auto all = result_of("v:0:1x2,p:0:1x2"), fast = result_of("v:0:1x2"), slow = result_of("p:0:1x2"),
             fewer = result_of("v:0:1x2,p:0:1x2 --fewer-devices");
  const auto seconds = [](const nlohmann::json& r) { return r["cost_s"].get<double>(); };
  CHECK(seconds(fewer) == std::min({seconds(all), seconds(fast), seconds(slow)}));
  CHECK(seconds(fewer) < seconds(all));
  CHECK(fewer["ratios"][0] == std::vector<double>{0.5, 0.5, 0, 0});
  CHECK(fewer["memory_bytes"][2] == 0);
  CHECK(fewer["lower_bound_s"] <= fewer["cost_s"]);
  CHECK(fewer["data_parallel_s"] == all["data_parallel_s"]);
  // Sets that no link joins are passed over.
  CHECK(seconds(result_of("v:0:1x2,alone:0:1x1 --fewer-devices")) == seconds(fast));
}

TEST_CASE("hetsched-spmd: segments have shares of their own where that is faster, else there are none") {
  const workplace w;
  // Convolutions of many images, and two products of wide weights.
  w.put("c.json", cluster_text);
  const auto graph_with = [&](const std::string& segment) {
    std::string text = R"({"format": "hetsched/graph", "version": 1, "nodes": [
      {"name": "x", "op": "placeholder", "shape": [1024, 3, 32, 32]}, {"name": "k", "op": "parameter", "shape": [64, 3, 3, 3]},
      {"name": "c", "op": "conv2d", "inputs": ["x", "k"], "padding": 1}, {"name": "l", "op": "parameter", "shape": [128, 64, 3, 3]},
      {"name": "d", "op": "conv2d", "inputs": ["c", "l"], "padding": 1}, {"name": "p", "op": "max_pool2d", "inputs": ["d"], "window": [16, 16]},
      {"name": "f", "op": "reshape", "inputs": ["p"], "shape": [1024, 512]}, {"name": "w", "op": "parameter", "shape": [512, 16384]},
      {"name": "h", "op": "matmul", "inputs": ["f", "w"])" +
                       segment + R"(}, {"name": "v", "op": "parameter", "shape": [16384, 512]},
      {"name": "y", "op": "matmul", "inputs": ["h", "v"])" +
                       segment + R"(}, {"name": "q", "op": "softmax", "inputs": ["y"])" + segment + R"(},
      {"name": "loss", "op": "sum", "inputs": ["q"])" +
                       segment + "}]}";
    w.put("g.json", text);
  };
  const auto result_of = [&](const std::string& options) {
    const auto run =
        w.run("hetsched-spmd --graph g.json --cluster c.json --devices v:0:1x2,p:0:1x2 --training --json " + options);
    CAPTURE(run.errors);
    REQUIRE(run.status == 0);
    return nlohmann::json::parse(run.output);
  };
  graph_with("");
  const auto one = result_of("");
  graph_with(R"(, "segment": 1)");
  const auto named = result_of(""), none = result_of("--segments 1"), some = result_of("--segments 3");
  CHECK(none == one);
  for (const auto& r : {named, some}) {
    CHECK(r["cost_s"] <= one["cost_s"]);
    CHECK(r["lower_bound_s"] <= r["cost_s"]);
    CHECK((r["ratios"].size() > 1) == (r["cost_s"] < one["cost_s"]));
    for (const auto& shares : r["ratios"]) {
      double sum = 0;
      for (const double s : shares) sum += s;
      CHECK(sum == doctest::Approx(1));
    }
  }
  MESSAGE(one["cost_s"].get<double>(), ", named segments ", named["cost_s"].get<double>(), ", three ",
          some["cost_s"].get<double>());
  CHECK(w.run("hetsched-spmd --graph g.json --cluster c.json --segments 0").status == 2);
}

TEST_CASE("hetsched-spmd: what cannot be is said") {
  const workplace w;
  w.put("c.json", cluster_text);
  w.put("g.json", graph_text);
  const auto ends = [&](const std::string& options, int status, const std::string& error) {
    const auto run = w.run("hetsched-spmd --cluster c.json " + options);
    CAPTURE(options);
    CHECK(run.status == status);
    CHECK(run.output == "");
    CHECK(run.errors.find(error) != std::string::npos);
  };
  ends("--graph g.json", 1, "no link joins two of the devices");
  ends("--graph none.json", 2, "none.json");
  ends("--graph g.json --devices v:0:1x3", 2, "--devices");
  ends("--graph g.json --devices v:0:1x2,v:1:1x1", 2, "named twice");
  ends("--graph g.json --devices x:0:1x1", 2, "x");
  ends("--graph g.json --devices v:0:1x2,", 2, "expected SUBCLUSTER:FIRST:NODESxDEVICES");
  ends("--graph g.json --devices v:0:1x2:2,2,1", 2, "do not multiply to 2 devices");
  w.put(
      "n.json",
      R"({"format": "hetsched/graph", "version": 1, "nodes": [{"name": "x", "op": "placeholder", "shape": [4]}, {"name": "loss", "op": "sum", "inputs": ["x"]}]})");
  ends("--graph n.json --training --devices v:0:1x2", 2, "depends on no parameter");
  w.put(
      "v.json",
      R"({"format": "hetsched/graph", "version": 1, "nodes": [{"name": "w", "op": "parameter", "shape": [4]}, {"name": "y", "op": "relu", "inputs": ["w"]}]})");
  ends("--graph v.json --training --devices v:0:1x2", 2, "the loss must be a scalar");
}
