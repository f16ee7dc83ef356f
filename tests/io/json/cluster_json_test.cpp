// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <hetsched/cluster/catalogue.hpp>
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

TEST_CASE("a cluster file may name the stack that runs there, or say it itself") {
  CHECK_FALSE(parse_cluster_file(documents::cluster, "x.json").stack);
  const auto with = [](const std::string& stack) {
    return parse_cluster_file(documents::with(documents::cluster, "\"devices\":", "\"stack\": " + stack + ", \"devices\":"),
                              "x.json");
  };
  CHECK(with("\"fsdp\"").stack == find_training_stack("fsdp"));
  CHECK(with("\"fsdp\"").hardware == parse_cluster(documents::cluster, "x.json"));
  const auto own = with(R"({"name": "mine", "margin": 0})").stack;
  REQUIRE(own);
  CHECK(own->overheads.margin == 0);
  CHECK_THROWS_WITH_AS((void)with("\"fsdq\""), doctest::Contains("x.json: /stack: there is no stack \"fsdq\""), file_error);
}

TEST_CASE("a device of the file overrides the catalogue's, and keeps what it does not name") {
  const auto text =
      documents::with(documents::cluster, "\"MyGPU\": {", "\"A100-SXM4-40GB\": {\"memory_gib\": 39.5}, \"MyGPU\": {");
  const auto c = parse_cluster(text, "x.json");
  auto wanted = *find_device("A100-SXM4-40GB");
  wanted.memory_bytes = 79 * gib / 2;
  CHECK(c.subclusters[1].device == wanted);
}

TEST_CASE("devices under the names that drivers print, and devices like another") {
  const auto parsed = [](const std::string& devices, const std::string& name) {
    return parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "devices": {)" + devices +
                             R"(}, "subclusters": [{"name": "a", "device": ")" + name +
                             R"(", "nodes": 1, "devices_per_node": 1}]})",
                         "x.json")
        .subclusters[0]
        .device;
  };
  CHECK(parsed("", "NVIDIA GeForce RTX 3090") == catalogue_device("RTX3090"));
  CHECK(parsed(R"("T4": {"memory_gib": 15})", "Tesla T4").memory_bytes == 15 * gib);
  CHECK(parsed(R"("Tesla T4": {"memory_gib": 15})", "T4").memory_bytes == 15 * gib);
  CHECK(parsed(R"("Tesla T4": {"memory_gib": 15})", "L4") == catalogue_device("L4"));

  const auto modded = parsed(R"("RTX3090-48GB": {"like": "NVIDIA GeForce RTX 3090", "memory_gib": 48})", "RTX3090-48GB");
  auto expected = catalogue_device("RTX3090");
  expected.name = "RTX3090-48GB";
  expected.memory_bytes = 48 * gib;
  CHECK(modded == expected);
  // what it is like, and not the catalogue's device of its name
  CHECK(parsed(R"("T4": {"like": "L4", "memory_gib": 15})", "T4").memory_bandwidth == catalogue_device("L4").memory_bandwidth);
  CHECK_THROWS_WITH_AS((void)parsed(R"("mine": {"like": "RTX309"})", "mine"),
                       doctest::Contains("/devices/mine/like: there is no device"), file_error);
}

TEST_CASE("price, board power, generation and fp8 peak are kept") {
  const auto text =
      documents::with(documents::cluster, "\"MyGPU\": {",
                      "\"A100-SXM4-40GB\": {\"price_per_hour\": 2.5, \"board_watts\": 400, \"generation\": \"Ampere\", "
                      "\"peak_tflops\": {\"fp16\": 312, \"fp8\": 624}}, \"MyGPU\": {");
  const auto c = parse_cluster(text, "x.json");
  const auto& own = c.subclusters[1].device;
  CHECK(own.price_per_hour == 2.5);
  CHECK(own.board_watts == 400);
  CHECK(own.generation == "Ampere");
  CHECK(own.fp8_flops == 624e12);
  CHECK(!c.subclusters[0].device.price_per_hour);
  CHECK(parse_cluster(to_json(c), "x.json") == c);
  const auto negative = documents::with(text, "\"price_per_hour\": 2.5", "\"price_per_hour\": -1");
  CHECK_THROWS_AS(static_cast<void>(parse_cluster(negative, "x.json")), file_error);
}

