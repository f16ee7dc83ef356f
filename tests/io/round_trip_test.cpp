// SPDX-License-Identifier: Apache-2.0
// Files are written in units in which binary numbers are not exact; what was read still comes back bit for bit.
#include <hetsched/core/random.hpp>

#include "documents.hpp"

using namespace hetsched;

TEST_CASE("what the writers write, the readers take back equal") {
  const auto c = parse_cluster(documents::cluster, "x.json");
  CHECK(parse_cluster(to_json(c), "y.json") == c);
  const auto p = parse_profile(documents::profile, "x.json");
  CHECK(parse_profile(to_json(p), "y.json") == p);
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
      s.device.clock_hz = random.uniform(1e8, 3e9);
      s.device.memory_bytes = random.integer(1 << 20, 1 << 30);
      s.device.peak_flops[2] = random.uniform(1e12, 1e15);
    }
    const auto once = parse_cluster(to_json(c), "x.json");
    const auto twice = parse_cluster(to_json(once), "x.json");
    CAPTURE(to_json(once));
    CHECK(once == twice);
    CHECK(once.subclusters[0].device.memory_bytes == c.subclusters[0].device.memory_bytes);
    CHECK(once.subclusters[0].intra_node.bandwidth == doctest::Approx(c.subclusters[0].intra_node.bandwidth).epsilon(1e-15));
  }
}

TEST_CASE("pipelines come back equal, whichever of their optional parts they have") {
  random_source random(12);
  for (int round = 0; round < 500; ++round) {
    pipeline_file file{.microbatches = random.integer(1, 1000), .times = {}};
    const auto stages = random.integer(1, 9);
    const bool gradient = random.integer(0, 1) == 1, weight = random.integer(0, 1) == 1, bytes = random.integer(0, 1) == 1;
    for (int i = 0; i < stages; ++i) {
      file.times.forward_s.push_back(random.uniform(0, 1));
      file.times.backward_s.push_back(random.uniform(0, 2));
      if (weight) file.times.weight_backward_s.push_back(file.times.backward_s.back() * random.uniform(0, 1));
      if (bytes) file.times.activation_bytes.push_back(static_cast<double>(static_cast<bytes_t>(random.uniform(0, 1e15))));
      if (i + 1 < stages) file.times.transfer_s.push_back(random.uniform(0, 1e-3));
      if (gradient && i + 1 < stages) file.times.gradient_transfer_s.push_back(random.uniform(0, 1e-3));
    }
    CAPTURE(to_json(file));
    CHECK(parse_pipeline(to_json(file), "x.json") == file);
    CHECK_NOTHROW(validate(file.times));
  }
}
