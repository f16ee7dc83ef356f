// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cost/questions/any_cost_model.hpp>

namespace {

using namespace hetsched;

// Answers only what it must.
struct bare_model {
  int layer_count() const { return 3; }
  std::vector<placement> placements(const submesh& mesh) const { return {{.mesh = mesh}}; }
  stage_cost stage(layer_range layers, const placement&) const {
    return {.forward_s = 1.0 + layers.size(), .backward_s = 2, .weight_bytes = layers.first};
  }
  double transfer(int boundary, const placement&, const placement&) const { return boundary + 0.5; }
};

// Answers everything, each with a figure of its own.
struct full_model : bare_model {
  stage_cost layer(int index, const placement&) const { return {.forward_s = 10.0 * index}; }
  transfer_cost transfer(int boundary, const placement&, const placement&, proximity near) const {
    return {double(boundary), near == proximity::same_node ? 7.0 : 8.0};
  }
  transfer_cost transfer(int boundary, const placement& a, const placement& b) const {
    return transfer(boundary, a, b, proximity::other_node);
  }
  double update(layer_range layers, const placement&) const { return 0.25 * layers.size(); }
  reduction_cost gradient_sync(layer_range, std::span<const placement> holders) const { return {double(holders.size()), 64}; }
  memory_overheads overheads(const placement&) const { return {.runtime_bytes = 5}; }
  std::vector<parameter_copy> copies(const placement& where) const {
    return {{.owner = 0, .layer = 3, .weight_bytes = 8 / where.degrees.tensor}};
  }
  int slices() const { return 12; }
  parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    return {.slowest = {.forward_s = double(layers.size())}, .parts = std::vector<stage_cost>(parts.size())};
  }
  std::int64_t transfer_class(const placement& where) const { return where.degrees.tensor; }
  std::int64_t boundary_class(int boundary) const { return boundary % 2; }
};

// Forwards, and cannot say before run time what it is able to do.
struct forwarding_model : full_model {
  bool says = false;
  bool additive() const { return says; }
  bool has_transfer_class() const { return says; }
  bool asks_proximity() const { return says; }
};

const placement somewhere{.mesh = {0, 1, 2}, .degrees = {.tensor = 2}};

TEST_CASE("any_cost_model answers what the model answers") {
  const full_model model;
  const any_cost_model any(model);
  CHECK(any.layer_count() == 3);
  CHECK(any.placements({0, 1, 1}).size() == 1);
  CHECK(any.stage({1, 3}, somewhere) == model.stage({1, 3}, somewhere));
  CHECK(any.layer(2, somewhere).forward_s == 20);
  CHECK(any.transfer(1, somewhere, somewhere, proximity::same_node) == transfer_cost(1, 7));
  CHECK(any.transfer(1, somewhere, somewhere) == transfer_cost(1, 8));
  CHECK(any.update({0, 2}, somewhere) == 0.5);
  CHECK(any.gradient_sync({0, 1}, std::vector{somewhere, somewhere}) == reduction_cost(2, 64));
  CHECK(any.overheads(somewhere).runtime_bytes == 5);
  CHECK(any.copies(somewhere) == model.copies(somewhere));
  CHECK(any.slices() == 12);
  CHECK(any.sliced_stage({0, 3}, std::vector<stage_part>(2)).parts.size() == 2);
  CHECK(any.transfer_class(somewhere) == 2);
  CHECK(any.boundary_class(3) == 1);
  CHECK(any.additive());
  CHECK(any.has_transfer_class());
  CHECK(any.asks_proximity());
}

TEST_CASE("what a model does not answer has the defaults of the questions") {
  const bare_model model;
  const any_cost_model any(model);
  CHECK(any.layer(2, somewhere) == model.stage({2, 3}, somewhere));
  CHECK(any.transfer(1, somewhere, somewhere, proximity::same_node) == transfer_cost(1.5));
  CHECK(any.update({0, 2}, somewhere) == 0);
  CHECK(any.gradient_sync({0, 1}, {}) == reduction_cost());
  CHECK(any.overheads(somewhere) == memory_overheads());
  CHECK(any.copies(somewhere).empty());
  CHECK(any.slices() == 0);
  CHECK_THROWS_AS((void)any.sliced_stage({0, 3}, {}), input_error);
  CHECK(any.boundary_class(3) == 3);
  CHECK_FALSE(any.additive());
  CHECK_FALSE(any.has_transfer_class());
  CHECK_FALSE(any.asks_proximity());
}

TEST_CASE("a model that forwards says at run time what it is able to answer; a copy refers to the same model") {
  forwarding_model model;
  const any_cost_model any(model), copy(any);
  CHECK_FALSE(copy.additive());
  CHECK_FALSE(copy.has_transfer_class());
  CHECK_FALSE(copy.asks_proximity());
  model.says = true;
  CHECK(copy.additive());
  CHECK(copy.has_transfer_class());
  CHECK(copy.asks_proximity());
}

static_assert(stage_cost_model<any_cost_model> && additive_cost_model<any_cost_model>);

}  // namespace
