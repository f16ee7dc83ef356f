// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <span>
#include <string>
#include <vector>

#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace {

using hetsched::additive_cost_model;
using hetsched::layer_range;
using hetsched::placement;
using hetsched::stage_cost;
using hetsched::stage_cost_model;
using hetsched::submesh;

// The least a cost model needs.
struct archetype {
  int layer_count() const { return 4; }
  std::vector<placement> placements(const submesh& mesh) const { return {{mesh, {1, 1, mesh.device_count()}}}; }
  stage_cost stage(layer_range layers, const placement&) const {
    return {.forward_s = 1.0 * layers.size(), .backward_s = 2, .weight_bytes = 3, .activation_bytes = 4};
  }
  double transfer(int boundary, const placement&, const placement&) const { return boundary; }
};
static_assert(stage_cost_model<archetype>);
static_assert(!additive_cost_model<archetype>);

// The least an additive one needs.
struct additive_archetype : archetype {
  stage_cost layer(int index, const placement&) const {
    return {.forward_s = 1.0 * index, .backward_s = 1, .weight_bytes = index, .activation_bytes = 1};
  }
  stage_cost stage(layer_range layers, const placement& where) const { return hetsched::sum_of_layers(*this, layers, where); }
};
static_assert(additive_cost_model<additive_archetype>);

struct with_everything : additive_archetype {
  double update(layer_range layers, const placement&) const { return 10.0 * layers.size(); }
  int transfer_class(const placement& where) const { return where.degrees.tensor; }
  hetsched::reduction_cost gradient_sync(layer_range layers, std::span<const placement>) const { return {0.5, layers.size()}; }
  hetsched::memory_overheads overheads(const placement&) const { return {.margin = 0.25}; }
  std::vector<hetsched::parameter_copy> copies(const placement&) const { return {{.owner = 1, .layer = 3, .weight_bytes = 2}}; }
  int slices() const { return 6; }
  hetsched::parts_cost sliced_stage(layer_range layers, std::span<const hetsched::stage_part> parts) const {
    return {.slowest = {.forward_s = 1.0 * layers.size()}, .parts = std::vector<stage_cost>(parts.size())};
  }
};
static_assert(additive_cost_model<with_everything>);

// Prices by where the stages lie.
struct by_node : archetype {
  double transfer(int boundary, const placement&, const placement&,
                  hetsched::proximity near = hetsched::proximity::other_node) const {
    return near == hetsched::proximity::same_node ? 0.5 : boundary;
  }
};
static_assert(stage_cost_model<by_node>);
static_assert(hetsched::detail::cost_model::asks_proximity<by_node>);
static_assert(!hetsched::detail::cost_model::asks_proximity<archetype>);
static_assert(!hetsched::detail::cost_model::asks_proximity<with_everything>);

template <class M>
concept has_transfer_class = requires(const M& m, const placement& p) {
  hetsched::cost_of::transfer_class(m, p);
};
static_assert(has_transfer_class<with_everything>);
static_assert(!has_transfer_class<archetype>);

}  // namespace

// A type of somebody else, fitted with free functions next to it.
namespace elsewhere {

struct table {
  std::vector<double> seconds;
};
inline int layer_count(const table& t) { return static_cast<int>(t.seconds.size()); }
inline std::vector<placement> placements(const table&, const submesh& mesh) { return {{mesh, {1, 1, mesh.device_count()}}}; }
inline stage_cost layer(const table& t, int index, const placement&) {
  return {.forward_s = t.seconds[static_cast<std::size_t>(index)]};
}
inline stage_cost stage(const table& t, layer_range layers, const placement& where) {
  return hetsched::sum_of_layers(t, layers, where);
}
inline hetsched::transfer_cost transfer(const table&, int, const placement&, const placement&) {
  return {0.25, 0.5, 7, 8, "direct"};
}
inline double gradient_sync(const table&, layer_range layers, std::span<const placement> holders) {
  return static_cast<double>(layers.size()) * static_cast<double>(holders.size());
}
inline hetsched::memory_overheads overheads(const table&, const placement&) { return {.runtime_bytes = 9}; }
inline double update(const table&, layer_range, const placement&) { return 7; }
inline int transfer_class(const table&, const placement&) { return 5; }
inline int slices(const table&) { return 3; }
inline hetsched::parts_cost sliced_stage(const table&, layer_range, std::span<const hetsched::stage_part> parts) {
  return {.slowest = {.forward_s = 1.0 * parts.front().slices}};
}

struct placed_table : table {};
inline double transfer(const placed_table&, int, const placement&, const placement&,
                       hetsched::proximity near = hetsched::proximity::other_node) {
  return near == hetsched::proximity::same_node ? 1 : 2;
}

}  // namespace elsewhere

