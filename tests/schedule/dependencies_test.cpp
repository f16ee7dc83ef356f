// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/dependencies.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/text.hpp>

using namespace hetsched;

namespace {

/// What the one action with this text needs, by text.
std::set<std::string> needs_of(const std::string& csv, const std::string& name) {
  const auto order = parse_schedule_csv(csv);
  const action_index index(order);
  const auto all = dependencies(order, index);
  std::vector<std::string> names;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) names.push_back(to_text(a));
  REQUIRE(all.first.size() == names.size() + 1);
  std::set<std::string> found;
  for (std::size_t n = 0; n < names.size(); ++n)
    if (names[n] == name)
      for (int i = all.first[n]; i < all.first[n + 1]; ++i)
        found.insert(names[static_cast<std::size_t>(all.needs[static_cast<std::size_t>(i)])]);
  return found;
}

using names = std::set<std::string>;

}  // namespace

TEST_CASE("computations only: results go from rank to rank by themselves") {
  const std::string csv = "0F0,0B0,0F1,0I1,0W1\n1F0,2F0,2B0,1B0,1F1,2F1,2R1,2I1,2W1,1B1\n";
  CHECK(needs_of(csv, "0F0") == names{});
  CHECK(needs_of(csv, "1F0") == names{"0F0"});
  CHECK(needs_of(csv, "2F0") == names{"1F0"});
  CHECK(needs_of(csv, "2B0") == names{"2F0"});
  CHECK(needs_of(csv, "1B0") == names{"1F0", "2B0"});
  CHECK(needs_of(csv, "0B0") == names{"0F0", "1B0"});
  CHECK(needs_of(csv, "2R1") == names{"2F1"});
  CHECK(needs_of(csv, "2I1") == names{"2R1"});
  CHECK(needs_of(csv, "2W1") == names{"2I1"});
  CHECK(needs_of(csv, "1B1") == names{"1F1", "2I1"});  // the input gradient is what is sent
  CHECK(needs_of(csv, "0I1") == names{"0F1", "1B1"});
}

TEST_CASE("listed transfers, in one leg or three") {
  const std::string csv =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_SCATTER,0REDUCE_GRAD,0OPTIMIZER\n"
      "1RECV_F0,1F0,2F0,2D2H_F0,2NET_F0,2H2D_B0,2B0,1B0,1SEND_B0\n"
      "3H2D_F0,3F0,3I0,3D2H_B0,3NET_B0,3W0,3OPTIMIZER\n";
  CHECK(needs_of(csv, "0F0") == names{"0UNSHARD"});
  CHECK(needs_of(csv, "0SEND_F0") == names{"0F0"});
  CHECK(needs_of(csv, "1RECV_F0") == names{"0SEND_F0"});
  CHECK(needs_of(csv, "1F0") == names{"1RECV_F0"});
  CHECK(needs_of(csv, "2F0") == names{"1F0"});
  CHECK(needs_of(csv, "2D2H_F0") == names{"2F0"});
  CHECK(needs_of(csv, "2NET_F0") == names{"2D2H_F0"});
  CHECK(needs_of(csv, "3H2D_F0") == names{"2NET_F0"});
  CHECK(needs_of(csv, "3F0") == names{"3H2D_F0"});
  CHECK(needs_of(csv, "3D2H_B0") == names{"3I0"});
  CHECK(needs_of(csv, "3NET_B0") == names{"3D2H_B0"});
  CHECK(needs_of(csv, "2H2D_B0") == names{"3NET_B0"});
  CHECK(needs_of(csv, "2B0") == names{"2F0", "2H2D_B0"});
  CHECK(needs_of(csv, "1SEND_B0") == names{"1B0"});
  CHECK(needs_of(csv, "0RECV_B0") == names{"1SEND_B0"});
  CHECK(needs_of(csv, "0B0") == names{"0UNSHARD", "0F0", "0RECV_B0"});
  CHECK(needs_of(csv, "0REDUCE_SCATTER") == names{"0B0"});
  CHECK(needs_of(csv, "0REDUCE_GRAD") == names{"0B0", "0REDUCE_SCATTER"});
  CHECK(needs_of(csv, "0OPTIMIZER") == names{"0B0", "0REDUCE_SCATTER", "0REDUCE_GRAD"});
  CHECK(needs_of(csv, "3OPTIMIZER") == names{"3W0"});
}

TEST_CASE("directions keep to themselves") {
  const std::string csv = "0F0,1F1r1,1B1r1,0B0\n0F1r1,1F0,1B0,0B1r1\n";
  CHECK(needs_of(csv, "1F0") == names{"0F0"});
  CHECK(needs_of(csv, "1F1r1") == names{"0F1r1"});
  CHECK(needs_of(csv, "0B1r1") == names{"0F1r1", "1B1r1"});
}

TEST_CASE("numbers and look-ups") {
  const auto order = parse_schedule_csv("0F0,0B0,0F0\n1F0,1B0,1OPTIMIZER\n");
  const action_index index(order);
  CHECK(index.size() == 6);
  CHECK(index.lane_first == std::vector<int>{0, 3, 6});
  CHECK(index.find(action_kind::forward, 0, 0, 0) == 0);  // the first of two
  CHECK(index.find(action_kind::backward, 0, 1, 0) == 4);
  CHECK(index.find(action_kind::optimizer, 0, 1, 0) == 5);
  CHECK(index.find(action_kind::optimizer, 0, 0, 0) == -1);
  CHECK(index.find(action_kind::recompute, 0, 0, 0) == -1);
  CHECK(index.lists(action_kind::optimizer));
  CHECK_FALSE(index.lists(action_kind::recompute));
}

TEST_CASE("what is not there") {
  CHECK_THROWS_WITH_AS((void)needs_of("0F0,0B0\n1F0\n", "0F0"), "the schedule does not list what 0B0 needs", input_error);
  auto order = parse_schedule_csv("0F0,0B0\n");
  order.lanes[0].actions[0].microbatch = 1;
  CHECK_THROWS_WITH_AS((void)action_index(order), "rank 0 0F1 is not of one of 1 microbatches", input_error);
}
