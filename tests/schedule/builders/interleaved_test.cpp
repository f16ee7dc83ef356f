// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/interleaved.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

#include "../reference_times.hpp"

using namespace hetsched;
using doctest::Approx;

TEST_CASE("interleaved 1F1B and looped BFS of two ranks with two chunks, written out by hand") {
  CHECK(test::lines(interleaved_1f1b(2, 2, 4)) ==
        "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3\n"
        "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3\n");
  CHECK(test::lines(looped_bfs(2, 2, 3)) ==
        "F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2\n"
        "F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2\n");
}

TEST_CASE("one chunk: 1F1B and GPipe") {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      CHECK(interleaved_1f1b(ranks, 1, microbatches) == one_f_one_b(one_f_one_b_warmups(ranks), microbatches));
      CHECK(looped_bfs(ranks, 1, microbatches) == gpipe(ranks, microbatches));
    }
}

TEST_CASE("in multiples of the ranks, the warm-up is Megatron's") {
  for (int ranks = 2; ranks <= 5; ++ranks)
    for (int chunks = 2; chunks <= 3; ++chunks)
      for (int times = 1; times <= 3; ++times)
        for (const auto& l : interleaved_1f1b(ranks, chunks, times * ranks).lanes) {
          int forwards = 0;
          while (l.actions[static_cast<std::size_t>(forwards)].kind == action_kind::forward) ++forwards;
          CHECK(forwards == std::min(2 * (ranks - l.rank - 1) + (chunks - 1) * ranks + 1, times * ranks * chunks));
        }
}

TEST_CASE("any number of microbatches: no deadlock, and the bubble of 1F1B over the number of chunks") {
  for (int ranks = 1; ranks <= 7; ++ranks)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (int microbatches = 1; microbatches <= 4 * ranks + 3; ++microbatches) {
        CAPTURE(ranks);
        CAPTURE(chunks);
        CAPTURE(microbatches);
        const auto deep = interleaved_1f1b(ranks, chunks, microbatches);
        const auto broad = looped_bfs(ranks, chunks, microbatches);
        CHECK(test::defect(deep) == "");
        CHECK(test::defect(broad) == "");
        const auto times = test::times_of(test::equal_work(deep, 1, 2, 0), deep);
        const auto broad_times = test::times_of(test::equal_work(broad, 1, 2, 0), broad);
        REQUIRE_FALSE(times.deadlock);
        REQUIRE_FALSE(broad_times.deadlock);
        // With fewer microbatches than ranks, the first rank waits for each but one of the chunks to come round.
        const double missing = std::max(0, ranks - microbatches) * (chunks - 1);
        CHECK(times.bubble() == Approx((ranks - 1 + missing) * 3.0 / chunks));
        CHECK(broad_times.bubble() == Approx((ranks - 1 + missing) * 3.0 / chunks));
        CHECK(broad_times.most_held() == Approx(microbatches));
        const int groups = std::max(1, microbatches / ranks), group = (microbatches + groups - 1) / groups;
        if (chunks > 1)
          CHECK(times.most_held() ==
                Approx(std::min<double>(microbatches, (2 * ranks - 1 + (chunks - 1) * group) / double(chunks))));
      }
}

TEST_CASE("bad counts are refused") {
  CHECK_THROWS_AS((void)interleaved_1f1b(0, 2, 4), input_error);
  CHECK_THROWS_WITH_AS((void)interleaved_1f1b(2, 0, 4), "a rank needs at least one chunk, not 0", input_error);
  CHECK_THROWS_AS((void)looped_bfs(2, 2, 0), input_error);
}
