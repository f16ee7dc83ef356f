// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/layout/training_layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/text.hpp>

#include "../set_groups.hpp"

using namespace hetsched;

namespace {

/// Stages of so many layers each.
pipeline_plan line_of(const std::vector<int>& sizes, int microbatches, const std::vector<int>& warmups) {
  pipeline_plan p{.microbatches = microbatches, .microbatch_size = 2, .stages = {}};
  int first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    stage_plan s;
    s.layers = {first, first + sizes[i]};
    s.warmup = warmups[i];
    s.devices = {{.mesh = {}, .first_device = static_cast<int>(i)}};
    s.cost.forward_s = 1;
    s.cost.backward_s = 2;
    if (i > 0) p.boundaries.push_back({.forward_s = 0.5, .backward_s = 0.5});
    p.stages.push_back(s);
    first += sizes[i];
  }
  return p;
}

plan plan_of(std::vector<pipeline_plan> pipelines, const char* schedule) {
  plan p;
  p.pipelines = std::move(pipelines);
  for (auto& line : p.pipelines) line.schedule.name = schedule;
  return p;
}

std::vector<layer_range> layers_of(const training_layout& t, std::size_t pipeline = 0) {
  std::vector<layer_range> found;
  for (const auto& s : t.pipelines[pipeline].stages) found.push_back(s.layers);
  return found;
}

