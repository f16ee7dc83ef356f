// SPDX-License-Identifier: Apache-2.0
#include "../documents.hpp"

using namespace hetsched;

TEST_CASE("cluster.json in the library's units") {
  const auto c = parse_cluster(documents::cluster, "x.json");
  REQUIRE(c.subclusters.size() == 2);
  const auto& s = c.subclusters[0];
  CHECK(s.name == "v100e");
  CHECK(s.nodes == 4);
  CHECK(s.devices_per_node == 8);
  CHECK(s.intra_node.bandwidth == 150e9);
  CHECK(s.inter_node.latency_s == doctest::Approx(1e-5));
  CHECK(s.device.flops(precision::fp16) == 125e12);
  CHECK(s.device.flops(precision::bf16) == 125e12);
  CHECK(s.device.memory_bytes == 32 * gib);
  CHECK(s.device.memory_bandwidth == 900e9);
  CHECK(s.device.l2_bytes == 6 * mib);
  CHECK(s.device.clock_hz == 1530e6);
  CHECK(c.subclusters[1].device == *find_device("A100-SXM4-40GB"));
  const auto cross = c.between(1, 0);
  REQUIRE(cross);
  CHECK(cross->bandwidth == 0.625e9);
  CHECK(cross->latency_s == doctest::Approx(1e-4));
}

TEST_CASE("a device of the file overrides the catalogue's, and keeps what it does not name") {
  const auto text =
      documents::with(documents::cluster, "\"MyGPU\": {", "\"A100-SXM4-40GB\": {\"memory_gib\": 39.5}, \"MyGPU\": {");
  const auto c = parse_cluster(text, "x.json");
  auto wanted = *find_device("A100-SXM4-40GB");
  wanted.memory_bytes = 79 * gib / 2;
  CHECK(c.subclusters[1].device == wanted);
}

TEST_CASE("without links a pair cannot exchange data, and one node needs no inter_node link") {
  const auto c = parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
      {"name": "a", "device": "T4", "nodes": 1, "devices_per_node": 2, "intra_node": {"gbit_per_s": 64, "latency_us": 5}},
      {"name": "b", "device": "L4", "nodes": 1, "devices_per_node": 1}]})",
                               "x.json");
  CHECK_FALSE(c.between(0, 1));
  CHECK_NOTHROW(validate(c));
  CHECK(parse_cluster(to_json(c), "x.json") == c);
}
