// SPDX-License-Identifier: Apache-2.0
// What launch.sh and start_all.sh do when they run is tested by tests/commands/export_test.cpp.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/export/detail/joined_text.hpp>
#include <hetsched/io/export/hosts.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("hosts of 8, 8, 4 and 4 devices have four starts, not two of eight") {
  const auto placed = place_plan(plan_of({{.end = 6, .degrees = {.data = 8}},
                                          {.end = 12, .first_device = 8, .degrees = {.data = 8}},
                                          {.end = 18, .subcluster = 1, .degrees = {.data = 8}}},
                                         "1f1b", 8, 8),
                                 "x", hosts_of_two_sizes());
  const auto starts = starts_of(placed);
  REQUIRE(starts.size() == 4);
  const std::vector<int> first{0, 8, 16, 20}, size{8, 8, 4, 4};
  const std::vector<std::string> host{"a-0", "a-1", "v-0", "v-1"};
  for (std::size_t k = 0; k < 4; ++k) {
    CHECK(starts[k].first_rank == first[k]);
    CHECK(starts[k].slots.size() == static_cast<std::size_t>(size[k]));
    CHECK(starts[k].host == host[k]);
  }
  CHECK(has(hosts_text(placed, starts), "\na-1 slots=8 type=A100-SXM4-80GB\nv-0 slots=4 type=V100-SXM2-32GB\n"));
  CHECK(has(hosts_text(placed, starts, {"p", "p", "q r", "q"}), "v-0 slots=4 type=q_r\n"));
  const auto files = launch_files(placed, "program");
  REQUIRE(files.size() == 3);
  CHECK(has(files[1].text, "slots=(8 8 4 4)"));
  CHECK(!has(files[1].text, "localhost"));
}

TEST_CASE("part of a host: its devices by their numbers, and each place of a host that has two") {
  const auto placed = place_plan(plan_of({{.end = 6, .first_device = 2, .degrees = {.tensor = 2}},
                                          {.end = 12, .subcluster = 1, .first_device = 5},
                                          {.end = 18, .first_device = 6, .degrees = {.data = 4}}}),
                                 "x", hosts_of_two_sizes());
  const auto starts = starts_of(placed);
  REQUIRE(starts.size() == 4);
  CHECK(starts[0] == host_ranks{.subcluster = 0, .node = 0, .host = "a-0", .first_rank = 0, .slots = {2, 3}});
  CHECK(starts[1] == host_ranks{.subcluster = 1, .node = 1, .host = "v-1", .first_rank = 2, .slots = {1}});
  CHECK(starts[2] == host_ranks{.subcluster = 0, .node = 0, .host = "a-0", .first_rank = 3, .slots = {6, 7}});
  CHECK(starts[3] == host_ranks{.subcluster = 0, .node = 1, .host = "a-1", .first_rank = 5, .slots = {0, 1}});
  CHECK(has(launch_files(placed, "program")[1].text, "devices=(2,3 1 6,7 0,1)"));
}

TEST_CASE("without a cluster hosts are not known, and the caller tells torchrun") {
  const auto placed = place_plan(equal_plan(18, 2), "x");
  CHECK(starts_of(placed).empty());
  const auto files = launch_files(placed, "program", "export A=1\n");
  REQUIRE(files.size() == 1);
  CHECK(files[0].name == "launch.sh");
  CHECK(has(files[0].text, "export A=1\nexec torchrun ${TORCHRUN:---nproc-per-node 2}"));
  CHECK(joined_by_nccl(placed));
}

TEST_CASE("NCCL: the paths in use count, and a NIC that they all name") {
  auto hosts = hosts_of_two_sizes();
  const auto two = plan_of({{.end = 9}, {.end = 18, .subcluster = 1}});
  const auto launch = [&](const plan_file& file) { return launch_files(place_plan(file, "x", hosts), "p")[1].text; };
  CHECK(!has(launch(two), "NCCL_IB_HCA"));
  hosts.links.front().path.nic = "mlx5_1";
  CHECK(has(launch(two), "export NCCL_IB_HCA='mlx5_1'\n"));
  CHECK(!has(launch(equal_plan(18, 2)), "NCCL_IB_HCA"));  // it stays on one host
  // Also a's two hosts: their path names no NIC, so NCCL chooses.
  const auto three = plan_of({{.end = 6, .first_device = 7}, {.end = 9, .first_device = 8}, {.end = 18, .subcluster = 1}});
  CHECK(!has(launch(three), "NCCL_IB_HCA"));
  hosts.subclusters[0].inter_node_path.nic = "mlx5_1";
  CHECK(has(launch(three), "NCCL_IB_HCA"));
  CHECK(joined_by_nccl(place_plan(three, "X", hosts)));
  hosts.subclusters[0].inter_node_path.nccl = false;
  CHECK(!joined_by_nccl(place_plan(three, "X", hosts)));
  CHECK(joined_by_nccl(place_plan(two, "x", hosts)));
}

TEST_CASE("names of people's choice are no words of a shell, a host file or YAML") {
  auto hosts = hosts_of_two_sizes();
  hosts.subclusters[0].name = "a; rm \"x\": $y";
  hosts.subclusters[0].device.name = "my GPU";
  hosts.subclusters[0].inter_node_path.nic = "it's";
  auto file = plan_of({{.end = 9}, {.end = 18, .first_device = 8}});
  file.subclusters[0] = hosts.subclusters[0].name;
  const auto files = launch_files(place_plan(file, "x", hosts), "p");
  CHECK(has(files[0].text, "\na__rm__x____y-1 slots=1 type=my_GPU\n"));
  CHECK(has(files[1].text, "export NCCL_IB_HCA='it'\\''s'\n"));
}

TEST_CASE("texts with something between them") {
  CHECK(detail::joined_numbers(std::vector{1, 2, 3}, ",") == "1,2,3");
  CHECK(detail::joined_numbers(std::vector<int>{}, ",") == "");
  CHECK(detail::joined_text(std::vector<std::string>{"", "a"}, "|", [](const std::string& s) { return s; }) == "|a");
}
