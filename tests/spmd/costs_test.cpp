// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/costs.hpp>

#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/tile_cost.hpp>

namespace {

using namespace hetsched;

cluster two_kinds() {
  cluster c;
  c.subclusters.push_back({.name = "v",
                           .device = *find_device("V100-PCIe-16GB"),
                           .nodes = 1,
                           .devices_per_node = 2,
                           .intra_node = {1e-5, 12e9},
                           .inter_node = {2e-5, 1.3e9}});
  c.subclusters.push_back({.name = "p",
                           .device = *find_device("P100-PCIe-16GB"),
                           .nodes = 2,
                           .devices_per_node = 2,
                           .intra_node = {1e-5, 10e9},
                           .inter_node = {2e-5, 1.2e9}});
  c.links.push_back({0, 1, {5e-5, 1e9}});
  return c;
}

}  // namespace

TEST_CASE("a group is as slow as its slowest links") {
  const auto c = two_kinds();
  const std::vector<device_id> nodes{{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 1}};
  const auto even = spmd::slowest_group(c, nodes);
  REQUIRE(even);
  CHECK(even->nodes == 2);
  CHECK(even->per_node == 2);
  CHECK(even->inside.bandwidth == 10e9);
  CHECK(even->across.bandwidth == 1e9);
  CHECK(even->across.latency_s == 5e-5);
  const std::vector<device_id> odd{{0, 0, 0}, {0, 0, 1}, {1, 0, 0}};
  const auto uneven = spmd::slowest_group(c, odd);
  REQUIRE(uneven);
  CHECK(uneven->nodes == 3);
  CHECK(uneven->per_node == 1);
  CHECK(uneven->across.bandwidth == 1e9);
  auto apart = c;
  apart.links.clear();
  CHECK_FALSE(spmd::slowest_group(apart, nodes));
  CHECK_THROWS_AS(static_cast<void>(spmd::slowest_group(c, std::vector<device_id>{})), input_error);
  CHECK_THROWS_AS(static_cast<void>(spmd::slowest_group(c, std::vector<device_id>{{0, 0, 0}, {0, 0, 0}})), input_error);
}

TEST_CASE("a group has the ports of its nodes, and the slower direction of a link") {
  auto c = two_kinds();
  c.links[0].bandwidth_back = 0.5e9;
  const std::vector<device_id> kinds{{0, 0, 0}, {1, 0, 0}}, turned{{1, 0, 0}, {0, 0, 0}};
  CHECK(spmd::slowest_group(c, kinds)->across.bandwidth == 0.5e9);
  CHECK(spmd::slowest_group(c, turned)->across.bandwidth == 0.5e9);
  CHECK(spmd::slowest_group(c, kinds)->rails == 1);
  c.subclusters[0].nodes = 2;
  c.subclusters[0].inter_node = {1e-5, 1e9};
  c.subclusters[0].nics = 8;
  const std::vector<device_id> nodes{{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1}};
  CHECK(spmd::slowest_group(c, nodes)->rails == 2);
}

TEST_CASE("an even share and the whole cost what the timer and the collectives say") {
  const auto c = two_kinds();
  const std::vector<device_id> devices{{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 1}};
  tensor_graph g;
  const int x = add_placeholder(g, "x", {1024, 512}), w = add_parameter(g, "w", {512, 2048});
  const int h = add_matmul(g, "h", x, w);
  const auto p = spmd::make_problem(c, devices, g, {.loss = h, .gradients = {}});
  REQUIRE(p);
  REQUIRE(p->kinds == std::vector<spmd::device_kind>{{"V100-PCIe-16GB", 2}, {"P100-PCIe-16GB", 2}});
  for (std::size_t k = 0; k < 2; ++k) {
    const auto hardware = make_tile_device(c.subclusters[k].device);
    CHECK(p->compute_of(h, k).whole() == doctest::Approx(tile_timer()(hardware, gemm(1024, 2048, 512, number_format::fp16))));
    CHECK(p->compute_of(h, k).at(0.25) == doctest::Approx(tile_timer()(hardware, gemm(256, 2048, 512, number_format::fp16))));
  }
  CHECK(p->compute_of(x, 0) == spmd::share_cost{});
  const auto group = *spmd::slowest_group(c, devices);
  const double bytes = 1024.0 * 2048 * 2;
  const auto& collect = p->collect[static_cast<std::size_t>(h)];
  CHECK(collect.all_reduce.at(0.7) == doctest::Approx(fastest_collective_s(collective::all_reduce, group, bytes)));
  CHECK(collect.reduce_scatter.at(0.25) == doctest::Approx(fastest_collective_s(collective::reduce_scatter, group, bytes)));
  // Of an all-to-all each device has its part before and after.
  CHECK(collect.all_to_all.at(0.25) == doctest::Approx(fastest_collective_s(collective::all_to_all, group, bytes / 4)));
  CHECK(collect.all_to_all.at(1) == doctest::Approx(fastest_collective_s(collective::all_to_all, group, bytes)));
  // Padded parts are as large as the largest.
  CHECK(collect.padded_gather.at(0.25) == doctest::Approx(fastest_collective_s(collective::all_gather, group, bytes)));
  CHECK(collect.padded_gather.at(1) == doctest::Approx(fastest_collective_s(collective::all_gather, group, 4 * bytes)));
}
