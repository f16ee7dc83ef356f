// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/cluster.hpp>
#include <hetsched/cost/models/profile.hpp>

using namespace hetsched;

namespace {

cluster two_kinds() {
  const auto v100 = *find_device("V100-SXM2-32GB");
  const auto a100 = *find_device("A100-SXM4-40GB");
  return {
      {{"v1", v100, 2, 4, {1e-6, 1e11}, {1e-5, 1e10}}, {"v2", v100, 1, 2, {1e-6, 1e11}, {}}, {"a", a100, 1, 4, {1e-6, 1e11}, {}}},
      {{0, 2, {1e-3, 1e9}}}};
}

profile_entry entry(std::string subcluster, std::string device, int nodes, int devices, double scale) {
  return {std::move(subcluster), std::move(device),      nodes,      devices, {},
          {scale, 2 * scale},    {3 * scale, 4 * scale}, {100, 200}, {10, 20}};
}

profile two_layers(std::vector<profile_entry> entries) { return {{{"first", 1'000'000}, {"second", 0}}, std::move(entries)}; }

std::string message(const profile& p) {
  try {
    const profile_cost_model model(two_kinds(), p);
    return "";
  } catch (const input_error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("costs come from the entry of the shape, and a stage is the sum of its layers") {
  const profile_cost_model model(two_kinds(), two_layers({entry("v1", "", 1, 2, 1.0), entry("a", "", 1, 4, 0.5)}));
  CHECK(model.layer_count() == 2);
  REQUIRE(model.placements({0, 1, 2}).size() == 1);
  const auto where = model.placements({0, 1, 2})[0];
  CHECK(where == placement{{0, 1, 2}, {1, 1, 2}});
  CHECK(model.layer(1, where) == stage_cost{2, 4, 200, 20});
  CHECK(model.stage({0, 2}, where) == stage_cost{3, 7, 300, 30});
  CHECK(model.stage({1, 1}, where) == stage_cost{});
  CHECK(model.stage({0, 1}, {{2, 1, 4}, {1, 1, 4}}) == stage_cost{0.5, 1.5, 100, 10});
  CHECK(model.placements({0, 1, 1}).empty());
  CHECK(model.placements({1, 1, 2}).empty());
  CHECK_THROWS_AS((void)model.layer(0, {{0, 1, 2}, {2, 1, 1}}), input_error);
  CHECK(cost_of::update(model, {0, 2}, where) == 0);
}

TEST_CASE("a device's entry serves every subcluster of that device that has the shape") {
  const profile_cost_model model(two_kinds(),
                                 two_layers({entry("", "V100-SXM2-32GB", 1, 2, 1.0), entry("", "V100-SXM2-32GB", 2, 4, 2.0),
                                             entry("", "H20-96GB", 1, 1, 1.0), entry("v2", "", 1, 4, 1.0)}));
  CHECK(model.placements({1, 1, 4}).empty());
  CHECK(model.placements({1, 2, 4}).empty());
  CHECK(model.placements({0, 1, 2}).size() == 1);
  CHECK(model.placements({1, 1, 2}).size() == 1);
  CHECK(model.placements({2, 1, 2}).empty());
  CHECK(model.placements({0, 2, 4}) == std::vector<placement>{{{0, 2, 4}, {1, 1, 8}}});
  CHECK(model.layer(0, {{1, 1, 2}, {1, 1, 2}}).forward_s == 1);
}

TEST_CASE("different degrees are choices, equal ones an error") {
  auto both = two_layers({entry("v1", "", 1, 2, 1.0), entry("", "V100-SXM2-32GB", 1, 2, 2.0)});
  CHECK(message(both).find("/costs/1: same shape and degrees on subcluster v1 as /costs/0") == 0);
  both.entries[1].degrees = degrees{2, 1, 1};
  const profile_cost_model model(two_kinds(), both);
  REQUIRE(model.placements({0, 1, 2}).size() == 2);
  CHECK(model.layer(0, {{0, 1, 2}, {1, 1, 2}}).forward_s == 1);
  CHECK(model.layer(0, {{0, 1, 2}, {2, 1, 1}}).forward_s == 2);
  CHECK(model.placements({1, 1, 2}).size() == 1);
  // leaving degrees out is the same as all tensor parallel
  both.entries[1].degrees = degrees{1, 1, 2};
  CHECK(message(both) != "");
}

TEST_CASE("transfers take the link between the stages") {
  const profile_cost_model model(two_kinds(), two_layers({entry("v1", "", 1, 2, 1.0)}));
  const placement v1{{0, 1, 2}, {}}, v2{{1, 1, 2}, {}}, a{{2, 1, 2}, {}};
  CHECK(model.transfer(0, v1, a).forward_s == doctest::Approx(1e-3 + 1e6 / 1e9));
  CHECK(model.transfer(0, v1, v1).forward_s == doctest::Approx(1e-5 + 1e6 / 1e10));
  CHECK(model.transfer(0, a, a).forward_s == doctest::Approx(1e-6 + 1e6 / 1e11));
  CHECK(model.transfer(0, v1, v2).forward_s == std::numeric_limits<double>::infinity());
  CHECK(model.transfer(1, v1, a).forward_s == doctest::Approx(1e-3));
}

TEST_CASE("what makes no sense is refused with its place") {
  const auto spoiled = [](auto spoil) {
    auto p = two_layers({entry("v1", "", 1, 2, 1.0), entry("a", "", 1, 4, 1.0)});
    spoil(p);
    return message(p);
  };
  CHECK(spoiled([](auto&) {}) == "");
  CHECK(spoiled([](auto& p) { p.entries[1].nodes = 7; }) == "");
  CHECK(spoiled([](auto& p) { p.entries[1].subcluster = "w"; }) == "/costs/1/subcluster: the cluster has no subcluster w");
  CHECK(spoiled([](auto& p) { p.entries[1].device = "A100-SXM4-40GB"; }).find("/costs/1: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[1].subcluster = ""; }).find("/costs/1: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[1].nodes = 0; }).find("/costs/1/nodes: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[1].devices = -4; }).find("/costs/1/devices: ") == 0);
  CHECK(spoiled([](auto& p) {
          p.entries[0].forward_s.pop_back();
        }).find("/costs/0/forward_s: has 1 numbers, expected one for each of the 2") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].backward_s[1] = -1; }).find("/costs/0/backward_s/1: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].forward_s[0] = std::nan(""); }).find("/costs/0/forward_s/0: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].weight_bytes.push_back(1); }).find("/costs/0/weight_bytes: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].activation_bytes[0] = -1; }).find("/costs/0/activation_bytes/0: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].degrees = degrees{1, 1, 4}; }).find("/costs/0/degrees: ") == 0);
  CHECK(spoiled([](auto& p) { p.entries[0].degrees = degrees{-1, -1, 2}; }).find("/costs/0/degrees: ") == 0);
  CHECK(spoiled([](auto& p) { p.layers[1].boundary_bytes = -1; }).find("/layers/1/boundary_bytes: ") == 0);
  CHECK(spoiled([](auto& p) { p.layers.clear(), p.entries.clear(); }).find("/layers: ") == 0);
}

