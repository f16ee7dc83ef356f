// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/named.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/period.hpp>

#include "../random_pipeline.hpp"
#include "../reference_times.hpp"

using namespace hetsched;

namespace {

const pipeline four_stages{
    .forward_s = {1, 2, 1, 1.5}, .backward_s = {2, 3, 2, 3}, .transfer_s = {0.1, 2.5, 0}, .weight_backward_s = {1, 1, 1, 1}};

}  // namespace

TEST_CASE("every published schedule has a name") {
  CHECK(schedule_names() == std::vector<std::string_view>{"gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b",
                                                          "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half",
                                                          "v_min", "dualpipe", "dualpipe_v", "chimera"});
}

TEST_CASE("every name builds a sound schedule, one rank per stage") {
  for (const auto name : schedule_names())
    for (const int microbatches : {1, 5, 12}) {
      CAPTURE(std::string(name));
      CAPTURE(microbatches);
      const auto order = build_schedule(name, four_stages, microbatches);
      CHECK(order.ranks == 4);
      CHECK(order.microbatches == microbatches);
      CHECK(test::defect(order) == "");
      CHECK_FALSE(test::times_of(make_workload(four_stages, order), order).deadlock);
    }
}

TEST_CASE("ids have their names, and build what these build") {
  auto names = schedule_names();
  names.push_back(auto_schedule_name);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto id = schedule_named(names[i]);
    CHECK(static_cast<std::size_t>(id) == i);
    CHECK(find_schedule_id(names[i]) == id);
    CHECK(name_of(id) == names[i]);
    CHECK(has_warmups(id) == has_warmups(names[i]));
    if (id == schedule_id::searched)
      CHECK_THROWS_AS((void)build_schedule(id, four_stages, 8), input_error);
    else
      CHECK(build_schedule(id, four_stages, 8) == build_schedule(names[i], four_stages, 8));
  }
  for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
    CHECK(schedule_name(rule) == name_of(id_of(rule)));
  CHECK(find_schedule_id("mine") == std::nullopt);
  CHECK_THROWS_WITH_AS((void)schedule_named("mine"), doctest::Contains("there is no schedule \"mine\"; there are gpipe, 1f1b"),
                       input_error);
  CHECK(name_of(static_cast<schedule_id>(99)).empty());
  CHECK_THROWS_AS((void)build_schedule(static_cast<schedule_id>(99), four_stages, 8), input_error);
}

TEST_CASE("names stand for their builders") {
  CHECK(build_schedule("gpipe", four_stages, 6) == gpipe(4, 6));
  CHECK(build_schedule("1f1b", four_stages, 6) == one_f_one_b({4, 3, 2, 1}, 6));
  CHECK(build_schedule("eager_1f1b", four_stages, 6) == one_f_one_b({7, 5, 3, 1}, 6));
  CHECK(build_schedule("h1f1b", four_stages, 9) == one_f_one_b(h1f1b_warmups(four_stages, 5), 9));
  CHECK(build_schedule("h1f1b", four_stages, 9, {.epsilon = 0}) == one_f_one_b(h1f1b_warmups(four_stages, 5, 0), 9));
  CHECK(build_schedule("exact_1f1b", four_stages, 9) == one_f_one_b(exact_warmups(four_stages, 5), 9));
  CHECK(build_schedule("virtual_1f1b", four_stages, 9, {.cross = {false, true, false}}) == one_f_one_b({5, 4, 2, 1}, 9));
  CHECK(build_schedule("virtual_1f1b", four_stages, 9, {.epsilon = 1}) == one_f_one_b({4, 3, 2, 1}, 9));
  CHECK(build_schedule("interleaved_1f1b", four_stages, 8) == interleaved_1f1b(4, 2, 8));
  CHECK(build_schedule("looped_bfs", four_stages, 8, {.chunks = 3}) == looped_bfs(4, 3, 8));
  CHECK(build_schedule("zb_h1", four_stages, 8) == zb_h1(4, 8));
  CHECK(build_schedule("zb_h2", four_stages, 8) == zb_h2(4, 8));
  CHECK(build_schedule("zb_v", four_stages, 8) == zb_v(4, 8));
  CHECK(build_schedule("v_half", four_stages, 8) == v_half(4, 8));
  CHECK(build_schedule("v_min", four_stages, 8) == v_min(4, 8));
  CHECK(build_schedule("dualpipe", four_stages, 8) == dualpipe(4, 8));
  CHECK(build_schedule("dualpipe_v", four_stages, 8) == dualpipe_v(4, 8));
  CHECK(build_schedule("chimera", four_stages, 8) == chimera(4, 8));
}

