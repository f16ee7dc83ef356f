// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/choose_nics.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

using namespace hetsched;

namespace {

using pairs_of_ranks = std::vector<std::pair<int, int>>;

/// Below a switch of a root complex, beside a node of memory.
pci_place below(const std::string& root, const std::string& bridge, const std::string& device, int node) {
  return {.path = {"pci0000:" + root, "0000:" + root + ":01.0", bridge, device}, .node = node};
}
nic card(const std::string& name, double gbit, const std::string& layer, const pci_place& place, int port = 1) {
  return {.name = name, .port = port, .bandwidth = gbit_per_s(gbit), .link_layer = layer, .place = place};
}

/// Two sockets with two GPUs and a fast card each, a faster one behind the second socket, and a slow one for storage.
const pci_place near_first = below("15", "a", "gpu", 0), near_second = below("80", "b", "gpu", 1);
const std::vector<nic> big = {card("mlx5_0", 200, "InfiniBand", below("15", "a", "card", 0)),
                              card("mlx5_1", 400, "InfiniBand", below("80", "b", "card", 1)),
                              card("mlx5_10", 25, "InfiniBand", below("15", "c", "card", 0)),
                              card("mlx5_2", 100, "Ethernet", below("80", "b", "other", 1))};

std::vector<std::string> names(const std::vector<nic>& all) {
  std::vector<std::string> found;
  for (const auto& n : all) found.push_back(n.name);
  return found;
}
using words = std::vector<std::string>;

stage_layout layers(int first, int last) { return {.layers = {first, last}}; }

}  // namespace

TEST_CASE("ranks are joined by what passes between stages, in a group, and between holders of the same layers") {
  training_layout t{.layers = 4,
                    .pipelines = {{.order = one_f_one_b({3, 2, 1}, 4),
                                   .stages = {layers(0, 1), layers(1, 3), layers(3, 4)},
                                   .first_rank = 0,
                                   .groups = {{}, {.degrees = {.data = 2}}, {}}}}};
  CHECK(joined_ranks(t) == pairs_of_ranks{{0, 1}, {0, 2}, {1, 2}, {1, 3}, {2, 3}});
  CHECK(joined_ranks(t, {{0, 3}}) == pairs_of_ranks{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}});
  // A second pipeline of one rank holds all layers.
  t.pipelines.push_back({.order = one_f_one_b({1}, 1), .stages = {layers(0, 4)}, .first_rank = 4});
  CHECK(joined_ranks(t) == pairs_of_ranks{{0, 1}, {0, 2}, {0, 4}, {1, 2}, {1, 3}, {1, 4}, {2, 3}, {2, 4}, {3, 4}});
}

TEST_CASE("two GPUs take the cards that are nearest and fastest, and a machine's processes all of these") {
  const auto chosen = choose_nics({{.host = 1, .gpu = near_first, .nics = big},
                                   {.host = 1, .gpu = near_second, .nics = big},
                                   {.host = 1, .gpu = near_second, .nics = big},
                                   {.host = 2, .gpu = {}, .nics = {card("ib0", 100, "InfiniBand", {})}}},
                                  {{0, 3}, {1, 3}, {1, 2}});
  CHECK(names(chosen[0].wanted) == words{"mlx5_0", "mlx5_1"});  // nearest; fastest
  CHECK(names(chosen[1].wanted) == words{"mlx5_1"});            // is both
  CHECK(chosen[2].wanted.empty());                              // has no transfers to the other machine
  for (const int r : {0, 1, 2})
    CHECK(nccl_environment(chosen[static_cast<std::size_t>(r)]) ==
          std::vector<std::pair<std::string, std::string>>{{"NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"}});
  CHECK(chosen[0].reason == "the nearest and fastest of InfiniBand, which all machines have");
  CHECK(chosen[2].reason == "for other ranks of its machine");
  CHECK(names(chosen[3].nics) == words{"ib0"});
}