TEST_CASE("what layers of a profile share counts once in a stage that has both") {
  auto shared = two_layers({entry("v1", "", 1, 2, 1.0)});
  shared.layers[1].copy_of = {.layer = 0, .fraction = 0.25};
  const profile_cost_model model(two_kinds(), shared);
  const placement where{{0, 1, 2}, {1, 1, 2}};
  CHECK(model.layer(1, where).weight_bytes == 200);
  CHECK(model.stage({0, 2}, where) == stage_cost{3, 7, 250, 30});
  CHECK(model.stage({1, 2}, where) == stage_cost{2, 4, 200, 20});
  CHECK(model.copies(where) == std::vector<parameter_copy>{{.owner = 0, .layer = 1, .weight_bytes = 50}});
  CHECK(model.copies({{0, 1, 2}, {2, 1, 1}}) == std::vector<parameter_copy>{{.owner = 0, .layer = 1}});
  shared.layers[1].copy_of->layer = 1;
  CHECK(message(shared) == "/layers/1/copy_of/layer: must be another layer of the profile");
  shared.layers[1].copy_of->layer = 2;
  CHECK(message(shared) == "/layers/1/copy_of/layer: must be another layer of the profile");
  for (const double wrong : {0.0, -0.5, 1.5, std::nan("")}) {
    shared.layers[1].copy_of = {.layer = 0, .fraction = wrong};
    CHECK(message(shared) == "/layers/1/copy_of/fraction: must be above 0, and at most 1");
  }
}