namespace {

static_assert(additive_cost_model<elsewhere::table>);
static_assert(stage_cost_model<elsewhere::placed_table> && hetsched::detail::cost_model::asks_proximity<elsewhere::placed_table>);
static_assert(!hetsched::detail::cost_model::asks_proximity<elsewhere::table>);

// Each misses or spoils one piece.
struct no_layer_count {
  std::vector<placement> placements(const submesh&) const;
  stage_cost stage(layer_range, const placement&) const;
  double transfer(int, const placement&, const placement&) const;
};
struct no_placements {
  int layer_count() const;
  stage_cost stage(layer_range, const placement&) const;
  double transfer(int, const placement&, const placement&) const;
};
struct no_stage {
  int layer_count() const;
  std::vector<placement> placements(const submesh&) const;
  stage_cost layer(int, const placement&) const;
  double transfer(int, const placement&, const placement&) const;
};
struct no_transfer {
  int layer_count() const;
  std::vector<placement> placements(const submesh&) const;
  stage_cost stage(layer_range, const placement&) const;
};
struct not_const {
  int layer_count();
  std::vector<placement> placements(const submesh&);
  stage_cost stage(layer_range, const placement&);
  double transfer(int, const placement&, const placement&);
};
struct wrong_stage : archetype {
  double stage(layer_range, const placement&) const;
};
struct wrong_placements : archetype {
  std::vector<submesh> placements(const submesh&) const;
};
struct wrong_transfer : archetype {
  std::string transfer(int, const placement&, const placement&) const;
};
struct always_asks : archetype {
  double transfer(int, const placement&, const placement&, hetsched::proximity) const;
};
struct wrong_layer : archetype {
  double layer(int, const placement&) const;
};
static_assert(!stage_cost_model<no_layer_count>);
static_assert(!stage_cost_model<no_placements>);
static_assert(!stage_cost_model<no_stage> && !additive_cost_model<no_stage>);
static_assert(!stage_cost_model<no_transfer>);
static_assert(!stage_cost_model<not_const>);
static_assert(!stage_cost_model<wrong_stage>);
static_assert(!stage_cost_model<wrong_placements>);
static_assert(!stage_cost_model<wrong_transfer>);
static_assert(!stage_cost_model<always_asks>);
static_assert(stage_cost_model<wrong_layer> && !additive_cost_model<wrong_layer>);
static_assert(!stage_cost_model<int>);

// Free functions that argument-dependent lookup does not find do not count.
struct stranger {};
[[maybe_unused]] int layer_count(int) { return 0; }
static_assert(!stage_cost_model<stranger>);

}  // namespace

