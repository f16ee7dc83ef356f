// SPDX-License-Identifier: Apache-2.0
// Links of cluster.json, through the commands: kinds, network ports, directions.
#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include <doctest/doctest.h>

#include "workplace.hpp"

namespace {

using hetsched::test::workplace;
using json = nlohmann::json;

std::string hopper(const std::string& inside, const std::string& between) {
  return R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "h", "device": "H100-SXM5-80GB", "nodes": 2,
    "devices_per_node": 8, "intra_node": {"latency_us": 5, )" +
         inside + R"(}, "inter_node": {"gbit_per_s": 400, "latency_us": 8})" + between + "}]}";
}

const std::string nvlink = "\"gbit_per_s\": 3600", eight = ", \"nics\": 8";

struct place : workplace {
  place() {
    put("m.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 8, "hidden": 4096, "heads": 32,
      "vocab": 32000, "sequence": 2048, "dtype": "bf16"}})");
    // All sixteen devices hold all layers, in eight tensor ranks.
    put("p.json", R"({"format": "hetsched/plan", "version": 2, "planner": "by hand", "objective": "iteration",
      "subclusters": [{"name": "h", "devices": 16}], "setting": {"costs": "tile", "granularity": "block", "sequence": 2048,
      "precision": "bf16", "attention": "flash"}, "pipelines": [{"schedule": {"name": "1f1b"}, "microbatches": 2,
      "microbatch_size": 2, "stages": [{"layers": [0, 9], "devices": [{"subcluster": "h", "first_device": 0, "nodes": 2,
      "devices_per_node": 8}], "degrees": {"data": 2, "tensor": 8}, "zero": 0, "recompute": "none", "warmup": 1}]}]})");
  }
  [[nodiscard]] json predicted(const std::string& cluster) const {
    put("c.json", cluster);
    const auto r = run("hetsched-predict --cluster c.json --model m.json --plan p.json --json");
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return json::parse(r.output);
  }
};

double iteration_s(const json& told) { return told["iteration_s"].get<double>(); }
double collectives_s(const json& told) { return told["breakdown"]["collective_s"].get<double>(); }

}  // namespace

TEST_CASE("collectives get of a datasheet's link what NCCL gets of it, and all of a measured one") {
  const place w;
  const double nominal = collectives_s(w.predicted(hopper(nvlink, eight)));
  const double measured = collectives_s(w.predicted(hopper(nvlink + ", \"kind\": \"measured\"", eight)));
  const double slower = collectives_s(w.predicted(hopper(nvlink + ", \"kind\": \"pcie\"", eight)));
  CHECK(nominal > 0);
  CHECK(nominal != measured);
  CHECK(slower > 2 * nominal);
}

TEST_CASE(
    "eight network ports add up gradients eight times as fast as one; the summary says what they make, and one is asked about") {
  const place w;
  const double one = iteration_s(w.predicted(hopper(nvlink, ""))), all = iteration_s(w.predicted(hopper(nvlink, eight)));
  // 1.9e9 parameters in 8 parts, two bytes each, from and to both nodes: 8 rings of 0.5e9 bytes over 50e9 bytes/s or 400e9.
  CHECK(one - all > 0.06);
  CHECK(one - all < 0.08);
  const auto planned = [&](const std::string& nics) {
    w.put("c.json", hopper(nvlink, nics));
    return w.run("hetsched-plan --cluster c.json --model m.json --global-batch 32 --microbatch-size 4 --granularity block");
  };
  const auto with = planned(eight), without = planned("");
  CHECK(with.output.find("h: 3600 in a node (nvlink-sharp), 8 x 400 = 3200 between nodes") != std::string::npos);
  CHECK(with.errors.find("nics") == std::string::npos);
  CHECK(without.output.find("h: 3600 in a node (nvlink-sharp), 400 between nodes") != std::string::npos);
  CHECK(without.errors.find("the 8 devices of a node of h share 400 Gbit/s to other nodes; if each has a port of that rate, say "
                            "\"nics\": 8") != std::string::npos);
}