TEST_CASE("the cards are of a kind that all machines have, the one whose slowest is fastest") {
  const std::vector<nic> ethernet = {card("bnxt", 50, "Ethernet", {})};
  const auto of = [](const std::vector<nic>& a, const std::vector<nic>& b, const std::vector<nic>& c) {
    const auto chosen = choose_nics({{.host = 1, .gpu = near_first, .nics = a}, {.host = 2, .nics = b}, {.host = 3, .nics = c}},
                                    {{0, 1}, {1, 2}});
    std::vector<words> found;
    for (const auto& x : chosen) found.push_back(x.sockets ? words{"sockets"} : names(x.nics));
    return found;
  };
  CHECK(of(big, big, ethernet) == std::vector<words>{{"mlx5_2"}, {"mlx5_2"}, {"bnxt"}});  // not the 400 Gbit/s of the first two
  std::vector<nic> both = {card("roce", 100, "Ethernet", {}), card("ib", 40, "InfiniBand", {})};
  CHECK(of(both, big, both) == std::vector<words>{{"roce"}, {"mlx5_2"}, {"roce"}});
  both.front().bandwidth = gbit_per_s(25);
  CHECK(of(both, both, both) == std::vector<words>{{"ib"}, {"ib"}, {"ib"}});
  CHECK(of({both.back()}, ethernet, ethernet) == std::vector<words>{{"sockets"}, {"sockets"}, {"sockets"}});
  CHECK(of(big, big, {}) == std::vector<words>{{"sockets"}, {"sockets"}, {"sockets"}});
  CHECK(of({}, {}, {}) == std::vector<words>{{}, {}, {}});
  const auto none = choose_nics({{.host = 1, .nics = ethernet}, {.host = 2}}, {{0, 1}});
  CHECK(nccl_environment(none[0]) == std::vector<std::pair<std::string, std::string>>{{"NCCL_IB_DISABLE", "1"}});
}

TEST_CASE(
    "ports are left to NCCL where no transfer leaves a machine, where the user has chosen, and where not all processes see "
    "them") {
  const nic_user a{.host = 1, .gpu = near_first, .nics = big}, b{.host = 2, .gpu = near_first, .nics = big};
  for (const auto& c : choose_nics({a, a}, {{0, 1}})) {
    CHECK(nccl_environment(c).empty());
    CHECK(c.reason == "transfers stay on one machine");
  }
  auto own = b;
  own.is_set = true;
  const auto chosen = choose_nics({a, own, a, b}, {{0, 1}, {2, 3}});  // of one set alone
  CHECK(nccl_environment(chosen[0]).empty());
  CHECK(chosen[0].reason == "NCCL's variables are set");
  CHECK(names(chosen[2].nics) == words{"mlx5_0", "mlx5_1"});
  // The second process of the first machine is in a container with one of the cards.
  auto inside = a;
  inside.nics = {big[0]};
  const auto seen = choose_nics({a, inside, b}, {{0, 2}, {1, 2}});
  CHECK(names(seen[0].nics) == words{"mlx5_0"});
  CHECK(names(seen[1].nics) == words{"mlx5_0"});
  CHECK(names(seen[2].nics) == words{"mlx5_0", "mlx5_1"});
  CHECK_THROWS_WITH_AS((void)choose_nics({a, b}, {{0, 2}}), "ranks 0 and 2 are joined, but there are 2", input_error);
}

TEST_CASE("ports of one card and places in the tree are told apart") {
  const std::vector<nic> two = {card("mlx5_0", 100, "InfiniBand", below("15", "a", "card", 0), 1),
                                card("mlx5_0", 100, "InfiniBand", below("15", "a", "card", 0), 2)};
  const auto chosen = choose_nics({{.host = 1, .gpu = near_first, .nics = two}, {.host = 2, .nics = two}}, {{0, 1}});
  CHECK(nccl_environment(chosen[0]).front().second == "=mlx5_0:1,mlx5_0:2");

  const pci_place gpu = below("15", "a", "gpu", 0);
  CHECK(nearness(gpu, below("15", "a", "card", 0)) == 3);  // below one switch
  CHECK(nearness(gpu, below("15", "b", "card", 0)) == 2);
  CHECK(nearness(gpu, {.path = {"pci0000:15", "0000:15:02.0", "card"}, .node = 0}) == 1);
  CHECK(nearness(gpu, below("16", "a", "card", 0)) == 1);  // beside one node of memory
  CHECK(nearness(gpu, below("80", "a", "card", 1)) == 0);
  CHECK(nearness(gpu, {}) == 0);
  CHECK(nearness({}, {}) == 0);
}