TEST_CASE("the price of a whole node is kept, and counts in place of the devices'") {
  const auto text = [](const char* price) {
    return std::string(
               R"({"format": "hetsched/cluster", "version": 1, "devices": {"T4": {"price_per_hour": 0.5}}, "subclusters": [
      {"name": "a", "device": "T4", "nodes": 1, "devices_per_node": 1, "price_per_node_hour": )") +
           price + R"(}, {"name": "b", "device": "T4", "nodes": 1, "devices_per_node": 1}]})";
  };
  const auto c = parse_cluster(text("3.5"), "x.json");
  CHECK(c.subclusters[0].price_per_node_hour == 3.5);
  CHECK(c.subclusters[0].price_per_hour(5, 2) == 7.0);
  CHECK(!c.subclusters[1].price_per_node_hour);
  CHECK(c.subclusters[1].price_per_hour(5, 2) == 2.5);
  CHECK(parse_cluster(to_json(c), "x.json") == c);
  for (const char* wrong : {"-1", "1e300", "null", "\"3\""})
    CHECK_THROWS_AS(static_cast<void>(parse_cluster(text(wrong), "x.json")), file_error);
}

TEST_CASE("how GPUs reach each other over a link is kept, and NCCL does where nothing is said") {
  const auto read = [](const std::string& inter_node, const std::string& link) {
    return parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
        {"name": "a", "device": "T4", "nodes": 2, "devices_per_node": 1, "inter_node": {"gbit_per_s": 64, "latency_us": 5)" +
                             inter_node + R"(}},
        {"name": "b", "device": "L4", "nodes": 1, "devices_per_node": 1}],
        "links": [{"between": ["a", "b"], "gbit_per_s": 5, "latency_us": 100)" +
                             link + "}]}",
                         "x.json");
  };
  const auto plain = read("", "");
  CHECK(plain.subclusters[0].inter_node_path == gpu_path{});
  CHECK(plain.links[0].path == gpu_path{});
  const auto said = read(R"(, "nic": "mlx5_0")", R"(, "nccl": false)");
  CHECK(said.subclusters[0].inter_node_path == gpu_path{.nccl = true, .nic = "mlx5_0"});
  CHECK(said.links[0].path == gpu_path{.nccl = false, .nic = ""});
  CHECK(parse_cluster(to_json(said), "x.json") == said);
  CHECK(parse_cluster(to_json(plain), "x.json") == plain);
  for (const auto* const wrong : {R"(, "nccl": 1)", R"(, "nic": "")", R"(, "nccl": false, "nic": "mlx5_0")"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(static_cast<void>(read(wrong, "")), file_error);
    CHECK_THROWS_AS(static_cast<void>(read("", wrong)), file_error);
  }
}

TEST_CASE("the kind of the link in a node: told, or what its bandwidth says between such devices") {
  const auto parse = [](const std::string& link, const std::string& device = "A100-SXM4-40GB") {
    return parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "subclusters": [{"name": "a", "device": ")" + device +
                             R"(", "nodes": 1, "devices_per_node": 8, "intra_node": {"latency_us": 5, )" + link + "}}]}",
                         "x.json");
  };
  const auto kind = [&](const std::string& link, const std::string& device = "A100-SXM4-40GB") {
    const auto c = parse(link, device);
    CHECK(parse_cluster(to_json(c), "y.json") == c);
    return c.subclusters[0].intra_node.kind;
  };
  CHECK(kind("\"gbit_per_s\": 2400") == link_kind::nvlink);
  CHECK(kind("\"gbit_per_s\": 3600", "NVIDIA H100 80GB HBM3") == link_kind::nvlink_sharp);
  CHECK(kind("\"gbit_per_s\": 256", "L40S") == link_kind::pcie);
  CHECK(kind("\"gbit_per_s\": 2100") == link_kind::measured);
  CHECK(kind("\"gbit_per_s\": 2400, \"kind\": \"measured\"") == link_kind::measured);
  CHECK(kind("\"gbit_per_s\": 128, \"kind\": \"pcie-p2p\"", "L40S") == link_kind::pcie_p2p);
  CHECK_THROWS_WITH_AS((void)parse("\"gbit_per_s\": 256, \"kind\": \"pci\""),
                       doctest::Contains("x.json: /subclusters/0/intra_node/kind: found \"pci\", expected one of"), file_error);
}

