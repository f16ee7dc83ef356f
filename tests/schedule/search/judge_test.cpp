// SPDX-License-Identifier: Apache-2.0
#include "judge.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

#include "../../sanitizer_share.hpp"
#include "auto_instances.hpp"

using namespace hetsched;
using hetsched::test::judge_instance;
using hetsched::test::optimum;
using hetsched::test::replay;

namespace {

/// All words of a rank that keep its cap.
std::vector<std::string> all_words(const judge_instance& p, std::size_t rank) {
  std::vector<std::string> found;
  std::string word;
  const std::function<void(int, int, int)> extend = [&](int f, int b, int w) {
    if (f - (1 - p.held) * b - p.held * w > p.caps[rank] + test::judge_slack) return;
    if (w == p.microbatches) return found.push_back(word);
    const auto with = [&](char c, int df, int db, int dw) {
      word.push_back(c);
      extend(f + df, b + db, w + dw);
      word.pop_back();
    };
    if (f < p.microbatches) with('F', 1, 0, 0);
    if (b < f) with('B', 0, 1, 0);
    if (w < b) with('W', 0, 0, 1);
  };
  extend(0, 0, 0);
  return found;
}

/// Tries every word of every rank.
double brute_force(const judge_instance& p) {
  const auto ranks = p.f.size();
  std::vector<std::vector<std::string>> words;
  for (std::size_t i = 0; i < ranks; ++i) words.push_back(all_words(p, i));
  test::judge_words chosen(ranks);
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(std::size_t)> choose = [&](std::size_t rank) {
    if (rank == ranks) return void(best = std::min(best, replay(p, chosen)));
    for (const auto& word : words[rank]) {
      chosen[rank] = word;
      choose(rank + 1);
    }
  };
  choose(0);
  return best;
}

/// Times in quarters half of the time, so that ties occur; now and then a time of 0.
judge_instance tiny_instance(random_source& random, int ranks, int microbatches) {
  judge_instance p;
  p.microbatches = microbatches;
  const bool coarse = random.integer(0, 1) == 0;
  const auto draw = [&](double low, double high) {
    if (random.integer(0, 19) == 0) return 0.0;
    return coarse ? 0.25 * random.integer(static_cast<int>(4 * low), static_cast<int>(4 * high)) : random.uniform(low, high);
  };
  const double held[] = {1, 1, 0.5, 0.75, 0.25, 0};
  p.held = held[random.integer(0, 5)];
  for (int i = 0; i < ranks; ++i) {
    p.f.push_back(draw(0.25, 2.5));
    p.b.push_back(draw(0.25, 3));
    p.w.push_back(draw(0.25, 3));
    p.caps.push_back(random.integer(1, microbatches + 1) + (random.integer(0, 3) == 0 ? 0.5 : 0.0));
    if (i > 0) p.a.push_back(draw(0, 3)), p.g.push_back(draw(0, 3));
  }
  if (random.integer(0, 2) == 0) test::let_transfers_overlap(random, p);
  return p;
}

void compare_with_brute_force(std::uint64_t seed, int instances, int ranks, int microbatches) {
  random_source random(seed);
  for (int n = 0; n < instances / test::sanitizer_share; ++n) {
    const auto p = tiny_instance(random, ranks, microbatches);
    CAPTURE(test::text(p));
    const auto v = optimum(p);
    CAPTURE(test::text(v.words));
    REQUIRE(v.proved);
    REQUIRE(v.optimum == doctest::Approx(brute_force(p)).epsilon(1e-9));
    REQUIRE(replay(p, v.words) == doctest::Approx(v.optimum).epsilon(1e-9));
    REQUIRE(v.lower_bound <= v.optimum * (1 + 1e-9));
    // A first pass so narrow that it often misses the optimum: only the widening can find it.
    constexpr double unknown = std::numeric_limits<double>::infinity();
    REQUIRE(optimum(p, unknown, 1'000'000, 1).optimum == doctest::Approx(v.optimum).epsilon(1e-9));
  }
}

/// 1F1B as far as the caps go, every weight gradient right after its backward_input.
test::judge_words one_f_one_b_words(const judge_instance& p) {
  test::judge_words words;
  int in_flight = p.microbatches;
  for (int i = 0; i < p.ranks(); ++i) {
    in_flight = std::min({in_flight, p.ranks() - i, static_cast<int>(p.caps[static_cast<std::size_t>(i)])});
    std::string word(static_cast<std::size_t>(in_flight), 'F');
    for (int k = 0; k < p.microbatches; ++k) word += k + in_flight < p.microbatches ? "BWF" : "BW";
    words.push_back(word);
  }
  return words;
}

}  // namespace

