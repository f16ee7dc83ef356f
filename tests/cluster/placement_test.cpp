// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster/placement.hpp>

#include <doctest/doctest.h>

using namespace hetsched;

TEST_CASE("recomputations have names, and are found by them only") {
  for (const auto r : {recomputation::none, recomputation::selective, recomputation::full})
    CHECK(find_recomputation(name_of(r)) == r);
  CHECK(name_of(recomputation::selective) == "selective");
  for (const char* other : {"", "None", "all"}) CHECK(!find_recomputation(other));
}

TEST_CASE("a placement is plain unless it says otherwise, and equal in all of it or not at all") {
  const placement plain{{1, 2, 4}, {2, 1, 4}};
  CHECK(plain.recompute == recomputation::none);
  CHECK(plain.zero == 0);
  auto other = plain;
  CHECK(other == plain);
  other.zero = 1;
  CHECK(!(other == plain));
  other = plain;
  other.recompute = recomputation::full;
  CHECK(!(other == plain));
  other = plain;
  other.degrees.context = 2;
  CHECK(!(other == plain));
  other = plain;
  other.mesh.nodes = 1;
  CHECK(!(other == plain));
}