TEST_CASE("activations go up a slow link, gradients come down a fast one") {
  const place w;
  w.put("q.json", R"({"format": "hetsched/plan", "version": 2, "planner": "by hand", "objective": "iteration",
    "subclusters": [{"name": "a", "devices": 1}, {"name": "b", "devices": 1}], "setting": {"costs": "tile",
    "granularity": "block", "sequence": 2048, "precision": "fp16", "attention": "flash"}, "pipelines": [{"schedule":
    {"name": "1f1b"}, "microbatches": 2, "microbatch_size": 1, "stages": [
    {"layers": [0, 4], "devices": [{"subcluster": "a", "first_device": 0, "nodes": 1, "devices_per_node": 1}], "degrees": {},
     "zero": 0, "recompute": "none", "warmup": 2},
    {"layers": [5, 9], "devices": [{"subcluster": "b", "first_device": 0, "nodes": 1, "devices_per_node": 1}], "degrees": {},
     "zero": 0, "recompute": "none", "warmup": 1}]}]})");
  const auto ways = [&](const std::string& gbit) {
    w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
      {"name": "a", "device": "A100-SXM4-80GB", "nodes": 1, "devices_per_node": 1},
      {"name": "b", "device": "A100-SXM4-80GB", "nodes": 1, "devices_per_node": 1}],
      "links": [{"between": ["a", "b"], "latency_us": 100, "gbit_per_s": )" +
                        gbit + "}]}");
    const auto r = w.run("hetsched-predict --cluster c.json --model m.json --plan q.json --dtype fp16 --out full.json --json");
    CAPTURE(r.errors);
    REQUIRE(r.status != 2);
    return json::parse(w.get("full.json"))["pipelines"][0]["boundaries"][0];
  };
  const double bytes = 2048.0 * 4096 * 2;
  const auto told = ways("[1, 20]"), turned = ways("[20, 1]");
  CHECK(told["forward_s"].get<double>() == doctest::Approx(1e-4 + bytes * 8 / 1e9));
  CHECK(told["backward_s"].get<double>() == doctest::Approx(1e-4 + bytes * 8 / 20e9));
  CHECK(turned["forward_s"] == told["backward_s"]);
  CHECK(turned["backward_s"] == told["forward_s"]);
}

TEST_CASE("pairs of stages that ask more of one link than it carries are told") {
  const place w;
  w.put("s.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 16, "hidden": 2048, "heads": 16,
    "vocab": 32000, "sequence": 1024, "dtype": "bf16"}})");
  for (const bool slow : {true, false}) {
    w.put("two.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
      {"name": "a", "device": "A100-SXM4-40GB", "nodes": 1, "devices_per_node": 2,
       "intra_node": {"gbit_per_s": 2400, "latency_us": 5}},
      {"name": "v", "device": "V100-SXM2-32GB", "nodes": 1, "devices_per_node": 4,
       "intra_node": {"gbit_per_s": 1200, "latency_us": 5}}],
      "links": [{"between": ["a", "v"], "latency_us": 20, "gbit_per_s": )" +
                          std::string(slow ? "4" : "100") + "}]}");
    const auto r = w.run("hetsched-plan --cluster two.json --model s.json --global-batch 64 --microbatch-size 2 --json");
    REQUIRE(r.status == 0);
    const auto plan = json::parse(r.output)["plan"];
    double there_s = 0;
    int pairs = 0;
    for (const auto& line : plan["pipelines"])
      for (std::size_t i = 0; i + 1 < line["stages"].size(); ++i) {
        const auto kind = [&](std::size_t s) { return line["stages"][s]["devices"][0]["subcluster"]; };
        if (kind(i) == kind(i + 1)) continue;
        ++pairs;
        there_s += line["boundaries"][i]["forward_s"].get<double>() * line["microbatches"].get<int>();
      }
    const double iteration_s = plan["predicted"]["iteration_s"].get<double>();
    REQUIRE(pairs > 1);
    CHECK((there_s > iteration_s) == slow);
    const auto said =
        "between a and v: " + std::to_string(pairs) + " pairs of stages, each priced at the whole rate of the link; ";
    CHECK((r.errors.find(said) != std::string::npos) == slow);
  }
}
