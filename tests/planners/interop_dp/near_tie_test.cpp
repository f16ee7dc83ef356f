// SPDX-License-Identifier: Apache-2.0
#include <utility>
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

TEST_CASE("an update that costs more than degrees gain decides for others, whatever counts as a near-tie") {
  for (const int nodes : {1, 2})
    for (const double near_tie : {0.0, 0.002}) {
      CAPTURE(nodes);
      CAPTURE(near_tie);
      const auto hardware = pairs(nodes);
      const auto found = interop_dp(hardware, two_degrees{}, {.microbatches = 8}, {.gap = 0, .near_tie = near_tie});
      REQUIRE(found);
      // The first stage ends last, so its update is in the iteration for certain.
      CHECK(found->pipelines.front().stages.front().degrees.data > 1);
      CHECK(found->evidence->complete);
      // One stage of 12 s; or two of half the layers, the second of which ends before the first one's last backward of 4 s.
      const double least = nodes == 1 ? 8 * 12 * 1.0005 : 12 + 7 * 6;
      CHECK(found->predicted.iteration_s >= least * (1 - 1e-12));
      CHECK(found->predicted.iteration_s <= least * 1.0015);
      CHECK(found->evidence->objective_bound <= found->predicted.iteration_s);
    }
}

TEST_CASE("degrees that gain more than their update costs are taken") {
  for (const auto& [gain, data] : {std::pair{0.04, 1}, {0.06, 0}}) {  // of 8 * 12 s: 3.84 s and 5.76 s
    CAPTURE(gain);
    const auto found = interop_dp(pairs(1), two_degrees{.tensor_gain = gain}, {.microbatches = 8}, {.gap = 0});
    REQUIRE(found);
    CHECK(data_parallel_stages(*found) == data);
    CHECK(found->predicted.iteration_s == doctest::Approx(data == 1 ? 96 * (1 + gain) : 96 + 5.0).epsilon(1e-12));
  }
}
