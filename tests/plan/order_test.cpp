// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/order.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>
#include <hetsched/schedule/check/check.hpp>

#include "stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A priced pipeline; its stages lie on subclusters as they come, some boundaries between two.
pipeline_plan priced(random_source& random, int stages, int microbatches) {
  auto line = line_of(std::vector<int>(static_cast<std::size_t>(stages), 1), 0, 0, microbatches, "");
  int subcluster = 0;
  for (auto& s : line.stages) {
    s.devices[0].mesh.subcluster = subcluster += random.integer(0, 1);
    s.cost = {.forward_s = random.uniform(0.5, 1), .backward_s = random.uniform(1, 2)};
    s.cost.weight_backward_s = s.cost.backward_s * random.uniform(0.3, 0.5);
  }
  for (int i = 0; i + 1 < stages; ++i)
    line.boundaries.push_back({.forward_s = random.uniform(0, 1), .backward_s = random.uniform(0, 1)});
  return line;
}

schedule order_now(const pipeline_plan& line) {
  auto found = order_of(line, {});
  REQUIRE(found);
  return found->order;
}

}  // namespace

TEST_CASE("set_order and then order_of is the same schedule, for every name") {
  random_source random(83);
  int listed = 0, bare = 0;
  for (int n = 0; n < 20; ++n)
    for (const auto name : schedule_names()) {
      CAPTURE(n);
      CAPTURE(std::string(name));
      const int stages = 2 * random.integer(1, 3), microbatches = 2 * stages;
      auto line = priced(random, stages, microbatches);
      build_options options;
      if (n % 3 == 1 && has_warmups(name)) options.warmups = one_f_one_b_warmups(stages);
      const auto order = build_schedule(name, to_pipeline(line), microbatches, options);
      set_order(line, std::string(name), order);
      CHECK(line.schedule.name == name);
      CHECK(warmups(line) == warmup_counts(order));
      CHECK(order_now(line) == order);
      (line.schedule.actions ? listed : bare) += 1;
      // Names that are told by warm-ups need no actions.
      if (has_warmups(name)) CHECK(!line.schedule.actions);
      // Under any other name the actions are kept.
      set_order(line, "my own", order);
      REQUIRE(line.schedule.actions);
      CHECK(order_now(line) == order);
      set_order(line, "auto", order);
      REQUIRE(line.schedule.actions);
      CHECK(order_now(line) == order);
      set_order(line, "gpipe", order);
      CHECK(order_now(line) == order);
    }
  CHECK(bare > 200);
}

TEST_CASE("without warm-ups a name has those of its rule; capacities limit auto only") {
  random_source random(84);
  for (int n = 0; n < 20; ++n) {
    CAPTURE(n);
    auto line = priced(random, 3, 8);
    for (const auto rule : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact}) {
      line.schedule.name = schedule_name(rule);
      for (auto& s : line.stages) s.warmup = 0;
      CHECK(order_now(line) == one_f_one_b(warmup_counts(rule, to_pipeline(line)), 8));
      line.stages[0].warmup = 5;
      line.stages[1].warmup = 3;
      line.stages[2].warmup = 1;
      CHECK(order_now(line) == one_f_one_b({5, 3, 1}, 8));
    }
    line.schedule.name = "virtual_1f1b";
    for (auto& s : line.stages) s.warmup = 0;
    CHECK(order_now(line) == one_f_one_b(virtual_1f1b_warmups(subcluster_boundaries(line)), 8));
    line.schedule.name = "auto";
    for (auto& s : line.stages) s.cost.activation_bytes = 10;
    const auto tight = order_of(line, {30, 20, 10});
    REQUIRE(tight);
    CHECK(check(tight->order).empty());
    CHECK(tight->lower_bound_s > 0);
    CHECK(warmup_counts(tight->order)[0] <= 3);
    CHECK(!order_of(line, {30, 20, 5}));
  }
}

TEST_CASE("what order_of throws at") {
  random_source random(85);
  auto line = priced(random, 2, 4);
  line.schedule.name = "nonsense";
  CHECK_THROWS_AS((void)order_of(line, {}), input_error);
  line.schedule = {.name = "1f1b", .actions = gpipe(2, 5)};
  CHECK_THROWS_AS((void)order_of(line, {}), input_error);
  line.schedule.actions = gpipe(3, 4);
  CHECK_THROWS_AS((void)order_of(line, {}), input_error);
  line.schedule.actions = gpipe(2, 4);
  CHECK(order_now(line) == gpipe(2, 4));
}

TEST_CASE("which names warm-ups tell") {
  for (const char* name : {"1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b"}) CHECK(has_warmups(name));
  for (const char* name : {"gpipe", "zb_h1", "chimera", "auto", "", "nonsense"}) CHECK(!has_warmups(name));
}
