// SPDX-License-Identifier: Apache-2.0
// Files are written in units in which binary numbers are not exact; what was read still comes back bit for bit.
#include <variant>
#include <vector>

#include <hetsched/core/random.hpp>

#include "documents.hpp"

using namespace hetsched;

TEST_CASE("what the writers write, the readers take back equal") {
  const auto c = parse_cluster(documents::cluster, "x.json");
  CHECK(parse_cluster(to_json(c), "y.json") == c);
  const auto p = parse_profile(documents::profile, "x.json");
  CHECK(parse_profile(to_json(p), "y.json") == p);
  for (const auto& document : {documents::profile, documents::profile_2}) {
    const auto either = parse_profile_file(document, "x.json");
    CHECK(parse_profile_file(to_json(either), "y.json") == either);
  }
  for (const auto& document : {documents::plan, documents::plan_1}) {
    const auto plan = parse_plan(document, "x.json");
    CHECK(parse_plan(to_json(plan.plan, plan.subclusters, plan.device_counts), "y.json") == plan);
  }
  const auto line = parse_pipeline(documents::pipeline, "x.json");
  CHECK(parse_pipeline(to_json(line), "y.json") == line);
}

TEST_CASE("clusters with any numbers come back equal once they have been in a file") {
  random_source random(11);
  for (int round = 0; round < 500; ++round) {
    auto c = parse_cluster(documents::cluster, "x.json");
    for (auto& s : c.subclusters) {
      s.intra_node = {.latency_s = random.uniform(0, 1e-3), .bandwidth = random.uniform(1e6, 1e12)};
      s.inter_node = {.latency_s = random.uniform(0, 1e-3), .bandwidth = random.uniform(1e6, 1e12)};
      s.intra_node.kind = static_cast<link_kind>(random.integer(0, link_kind_count - 1));
      s.nics = random.integer(1, 8);
      s.device.clock_hz = random.uniform(1e8, 3e9);
      s.device.memory_bytes = random.integer(1 << 20, 1 << 30);
      s.device.peak_flops[2] = random.uniform(1e12, 1e15);
    }
    for (auto& l : c.links) l.bandwidth_back = random.integer(0, 1) * random.uniform(1e6, 1e12);
    const auto once = parse_cluster(to_json(c), "x.json");
    const auto twice = parse_cluster(to_json(once), "x.json");
    CAPTURE(to_json(once));
    CHECK(once == twice);
    CHECK(once.subclusters[0].intra_node.kind == c.subclusters[0].intra_node.kind);
    CHECK(once.subclusters[0].nics == c.subclusters[0].nics);
    CHECK(once.subclusters[0].device.memory_bytes == c.subclusters[0].device.memory_bytes);
    CHECK(once.subclusters[0].intra_node.bandwidth == doctest::Approx(c.subclusters[0].intra_node.bandwidth).epsilon(1e-15));
  }
}

TEST_CASE("pipelines come back equal, whichever of their optional parts they have") {
  random_source random(12);
  for (int round = 0; round < 500; ++round) {
    pipeline_file file{.microbatches = random.integer(1, 1000), .times = {}};
    const auto stages = random.integer(1, 9);
    const bool gradient = random.integer(0, 1) == 1, weight = random.integer(0, 1) == 1, bytes = random.integer(0, 1) == 1,
               there = random.integer(0, 1) == 1, back = random.integer(0, 1) == 1;
    for (int i = 0; i < stages; ++i) {
      file.times.forward_s.push_back(random.uniform(0, 1));
      file.times.backward_s.push_back(random.uniform(0, 2));
      if (weight) file.times.weight_backward_s.push_back(file.times.backward_s.back() * random.uniform(0, 1));
      if (bytes) file.times.activation_bytes.push_back(static_cast<double>(static_cast<bytes_t>(random.uniform(0, 1e15))));
      if (i + 1 < stages) file.times.transfer_s.push_back(random.uniform(0, 1e-3));
      if (gradient && i + 1 < stages) file.times.gradient_transfer_s.push_back(random.uniform(0, 1e-3));
      if (there && i + 1 < stages) file.times.transfer_occupied_s.push_back(file.times.activation_s(i) * random.uniform());
      if (back && i + 1 < stages) file.times.gradient_transfer_occupied_s.push_back(file.times.gradient_s(i) * random.uniform());
    }
    CAPTURE(to_json(file));
    CHECK(parse_pipeline(to_json(file), "x.json") == file);
    CHECK_NOTHROW(validate(file.times));
  }
}

TEST_CASE("each version of a profile is read as what it is") {
  CHECK(std::get<profile>(parse_profile_file(documents::profile, "x.json")) == parse_profile(documents::profile, "x.json"));
  const auto replicas = std::get<replica_profile>(parse_profile_file(documents::profile_2, "x.json"));
  REQUIRE(replicas.rows.size() == 3);
  CHECK(replicas.layers[0] == replica_layer{"embed", 4194304});
  const auto& all = replicas.rows[0];
  CHECK(all.subcluster == "v100e");
  CHECK(all.nodes == 2);
  CHECK(all.tensor == 4);
  CHECK(all.context == 2);
  CHECK(all.microbatch_size == 4);
  CHECK(all.gradient_bytes == std::vector<bytes_t>{200, 400});
  CHECK(all.update_s == std::vector{0.01, 0.02});
  CHECK(replicas.rows[2] == replica_row{.device = "T4",
                                        .microbatch_size = 8,
                                        .forward_s = {0.3, 0.6},
                                        .backward_s = {0.6, 1.2},
                                        .weight_bytes = {1000, 2000},
                                        .activation_bytes = {80, 160}});
  CHECK_THROWS_WITH_AS((void)parse_profile(documents::profile_2, "x.json"),
                       "x.json: /version: found 2, expected 1, the only version that this program knows", file_error);
}

TEST_CASE("a profile of either version tells what layers share") {
  for (std::string document : {documents::profile, documents::profile_2}) {
    const auto at = document.find("\"name\": \"", document.find("\"name\": \"") + 1);  // the second layer
    REQUIRE(at != std::string::npos);
    const auto with = [&](const std::string& copy) {
      return document.substr(0, at) + "\"copy_of\": " + copy + ", " + document.substr(at);
    };
    const auto told = parse_profile_file(with(R"({"layer": 0, "fraction": 0.75})"), "x.json");
    std::visit([](const auto& p) { CHECK(p.layers[1].copy_of == copied_part{0, 0.75}); }, told);
    CHECK(parse_profile_file(to_json(told), "y.json") == told);
    CHECK_THROWS_WITH_AS((void)parse_profile_file(with(R"({"layer": 1, "fraction": 0.75})"), "x.json"),
                         "x.json: /layers/1/copy_of/layer: found 1, expected another layer", file_error);
    CHECK_THROWS_AS((void)parse_profile_file(with(R"({"layer": 9, "fraction": 0.75})"), "x.json"), file_error);
    CHECK_THROWS_AS((void)parse_profile_file(with(R"({"layer": 0, "fraction": 0})"), "x.json"), file_error);
    CHECK_THROWS_AS((void)parse_profile_file(with(R"({"layer": 0})"), "x.json"), file_error);
  }
}
