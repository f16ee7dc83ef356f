// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/planners/interop_dp.hpp>

using namespace hetsched;

namespace {

// One mesh, two ways to run a stage on it: tensor parallel is a little faster per microbatch, data parallel pays no update.
struct two_degrees {
  double tensor_gain = 0.0005;

  [[nodiscard]] int layer_count() const { return 4; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.device_count() == 1) return {};
    return {{mesh, {.data = 1, .tensor = mesh.device_count()}}, {mesh, {.data = mesh.device_count(), .tensor = 1}}};
  }
  [[nodiscard]] stage_cost layer(int, const placement& where) const {
    const double slow = where.degrees.data > 1 ? 1 + tensor_gain : 1;
    return {.forward_s = 1 * slow, .backward_s = 2 * slow, .weight_bytes = 1, .activation_bytes = 1};
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }
  [[nodiscard]] double transfer(int, const placement&, const placement&) const { return 0; }
  [[nodiscard]] double update(layer_range, const placement& where) const { return where.degrees.tensor > 1 ? 5 : 0; }
};

cluster pairs(int nodes) {
  return {.subclusters = {{.name = "s",
                           .device = {.name = "d", .peak_flops = {1e12, 0, 0, 0}, .memory_bytes = 1000, .memory_bandwidth = 1},
                           .nodes = nodes,
                           .devices_per_node = 2,
                           .intra_node = {0, 1},
                           .inter_node = {0, 1}}}};
}

int data_parallel_stages(const plan& p) {
  int count = 0;
  for (const auto& s : p.pipelines.front().stages) count += s.degrees.data > 1;
  return count;
}

}  // namespace

TEST_CASE("degrees of one mesh that tie but for the update are told apart by the prediction") {
  for (const int nodes : {1, 2}) {
    CAPTURE(nodes);
    const auto hardware = pairs(nodes);
    const auto full = interop_dp(hardware, two_degrees{}, {.microbatches = 8});
    REQUIRE(full);
    const auto objective_only = interop_dp(hardware, two_degrees{}, {.microbatches = 8}, {.near_tie = 0});
    REQUIRE(objective_only);
    // The first stage ends last, so its update is in the iteration for certain.
    CHECK(full->pipelines.front().stages.front().degrees.data > 1);
    CHECK(data_parallel_stages(*objective_only) == 0);
    CHECK(full->predicted.iteration_s < objective_only->predicted.iteration_s);
    CHECK(full->evidence->objective_value > objective_only->evidence->objective_value);
    CHECK(full->evidence->objective_value <= 1.002 * objective_only->evidence->objective_value);
    CHECK(full->evidence->objective_bound == objective_only->evidence->objective_bound);
  }
}

TEST_CASE("a plan outside the share of a near-tie is not taken for its update") {
  const auto found = interop_dp(pairs(1), two_degrees{.tensor_gain = 0.01}, {.microbatches = 8});
  REQUIRE(found);
  CHECK(data_parallel_stages(*found) == 0);
}
