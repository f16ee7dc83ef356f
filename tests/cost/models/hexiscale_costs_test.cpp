// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/hexiscale_costs.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>

using namespace hetsched;

namespace {

/// Two nodes of four 4090s, and an island of two 3090s that has no link to a third, unjoined kind.
cluster three_kinds() {
  const hetsched::link pcie{1e-5, 32e9}, ethernet{1e-4, 0.7e9};
  cluster c{.subclusters = {{"a", catalogue_device("RTX4090"), 2, 4, pcie, ethernet},
                            {"b", catalogue_device("RTX3090"), 1, 2, {2e-5, 24e9}, {}},
                            {"c", catalogue_device("RTX3090"), 1, 1, {}, {}}}};
  connect(c, "a", "b", {2e-4, 0.5e9});
  return c;
}

constexpr hexiscale_model llama{.layers = 6, .hidden = 6656, .sequence = 2048};
constexpr hexiscale_cost::layer_shape shape{.samples = 2, .sequence = 2048, .hidden = 6656};

placement on(int subcluster, int devices) {
  return {.mesh = {subcluster, 1, devices}, .degrees = {1, 1, devices}, .recompute = recomputation::full};
}

}  // namespace

TEST_CASE("stages and transfers cost what HexiScale's formulas say of their devices") {
  const auto c = three_kinds();
  const hexiscale_cost_model costs(c, llama, {.microbatch_size = 2});
  CHECK(costs.layer_count() == 6);
  const std::vector<device_id> four{{0, 1, 0}, {0, 1, 1}, {0, 1, 2}, {0, 1, 3}}, two{{1, 0, 0}, {1, 0, 1}};
  const auto stage = costs.stage({0, 3}, on(0, 4));
  CHECK(stage.total_s() == doctest::Approx(3 * (hexiscale_cost::compute_layer_s(shape, 165.2e12, 4) +
                                                hexiscale_cost::tensor_layer_s(shape, c, four))));
  CHECK(static_cast<double>(stage.weight_bytes + stage.activation_bytes) ==
        doctest::Approx(3 * hexiscale_cost::layer_bytes(shape, 4)));
  const auto one = std::vector<device_id>{{0, 0, 0}};
  CHECK(costs.transfer(2, on(0, 1), on(0, 4)).round_trip_s() == doctest::Approx(hexiscale_cost::boundary_s(shape, c, one, four)));
  CHECK(costs.transfer(2, on(0, 4), on(1, 2)).round_trip_s() == doctest::Approx(hexiscale_cost::boundary_s(shape, c, four, two)));
  CHECK(costs.transfer(2, on(1, 2), on(0, 4)).round_trip_s() == doctest::Approx(hexiscale_cost::boundary_s(shape, c, two, four)));
  const std::vector<device_id> first{{0, 0, 0}, {0, 0, 1}}, second{{0, 0, 2}, {0, 0, 3}};
  CHECK(costs.transfer(2, on(0, 2), on(0, 2), proximity::same_node).round_trip_s() ==
        doctest::Approx(hexiscale_cost::boundary_s(shape, c, first, second)));
  CHECK(costs.transfer(2, on(1, 1), on(1, 1)).round_trip_s() ==
        doctest::Approx(hexiscale_cost::boundary_s(shape, c, std::vector{two[0]}, std::vector{two[1]})));
  CHECK(std::isinf(costs.transfer(2, on(0, 1), on(2, 1)).forward_s));
}

TEST_CASE("placements are tensor-parallel groups on one node") {
  const hexiscale_cost_model costs(three_kinds(), llama, {.max_tensor = 2});
  CHECK(costs.placements({0, 1, 2}) == std::vector{on(0, 2)});
  CHECK(costs.placements({0, 1, 4}).empty());
  CHECK(costs.placements({0, 2, 4}).empty());
  CHECK_THROWS_AS(hexiscale_cost_model(three_kinds(), {}), input_error);
}

TEST_CASE("gradients are added up in chunks, or among all devices as Eq. 4 has it") {
  const auto c = three_kinds();
  const std::vector<placement> apart{on(0, 4), on(1, 2)}, singles{on(0, 1), on(1, 1)}, joined{on(0, 4), on(0, 4)};
  for (const auto reduction : {hexiscale_reduction::chunks, hexiscale_reduction::all}) {
    const hexiscale_cost_model costs(c, llama, {.microbatch_size = 2, .reduction = reduction});
    CHECK(costs.gradient_sync({0, 3}, singles).seconds ==
          doctest::Approx(3 * hexiscale_cost::gradient_layer_s(shape, c, std::vector<device_id>{{0, 0, 0}, {1, 0, 0}})));
    CHECK(costs.gradient_sync({0, 3}, std::span(apart).first(1)).seconds == 0);
    CHECK(std::isinf(costs.gradient_sync({0, 3}, std::vector{on(0, 4), on(2, 1)}).seconds));
  }
  const hexiscale_cost_model all(c, llama, {.microbatch_size = 2, .reduction = hexiscale_reduction::all});
  const std::vector<device_id> six{{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}, {1, 0, 0}, {1, 0, 1}};
  CHECK(all.gradient_sync({0, 3}, apart).seconds == doctest::Approx(3 * hexiscale_cost::gradient_layer_s(shape, c, six)));
  // A device of the pair has two of the four chunks, and exchanges each with another device.
  const hexiscale_cost_model chunks(c, llama, {.microbatch_size = 2});
  const double gradients = shape.parameter_bytes();
  CHECK(chunks.gradient_sync({0, 1}, apart).seconds == doctest::Approx(2 * 2 * (2e-4 + gradients / 4 / 2 / 0.5e9)));
  CHECK(chunks.gradient_sync({0, 1}, joined).seconds == doctest::Approx(2 * (1e-4 + gradients / 4 / 2 / 0.7e9)));
  CHECK(chunks.gradient_sync({0, 1}, apart).bytes == static_cast<bytes_t>(gradients));
}