TEST_CASE("members and free functions are reached alike") {
  const placement where{{0, 1, 2}, {1, 1, 2}};
  const archetype plain;
  CHECK(hetsched::cost_of::layer_count(plain) == 4);
  CHECK(hetsched::cost_of::placements(plain, submesh{0, 1, 2}) == std::vector{where});
  CHECK(hetsched::cost_of::stage(plain, {1, 3}, where).forward_s == 2);
  CHECK(hetsched::cost_of::transfer(plain, 3, where, where) == hetsched::transfer_cost{3, 3});
  CHECK(hetsched::cost_of::gradient_sync(plain, {0, 4}, std::vector{where, where}) == hetsched::reduction_cost{});
  CHECK(hetsched::cost_of::overheads(plain, where) == hetsched::memory_overheads{});
  CHECK(hetsched::cost_of::copies(plain, where).empty());
  CHECK(hetsched::cost_of::update(plain, {0, 4}, where) == 0);

  const with_everything rich;
  CHECK(hetsched::cost_of::stage(rich, {1, 4}, where) == stage_cost{6, 3, 6, 3});
  CHECK(hetsched::sum_of_layers(rich, {1, 4}, where) == stage_cost{6, 3, 4, 3});
  CHECK(hetsched::sum_of_layers(rich, {2, 4}, where) == stage_cost{5, 2, 5, 2});
  CHECK(hetsched::cost_of::copies(rich, where).front().owner == 1);
  CHECK(hetsched::cost_of::update(rich, {0, 4}, where) == 40);
  CHECK(hetsched::cost_of::transfer_class(rich, where) == 2);
  CHECK(hetsched::cost_of::gradient_sync(rich, {0, 4}, std::vector{where}) == hetsched::reduction_cost{0.5, 4});
  CHECK(hetsched::cost_of::overheads(rich, where).margin == 0.25);

  const elsewhere::table table{{1, 2, 4}};
  CHECK(hetsched::cost_of::layer_count(table) == 3);
  CHECK(hetsched::cost_of::placements(table, submesh{0, 1, 2}) == std::vector{where});
  CHECK(hetsched::cost_of::layer(table, 2, where).forward_s == 4);
  CHECK(hetsched::cost_of::stage(table, {0, 3}, where).forward_s == 7);
  CHECK(hetsched::cost_of::transfer(table, 0, where, where) == hetsched::transfer_cost{0.25, 0.5, 7, 8, "direct"});
  CHECK(hetsched::cost_of::gradient_sync(table, {0, 3}, std::vector{where, where}) == hetsched::reduction_cost{6, 0});
  CHECK(hetsched::cost_of::overheads(table, where).runtime_bytes == 9);
  CHECK(hetsched::cost_of::update(table, {0, 3}, where) == 7);
  CHECK(hetsched::cost_of::transfer_class(table, where) == 5);
}

TEST_CASE("the proximity of stages reaches the models that take it; between nodes unless it is told") {
  const placement where{{0, 1, 2}, {1, 1, 2}};
  using hetsched::proximity;
  CHECK(hetsched::cost_of::transfer(by_node{}, 3, where, where) == hetsched::transfer_cost{3, 3});
  CHECK(hetsched::cost_of::transfer(by_node{}, 3, where, where, proximity::other_node) == hetsched::transfer_cost{3, 3});
  CHECK(hetsched::cost_of::transfer(by_node{}, 3, where, where, proximity::same_node) == hetsched::transfer_cost{0.5, 0.5});
  for (const auto near : {proximity::other_node, proximity::same_node}) {
    CHECK(hetsched::cost_of::transfer(archetype{}, 3, where, where, near) == hetsched::transfer_cost{3, 3});
    CHECK(hetsched::cost_of::transfer(elsewhere::table{{1, 2, 4}}, 0, where, where, near) ==
          hetsched::transfer_cost{0.25, 0.5, 7, 8, "direct"});
  }
  const elsewhere::placed_table placed;
  CHECK(hetsched::cost_of::transfer(placed, 0, where, where) == hetsched::transfer_cost{2, 2});
  CHECK(hetsched::cost_of::transfer(placed, 0, where, where, proximity::same_node) == hetsched::transfer_cost{1, 1});
}

TEST_CASE("adding costs that do not fit 64 bits is refused") {
  stage_cost cost{.weight_bytes = std::int64_t{1} << 62};
  CHECK_THROWS_AS(cost += cost, hetsched::input_error);
}

TEST_CASE("slices of layers: members, free functions, or none") {
  const std::vector<hetsched::stage_part> parts{{.slices = 2}, {.slices = 1}};
  CHECK(hetsched::cost_of::slices(archetype{}) == 0);
  CHECK_THROWS_AS((void)hetsched::cost_of::sliced_stage(archetype{}, {0, 2}, parts), hetsched::input_error);
  CHECK(hetsched::cost_of::slices(with_everything{}) == 6);
  CHECK(hetsched::cost_of::sliced_stage(with_everything{}, {0, 3}, parts).slowest.forward_s == 3);
  CHECK(hetsched::cost_of::slices(elsewhere::table{}) == 3);
  CHECK(hetsched::cost_of::sliced_stage(elsewhere::table{}, {0, 3}, parts).slowest.forward_s == 2);
}