TEST_CASE("network ports of a node, and links that differ by direction") {
  const auto parse = [](const std::string& nics, const std::string& gbit, const std::string& inside = "100") {
    return parse_cluster(R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
      {"name": "a", "device": "T4", "nodes": 2, "devices_per_node": 1, "inter_node": {"gbit_per_s": )" +
                             inside + R"(, "latency_us": 5})" + nics + R"(},
      {"name": "b", "device": "T4", "nodes": 1, "devices_per_node": 1}],
      "links": [{"between": ["a", "b"], "latency_us": 20, "gbit_per_s": )" +
                             gbit + "}]}",
                         "x.json");
  };
  const auto c = parse(", \"nics\": 8", "[1, 20]");
  CHECK(c.subclusters[0].nics == 8);
  CHECK(c.subclusters[1].nics == 1);
  CHECK(c.between(0, 1)->bandwidth == gbit_per_s(1));
  CHECK(c.between(1, 0)->bandwidth == gbit_per_s(20));
  CHECK(c.between(1, 0)->latency_s == doctest::Approx(2e-5));
  CHECK(parse_cluster(to_json(c), "y.json") == c);
  CHECK(parse("", "3").links[0].bandwidth_back == 0);
  const auto refused = [&](const std::string& nics, const std::string& gbit, const std::string& inside, const char* why) {
    CHECK_THROWS_WITH_AS((void)parse(nics, gbit, inside), doctest::Contains(why), file_error);
  };
  refused(", \"nics\": 0", "1", "1", "x.json: /subclusters/0/nics");
  refused("", "[1]", "1", "/links/0/gbit_per_s: found an array of 1, expected a bandwidth, or two");
  refused("", "[1, 0]", "1", "/links/0/gbit_per_s/1");
  refused("", "[1, 2, 3]", "1", "/links/0/gbit_per_s");
  refused("", "1", "[1, 2]", "/subclusters/0/inter_node/gbit_per_s");
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

TEST_CASE("cluster.json: how fast devices were seen to train") {
  const std::string text = R"({
    "format": "hetsched/cluster", "version": 1,
    "devices": { "A100-SXM4-80GB": { "measured": [ {
      "model": { "format": "hetsched/model", "version": 1,
                 "transformer": { "layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000, "sequence": 512, "dtype": "bf16" } },
      "degrees": { "tensor": 2 }, "microbatch_size": 3, "tokens_per_s": 3396 } ] } },
    "subclusters": [ { "name": "a", "device": "A100-SXM4-80GB", "nodes": 1, "devices_per_node": 1 } ]
  })";
  const auto read = parse_cluster_file(text, "cluster.json");
  REQUIRE(read.anchors.size() == 1);
  const auto& a = read.anchors[0];
  CHECK(a.device == "A100-SXM4-80GB");
  CHECK(a.model.layers == 4);
  CHECK(a.model.sequence == 512);
  CHECK(a.precision == precision::bf16);
  CHECK(a.degrees == degrees{.tensor = 2});
  CHECK(a.microbatch_size == 3);
  CHECK(a.tokens_per_s == 3396);
  const auto complaint = [&](const std::string& from, const std::string& to) {
    auto other = text;
    other.replace(other.find(from), from.size(), to);
    try {
      (void)parse_cluster_file(other, "cluster.json");
    } catch (const file_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(complaint("\"tokens_per_s\": 3396", "\"tokens_per_s\": -1").find("/devices/A100-SXM4-80GB/measured/0/tokens_per_s") !=
        std::string::npos);
  const auto anchor = [&](const std::string& to) {
    auto other = text;
    other.replace(other.find("\"tokens_per_s\": 3396"), 20, to);
    return parse_cluster_file(other, "cluster.json").anchors[0];
  };
  CHECK(anchor("\"layer_s\": 0.02, \"recompute\": \"full\"").layer_s == 0.02);
  CHECK(anchor("\"layer_s\": 0.02, \"recompute\": \"full\"").recompute == recomputation::full);
  const auto whole = anchor("\"tokens_per_s\": 2, \"nodes\": 2, \"zero\": 1, \"microbatches\": 8");
  CHECK(std::array{whole.nodes, whole.zero, whole.microbatches} == std::array{2, 1, 8});
  CHECK(complaint("\"tokens_per_s\": 3396", "\"tokens_per_s\": 1, \"layer_s\": 1").find("/measured/0/tokens_per_s") !=
        std::string::npos);
  CHECK(complaint("\"tokens_per_s\": 3396", "\"layer_s\": 1, \"recompute\": \"some\"").find("one of none, selective, full") !=
        std::string::npos);
  CHECK(complaint("\"degrees\"", "\"degree\"").find("did you mean \"degrees\"") != std::string::npos);
  // A speed that is known needs no model.
  auto known = parse_cluster(text, "cluster.json");
  known.subclusters[0].device.speed = 0.75;
  CHECK(parse_cluster(to_json(known), "again").subclusters[0].device.speed == 0.75);
}
