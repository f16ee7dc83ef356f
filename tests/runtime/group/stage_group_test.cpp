// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/group/stage_group.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include "../dense.hpp"
#include "groups.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using threads = thread_communicator<tensor>;

/// The sum of the numbers of the ranks along each axis, of ranks that have their own number.
template <class Communicator>
void check_axes(std::vector<Communicator> ends) {
  // Two stages on ranks 1 to 6 and 0, 7: 3 x 1 x 2, whose ranks are not ascending, and 1 x 2 x 1.
  const std::vector<int> large{6, 5, 4, 3, 2, 1}, small{0, 7};
  std::atomic<int> wrong{0};
  run_on_threads(std::move(ends), [&](Communicator& comm) {
    const bool in_small = comm.rank() == 0 || comm.rank() == 7;
    const degrees d = in_small ? degrees{1, 2, 1} : degrees{3, 1, 2};
    const stage_group<tensor, Communicator> group(comm, in_small ? small : large, d, {.stage = in_small ? 1 : 0});
    const auto copy = group;
    const auto sum = [&](const auto& axis) {
      auto value = static_cast<double>(comm.rank());
      axis.all_reduce({&value, 1});
      return static_cast<int>(value);
    };
    const int r = comm.rank(), index = 6 - r;
    const bool right = in_small ? sum(copy.data()) == r && sum(copy.context()) == 7 && sum(copy.tensor()) == r
                                : sum(copy.tensor()) == (6 - index / 2 * 2) + (5 - index / 2 * 2) && sum(copy.context()) == r &&
                                      sum(copy.data()) == (index % 2 == 0 ? 6 + 4 + 2 : 5 + 3 + 1) &&
                                      group.place().data == index / 2 && group.place().tensor == index % 2 &&
                                      group.tensor().rank() == index % 2 && group.data().size() == 3;
    wrong += !right;
    wrong += group.degrees() != d;
  });
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("places are data x context x tensor, tensor innermost") {
  const degrees d{2, 3, 4};
  int index = 0;
  for (int data = 0; data < 2; ++data)
    for (int context = 0; context < 3; ++context)
      for (int t = 0; t < 4; ++t, ++index) {
        CHECK(place_of(d, index) == stage_place{data, context, t});
        CHECK(index_of(d, place_of(d, index)) == index);
        CHECK(index == (data * d.context + context) * d.tensor + t);
      }
}

TEST_CASE("[threads] stage_group: its axes join the right ranks") {
  check_axes(threads::connect(8));
  check_axes(plain(threads::connect(8)));
}

TEST_CASE("stage_group: one device needs nobody, and what makes no group is refused") {
  const stage_group<tensor, threads> alone;
  CHECK(alone.degrees() == degrees{});
  CHECK(alone.tensor().size() == 1);
  std::vector<double> a{1, 2}, b(2);
  alone.tensor().all_reduce(a);
  alone.data().all_gather(a, b);
  CHECK(a == b);
  auto ends = threads::connect(4);
  using group = stage_group<tensor, threads>;
  CHECK_THROWS_WITH_AS(group(ends[0], {0, 1}, {1, 1, 1}),
                       "stage 0 has 2 ranks, which are no group of 1 x 1 x 1 (data, context, tensor)", input_error);
  CHECK_THROWS_AS(group(ends[0], {0}, {-1, 1, -1}), input_error);
  CHECK_THROWS_AS(group(ends[0], {}, {0, 1, 1}), input_error);
  CHECK_THROWS_WITH_AS(group(ends[0], {1, 2}, {2, 1, 1}, {.stage = 3}), "rank 0 is not in the group of stage 3", input_error);
}