TEST_CASE("warm-up counts and caps of the 1F1B family") {
  for (const char* name : {"1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b"}) {
    CAPTURE(std::string(name));
    CHECK(build_schedule(name, four_stages, 8, {.warmups = {6, 6, 2, 1}}) == one_f_one_b({6, 6, 2, 1}, 8));
    CHECK(build_schedule(name, four_stages, 8, {.warmups = {6, 6, 2, 1}, .caps = {5, 9, 9, 9}}) == one_f_one_b({5, 5, 2, 1}, 8));
    CHECK(build_schedule(name, four_stages, 8, {.caps = {1, 9, 9, 9}}) == one_f_one_b({1, 1, 1, 1}, 8));
  }
}

TEST_CASE("exact warm-ups within caps are never slower than those of other rules within them") {
  random_source random(31);
  for (int n = 0; n < 300; ++n) {
    const int stages = random.integer(2, 7);
    const auto p = test::random_pipeline(random, stages);
    build_options options;
    for (int i = 0; i < stages; ++i) options.caps.push_back(random.integer(1, stages));
    INFO(test::text(p), " ", test::text(options.caps));
    const auto period_of = [&](const char* name) { return period(p, warmup_counts(build_schedule(name, p, 40, options))); };
    for (const char* other : {"1f1b", "eager_1f1b", "h1f1b", "virtual_1f1b"})
      CHECK(period_of("exact_1f1b") <= period_of(other) * (1 + 1e-9));
  }
}

TEST_CASE("bad input is refused") {
  CHECK_THROWS_WITH_AS((void)build_schedule("1b1f", four_stages, 4),
                       "there is no schedule \"1b1f\"; there are gpipe, 1f1b, eager_1f1b, h1f1b, exact_1f1b, virtual_1f1b, "
                       "interleaved_1f1b, looped_bfs, zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe, dualpipe_v, chimera",
                       input_error);
  CHECK_THROWS_AS((void)build_schedule("1f1b", pipeline{}, 4), input_error);
  CHECK_THROWS_WITH_AS((void)build_schedule("auto", four_stages, 4), "auto is no builder: auto_schedule finds it", input_error);
  CHECK_THROWS_AS((void)build_schedule("1f1b", four_stages, 0), input_error);
  CHECK_THROWS_WITH_AS((void)build_schedule("1f1b", four_stages, 4, {.warmups = {2, 1}}), "2 warm-up counts for 4 stages",
                       input_error);
  CHECK_THROWS_AS((void)build_schedule("1f1b", four_stages, 4, {.warmups = {1, 2, 2, 1}}), input_error);
  CHECK_THROWS_AS((void)build_schedule("1f1b", four_stages, 4, {.caps = {1}}), input_error);
  CHECK_THROWS_AS((void)build_schedule("1f1b", four_stages, 4, {.caps = {1, 1, 1, 0}}), input_error);
  CHECK_THROWS_AS((void)build_schedule("virtual_1f1b", four_stages, 4, {.cross = {true}}), input_error);
  CHECK_THROWS_AS((void)build_schedule("interleaved_1f1b", four_stages, 4, {.chunks = 0}), input_error);
  CHECK_THROWS_WITH_AS((void)build_schedule("zb_v", four_stages, 4, {.warmups = {4, 3, 2, 1}}),
                       "the schedule zb_v takes no warm-up counts and no caps", input_error);
  const pipeline three{.forward_s = {1, 1, 1}, .backward_s = {1, 1, 1}, .transfer_s = {0, 0}};
  CHECK_THROWS_AS((void)build_schedule("dualpipe", three, 8), input_error);
}