template <class Call>
std::string why(Call call) {
  try {
    call();
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("even_layout cuts layers into parts that differ by one at most") {
  for (int stages = 1; stages <= 8; ++stages)
    for (int layers = stages; layers < 40; ++layers) {
      const auto t = even_layout(layers, gpipe(stages, 3), 4);
      CAPTURE(stages);
      CAPTURE(layers);
      CHECK(t.layers == layers);
      CHECK(t.ranks() == stages);
      REQUIRE(t.pipelines.size() == 1);
      CHECK(t.pipelines[0].microbatch_size == 4);
      int least = layers, most = 0, next = 0;
      for (const auto& [r, reshard] : t.pipelines[0].stages) {
        CHECK(r.first == next);
        next = r.last;
        least = std::min(least, r.size());
        most = std::max(most, r.size());
      }
      CHECK(next == layers);
      CHECK(least >= 1);
      CHECK(most - least <= 1);
    }
  CHECK(contains(why([] { (void)even_layout(3, gpipe(4, 1)); }), "3 layers cannot be cut into 4 stages"));
}

TEST_CASE("a plan with its own schedule keeps its stages and warm-ups") {
  const auto p = plan_of({line_of({3, 1, 2}, 6, {5, 3, 1}), line_of({2, 4}, 4, {2, 1})}, "h1f1b");
  const auto t = make_training_layout(p);
  CHECK(t.layers == 6);
  CHECK(t.ranks() == 5);
  REQUIRE(t.pipelines.size() == 2);
  CHECK(t.pipelines[0].order == one_f_one_b({5, 3, 1}, 6));
  CHECK(t.pipelines[1].order == one_f_one_b({2, 1}, 4));
  CHECK(layers_of(t) == std::vector<layer_range>{{0, 3}, {3, 4}, {4, 6}});
  CHECK(layers_of(t, 1) == std::vector<layer_range>{{0, 2}, {2, 6}});
  CHECK(t.pipelines[0].first_rank == 0);
  CHECK(t.pipelines[1].first_rank == 3);
  CHECK(t.pipelines[1].microbatch_size == 2);
  CHECK(t.pipeline_of(2) == 0);
  CHECK(t.pipeline_of(3) == 1);
  CHECK(t.pipeline_of(5) == 2);
  // So does one that lists its actions.
  auto listed = p;
  listed.pipelines[1].schedule.actions = gpipe(2, 4);
  CHECK(make_training_layout(listed).pipelines[0].order == t.pipelines[0].order);
  CHECK(make_training_layout(listed).pipelines[1].order == gpipe(2, 4));
  CHECK(make_training_layout(listed, {.schedule = "1f1b"}).pipelines[1].order == one_f_one_b({2, 1}, 4));
  // Another by name finds its own.
  const auto other = make_training_layout(p, {.schedule = "1f1b"});
  CHECK(other.pipelines[0].order == one_f_one_b({3, 2, 1}, 6));
  CHECK(other.pipelines[0].stages == t.pipelines[0].stages);
}

TEST_CASE("every schedule has a layout, in which ranks keep the share that the plan gave them") {
  random_source random(1);
  auto names = schedule_names();
  names.push_back("auto");
  for (const auto name : names)
    for (int run = 0; run < 20; ++run) {
      CAPTURE(name);
      CAPTURE(run);
      const int ranks = 2 * random.integer(1, 3);
      std::vector<int> sizes, warmups;
      for (int r = 0; r < ranks; ++r) {
        sizes.push_back(random.integer(4, 12));
        warmups.push_back(ranks - r);
      }
      const auto p = plan_of({line_of(sizes, 4, warmups)}, "1f1b");
      const auto t = make_training_layout(p, {.schedule = name});
      const auto& line = t.pipelines[0];
      CHECK(check(line.order).empty());
      CHECK(t.ranks() == ranks);
      if (name == "chimera" || name == "dualpipe" || line.order.stages == ranks) {
        for (int s = 0; s < ranks; ++s)
          CHECK(line.stages[static_cast<std::size_t>(s)].layers.size() == sizes[static_cast<std::size_t>(s)]);
        continue;
      }
      std::vector<int> held(sizes.size(), 0);
      for (int s = 0; s < line.order.stages; ++s)
        held[static_cast<std::size_t>(line.order.rank(0, s))] += line.stages[static_cast<std::size_t>(s)].layers.size();
      // Both ends of each of a rank's two stages are rounded.
      for (std::size_t r = 0; r < sizes.size(); ++r) CHECK(std::abs(held[r] - sizes[r]) <= 2);
    }
  // Shares that come out even.
  const auto v = make_training_layout(plan_of({line_of({2, 4, 6}, 6, {3, 2, 1})}, "zb_v"));
  CHECK(layers_of(v) == std::vector<layer_range>{{0, 1}, {1, 3}, {3, 6}, {6, 9}, {9, 11}, {11, 12}});
  const auto loop = make_training_layout(plan_of({line_of({3, 6}, 6, {2, 1})}, "interleaved_1f1b"), {.chunks = 3});
  CHECK(layers_of(loop) == std::vector<layer_range>{{0, 1}, {1, 3}, {3, 4}, {4, 6}, {6, 7}, {7, 9}});
  CHECK(contains(why([] {
                   (void)make_training_layout(plan_of({line_of({1, 2}, 6, {2, 1})}, "zb_v"));
                 }),
                 "3 layers cannot be cut into 4 stages"));
}

TEST_CASE("schedules of the user's") {
  const auto p = plan_of({line_of({3, 3}, 4, {2, 1}), line_of({6}, 2, {1})}, "1f1b");
  const auto own = parse_schedule_csv(to_csv(gpipe(2, 4)));
  const auto t = make_training_layout(p, {.orders = {own, gpipe(1, 2)}});
  CHECK(t.pipelines[0].order == own);
  CHECK(contains(why([&] { (void)make_training_layout(p, {.orders = {own}}); }), "1 schedules for 2 pipelines"));
  CHECK(contains(why([&] {
                   (void)make_training_layout(p, {.orders = {gpipe(2, 3), gpipe(1, 2)}});
                 }),
                 "a schedule of 2 ranks and 3 microbatches"));
  CHECK(contains(why([&] {
                   (void)make_training_layout(p, {.orders = {own, gpipe(2, 2)}});
                 }),
                 "pipeline 1 of the plan has 1 stages and 2"));
}

TEST_CASE("layouts and plans that cannot be") {
  const auto good = make_training_layout(plan_of({line_of({2, 2}, 4, {2, 1}), line_of({4}, 2, {1})}, "1f1b"));
  validate(good);
  const auto broken = [&](auto change, const char* text) {
    auto t = good;
    change(t);
    const auto found = why([&] { validate(t); });
    CAPTURE(found);
    CAPTURE(text);
    CHECK(contains(found, text));
  };
  broken([](training_layout& t) { t.layers = 0; }, "at least one layer");
  broken([](training_layout& t) { t.pipelines.clear(); }, "at least one pipeline");
  broken([](training_layout& t) { t.layers = 5; }, "its stages end at layer 4, the model at 5");
  broken([](training_layout& t) { t.pipelines[0].stages.pop_back(); }, "pipeline 0: layers for 1 stages, but the schedule has 2");
  broken([](training_layout& t) { t.pipelines[0].stages[1].layers.first = 3; }, "begins with layer 3, expected 2");
  broken(
      [](training_layout& t) {
        t.pipelines[0].stages = {{.layers = {0, 4}}, {.layers = {4, 4}}};
      },
      "the stage at layer 4 has no layer");
  broken([](training_layout& t) { t.pipelines[1].first_rank = 1; }, "pipeline 1: its ranks begin at 1");
  broken([](training_layout& t) { t.pipelines[1].first_rank = 3; }, "pipeline 1: its ranks begin at 3");
  broken([](training_layout& t) { t.pipelines[1].microbatch_size = 0; }, "microbatches of 0 samples");
  broken([](training_layout& t) { t.pipelines[1].order = {}; }, "its schedule is empty");

  CHECK(contains(why([] { (void)make_training_layout(plan{}); }), "without pipelines"));
  CHECK(contains(why([] { (void)make_training_layout(plan_of({pipeline_plan{}}, "1f1b")); }), "without stages"));
  CHECK(contains(why([] {
                   (void)make_training_layout(plan_of({line_of({2}, 1, {1}), line_of({3}, 1, {1})}, "1f1b"));
                 }),
                 "pipeline 0: its stages end at layer 2, the model at 3"));
  CHECK(contains(why([] { (void)make_training_layout(plan_of({line_of({2}, 1, {1})}, "nonsense")); }), "there is no schedule"));
}

TEST_CASE("a plan's degrees become groups of ranks, and its strategies those of the boundaries") {
  auto p = plan_of({line_of({1, 2, 1}, 4, {3, 2, 1}), line_of({2, 2}, 4, {2, 1})}, "h1f1b");
  const auto plain = make_training_layout(p).pipelines[0];
  CHECK(plain.groups == std::vector<group_layout>(3));
  for (const auto& s : plain.stages) CHECK(s.reshard == reshard_strategy::direct);
  for (auto& line : p.pipelines) line.microbatch_size = 6;
  p.pipelines[0].stages[0].degrees = {.data = 2, .tensor = 2};
  p.pipelines[0].stages[2].degrees = {.data = 3};
  p.pipelines[0].boundaries[1].reshard = "regroup_after";
  const auto t = make_training_layout(p);
  CHECK(t.ranks() == 10);
  CHECK(test::of_groups(t.pipelines[0], &group_layout::degrees) ==
        std::vector<degrees>{{.data = 2, .tensor = 2}, {}, {.data = 3}});
  CHECK(t.pipelines[0].stages[0].reshard == reshard_strategy::direct);
  CHECK(t.pipelines[0].stages[1].reshard == reshard_strategy::regroup_after);
  CHECK(t.pipelines[1].groups == std::vector<group_layout>(2));
  CHECK(t.pipelines[1].first_rank == 8);
  CHECK(t.place_of(3) == rank_place{.pipeline = 0, .group = 0, .data = 1, .tensor = 1});
  CHECK(t.place_of(6) == rank_place{.pipeline = 0, .group = 2, .data = 1});
  p.pipelines[0].microbatch_size = 4;
  CHECK(contains(why([&] { (void)make_training_layout(p); }), "microbatches of 4 samples on 3 data ranks"));
}

TEST_CASE("what a plan says of shares, recomputation and ZeRO is in its layout, or refused with the stage") {
  auto p = plan_of({line_of({1, 2, 1}, 4, {3, 2, 1})}, "h1f1b");
  p.pipelines[0].microbatch_size = 5;
  auto& stages = p.pipelines[0].stages;
  CHECK(make_training_layout(p).pipelines[0].group(1) == group_layout{});
  stages[1].degrees = {.data = 2, .tensor = 2};
  CHECK(contains(why([&] { (void)make_training_layout(p); }), "microbatches of 5 samples on 2 data ranks"));
  stages[1].shares = {.data = {0.6, 0.4}, .tensor = {0.5, 0.5}};
  stages[1].recompute = recomputation::full;
  stages[2].zero = 2;
  CHECK(room_of_ranks(make_training_layout(p)).empty());
  stages[1].shares.state = {0.75, 0.25};
  const auto line = make_training_layout(p).pipelines[0];
  CHECK(test::of_groups(line, &group_layout::sample_points) == std::vector<std::vector<std::int64_t>>{{}, {0, 3, 5}, {}});
  CHECK(line.samples_of(1, 1) == interval{3, 5});
  CHECK(line.samples_of(2, 0) == interval{0, 5});
  CHECK(test::of_groups(line, &group_layout::recompute) ==
        std::vector{recomputation::none, recomputation::full, recomputation::none});
  CHECK(test::of_groups(line, &group_layout::zero) == std::vector{0, 0, 2});
  CHECK(test::of_groups(line, &group_layout::state_shares) == std::vector<std::vector<double>>{{}, {0.75, 0.25}, {}});
  CHECK(room_of_ranks(make_training_layout(p)) == std::vector{1.0, 1.5, 1.5, 0.5, 0.5, 1.0});

  const auto refused = [&](auto change, const char* text) {
    auto other = p;
    change(other.pipelines[0].stages[1]);
    const auto found = why([&] { (void)make_training_layout(other); });
    CAPTURE(found);
    CHECK(contains(found, text));
  };
  auto heads = p;
  heads.pipelines[0].stages[1].shares.tensor = {0.6, 0.4};
  CHECK(make_training_layout(heads).pipelines[0].group(1).tensor_shares == std::vector{0.6, 0.4});
  CHECK(make_training_layout(heads).pipelines[0].group(2).tensor_shares.empty());
  refused(
      [](stage_plan& s) {
        s.shares.tensor = {0.6, 0.3};
      },
      "stage 1 shares its heads among 2 tensor ranks by numbers that do");
  refused([](stage_plan& s) { s.shares.tensor = {0.6, 0.2, 0.2}; }, "stage 1 shares its heads among 2 tensor ranks");
  refused([](stage_plan& s) { s.shares.context = {0.6, 0.4}; }, "pipeline 0: stage 1 has uneven shares of its context axis");
  refused([](stage_plan& s) { s.shares.data = {0.5, 0.3, 0.2}; }, "pipeline 0: stage 1 has 3 shares for 2 data ranks");
  refused([](stage_plan& s) { s.shares.data = {0.95, 0.05}; }, "stage 1 shares microbatches of 5 samples among 2 data ranks");
  refused([](stage_plan& s) { s.shares.state = {0.75, 0.5}; }, "stage 1 shares its state among 2 data ranks by numbers that do");
  refused([](stage_plan& s) { s.shares.state = {1}; }, "stage 1 shares its state among 2 data ranks by numbers that do");
  refused([](stage_plan& s) { s.degrees.expert = 2; },
          "pipeline 0: stage 1 has uneven shares of the state of data ranks that share out experts");
  auto sharded = make_training_layout(p);
  sharded.pipelines[0].groups[1].zero = 3;
  CHECK_NOTHROW(validate(sharded));
  sharded.pipelines[0].groups[1].zero = 4;
  CHECK_THROWS_WITH_AS(validate(sharded), "pipeline 0: stage 1 asks for ZeRO stage 4, expected 0 to 3", input_error);
}
