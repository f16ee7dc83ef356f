// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/questions/stage_cost.hpp>

#include <doctest/doctest.h>

#include <cstdint>

#include <hetsched/core/error.hpp>

using namespace hetsched;

TEST_CASE("layers of a stage add up, but only one of them is at work") {
  stage_cost sum;
  sum += {.forward_s = 1,
          .backward_s = 2,
          .weight_bytes = 30,
          .activation_bytes = 4,
          .weight_backward_s = 0.5,
          .gradient_bytes = 5,
          .optimizer_bytes = 6,
          .temporary_bytes = 7};
  sum += {.forward_s = 10,
          .backward_s = 20,
          .weight_bytes = 300,
          .activation_bytes = 40,
          .weight_backward_s = 5,
          .gradient_bytes = 50,
          .optimizer_bytes = 60,
          .temporary_bytes = 3};
  CHECK(sum == stage_cost{11, 22, 330, 44, 5.5, 55, 66, 7});
  CHECK(sum.total_s() == 33);
  for (const auto part :
       {&stage_cost::weight_bytes, &stage_cost::activation_bytes, &stage_cost::gradient_bytes, &stage_cost::optimizer_bytes}) {
    stage_cost large;
    large.*part = std::int64_t{1} << 62;
    CHECK_THROWS_AS(large += large, input_error);
  }
}

TEST_CASE("a plain number of seconds is a transfer that takes so long either way, or a reduction") {
  const transfer_cost plain = 0.5;
  CHECK(plain == transfer_cost{0.5, 0.5});
  CHECK(plain.round_trip_s() == 1);
  CHECK(plain.slower_way_s() == 0.5);
  CHECK(plain.bytes == 0);
  CHECK(plain.strategy.empty());
  const transfer_cost both{1, 3, 7, 8, "direct"};
  CHECK(both.round_trip_s() == 4);
  CHECK(both.slower_way_s() == 3);
  CHECK(transfer_cost{3, 1}.slower_way_s() == 3);
  CHECK(both.bytes == 7);
  CHECK(both.extra_bytes == 8);
  CHECK(both.strategy == "direct");
  CHECK(!(both == transfer_cost{1, 3, 7, 8, "ring"}));
  // Until something else is said, it lets no other transfer pass.
  CHECK(plain.occupied_s() == 0.5);
  CHECK(both.occupied_s() == 3);
  auto phased = both;
  phased.backward_occupied_s = 0.5;
  CHECK(phased.occupied_s() == 1);
  phased.forward_occupied_s = 0.25;
  CHECK(phased.occupied_s() == 0.5);
  CHECK(phased.round_trip_s() == 4);
  CHECK(!(phased == both));
  const reduction_cost sum = 0.25;
  CHECK(sum == reduction_cost{0.25, 0});
}

TEST_CASE("a stage that has both layers holds what they share once") {
  const parameter_copy tied{.owner = 0, .layer = 3, .weight_bytes = 30, .gradient_bytes = 5, .optimizer_bytes = 6};
  const parameter_copy back{.owner = 2, .layer = 1, .weight_bytes = 100};
  CHECK(tied.is_within({0, 4}));
  CHECK_FALSE(tied.is_within({0, 3}));
  CHECK_FALSE(tied.is_within({1, 4}));
  CHECK(back.is_within({1, 3}));
  CHECK_FALSE(back.is_within({2, 3}));
  const parameter_copy both[]{tied, back};
  const stage_cost sum{.weight_bytes = 330, .activation_bytes = 7, .gradient_bytes = 55, .optimizer_bytes = 66};
  const auto left = [&](layer_range layers) {
    auto held = sum;
    drop_copies(held, layers, both);
    return held;
  };
  CHECK(left({0, 4}) == stage_cost{.weight_bytes = 200, .activation_bytes = 7, .gradient_bytes = 50, .optimizer_bytes = 60});
  CHECK(left({1, 4}) == stage_cost{.weight_bytes = 230, .activation_bytes = 7, .gradient_bytes = 55, .optimizer_bytes = 66});
  CHECK(left({0, 2}) == sum);
}