TEST_CASE("an instance worked out by hand") {
  // Two ranks, unit actions, no transfers: F F B W B W on the first with a gap of one before each B at best, F B F B W W on the
  // last.
  const judge_instance p{.f = {1, 1}, .b = {1, 1}, .w = {1, 1}, .a = {0}, .g = {0}, .caps = {2, 2}, .held = 1, .microbatches = 2};
  const auto v = optimum(p);
  CHECK(v.proved);
  CHECK(v.optimum == 7);
  // With room for one microbatch only, the second waits for the first one's weight gradient: 5 + 5.
  auto tight = p;
  tight.caps = {1, 2};
  CHECK(optimum(tight).optimum == 10);
  // Where memory is free once the input gradient is there, a weight gradient need not be waited for.
  tight.held = 0;
  CHECK(optimum(tight).optimum == 9);
}

TEST_CASE("the judge finds what trying everything finds") {
  compare_with_brute_force(1, 2000, 2, 2);
  compare_with_brute_force(2, 600, 2, 3);
  compare_with_brute_force(3, 1500, 3, 2);
  compare_with_brute_force(4, 300, 4, 2);
  compare_with_brute_force(5, 60, 3, 3);
  compare_with_brute_force(6, 15, 2, 4);
}

TEST_CASE("a hint prunes and does not mislead") {
  for (const auto& p : test::auto_instances(40)) {
    CAPTURE(test::text(p));
    const auto v = optimum(p);
    const auto same = optimum(p, v.optimum);
    CHECK(same.proved);
    CHECK(same.optimum == doctest::Approx(v.optimum).epsilon(1e-9));
    CHECK(same.nodes <= v.nodes);
    const auto none = optimum(p, 0.999 * v.optimum);
    CHECK_FALSE(none.proved);
    CHECK(none.words.empty());
    const auto cut = optimum(p, v.optimum, 5);
    CHECK(cut.lower_bound <= v.optimum * (1 + 1e-9));
  }
}

TEST_CASE("orders that do not work replay as infinite") {
  const judge_instance p{.f = {1, 1}, .b = {1, 1}, .w = {1, 1}, .a = {0}, .g = {0}, .caps = {1, 2}, .held = 1, .microbatches = 2};
  constexpr double never = std::numeric_limits<double>::infinity();
  CHECK(replay(p, {"FBWFBW", "FBWFBW"}) == 10);
  CHECK(replay(p, {"FFBBWW", "FBWFBW"}) == never);  // more than the cap
  CHECK(replay(p, {"FBWFBW", "FFBBWW"}) == never);  // deadlock
  CHECK(replay(p, {"FBWFB", "FBWFBW"}) == never);   // incomplete
  CHECK(replay(p, {"BFWFBW", "FBWFBW"}) == never);
}

TEST_CASE("instances that make no sense are refused") {
  auto p = test::auto_instances(1)[0];
  p.caps[0] = 0.5;
  CHECK_THROWS_AS(optimum(p), input_error);
  p.caps[0] = 1;
  p.a.pop_back();
  CHECK_THROWS_AS(optimum(p), input_error);
}

TEST_CASE("every instance of the set is solved, and 1F1B is never better") {
  const auto one_f_one_b = [](const judge_instance& p) { return replay(p, one_f_one_b_words(p)); };
  for (const int least_cap : {1, 3}) {
    CAPTURE(least_cap);
    const auto set = test::auto_instances(500, least_cap);
    const auto result = test::compare_with_optimum(set, one_f_one_b);
    CAPTURE(result.worst_instance);
    CAPTURE(result.below_instance);
    CHECK(result.unproved == 0);
    CHECK(result.below == 0);
    CHECK(result.mean > 1.02);
    CHECK(result.worst < 2);
  }
}

TEST_CASE("the judge's orders replay to what it says, on the set") {
  double sum = 0;
  for (const auto& p : test::auto_instances()) {
    const auto v = optimum(p);
    CAPTURE(test::text(p));
    REQUIRE(replay(p, v.words) == doctest::Approx(v.optimum).epsilon(1e-9));
    sum += v.optimum;
  }
  // The set is the same on every machine.
  CHECK(sum == doctest::Approx(29740.438680578445).epsilon(1e-9));
}
