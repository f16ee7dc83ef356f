// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/microbatch.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners/interop_dp.hpp>

using namespace hetsched;

namespace {

outcome<plan> of_rate(double samples_per_s, int size) {
  plan p;
  p.predicted.iteration_s = 1 / samples_per_s;
  p.pipelines = {{.microbatches = 1, .microbatch_size = size}};
  return p;
}

int chosen(const outcome<plan>& p) {
  REQUIRE(p);
  return p->pipelines.front().microbatch_size;
}

outcome<plan> refuse(refusal::kind why, const std::string& reason) { return refusal{why, reason}; }

}  // namespace

TEST_CASE("microbatches of another size: every pipeline keeps its share of the batch, to a whole microbatch") {
  const auto line = [](int microbatches, int data) {
    return pipeline_plan{.microbatches = microbatches,
                         .microbatch_size = 4,
                         .stages = {{.layers = {0, 2}, .degrees = {.data = data}, .warmup = 3}},
                         .boundaries = {{}},
                         .schedule = {.name = "exact_1f1b"}};
  };
  const plan p{.pipelines = {line(7, 2), line(2, 1), line(1, 1)}};  // 28, 8 and 4 of 40 samples
  const auto counts = [&](int size) {
    std::vector<int> all;
    const auto lines = with_microbatch_size(p, size);
    REQUIRE(lines);
    for (const auto& own : *lines) {
      CHECK(own.microbatch_size == size);
      CHECK(own.stages.front().warmup == 0);
      CHECK(own.boundaries.empty());
      CHECK(own.schedule == p.pipelines.front().schedule);
      all.push_back(own.microbatches);
    }
    return all;
  };
  CHECK(counts(4) == std::vector{7, 2, 1});
  CHECK(counts(2) == std::vector{14, 4, 2});
  CHECK(counts(8) == std::vector{4, 1});   // 3.5, 1 and 0.5: the first of equal rests gets it
  CHECK(counts(10) == std::vector{3, 1});  // 2.8, 0.8 and 0.4
  CHECK(counts(40) == std::vector{1});     // 0.7, 0.2 and 0.1
  CHECK(!with_microbatch_size(p, 5));      // two replicas cannot share it
  CHECK(!with_microbatch_size(p, 6));      // no divisor of 40
  CHECK(!with_microbatch_size(p, 0));
}

TEST_CASE("planners are told the best plan of the sizes before") {
  std::vector<int> told;
  (void)best_microbatch_size(8, [&](const size_request& r) {
    if (r.first_plan) told.push_back(r.best ? r.best->pipelines.front().microbatch_size : 0);
    return of_rate(r.microbatch_size == 2 ? 2 : 1, r.microbatch_size);
  });
  CHECK(told == std::vector{0, 1, 2, 2});
}

TEST_CASE("a search is told what bound the searches of other sizes leave: nothing beyond it needs proof") {
  std::vector<double> told;
  const std::map<int, double> bounds{{1, 6}, {2, 3}, {4, 5}, {8, 2}};
  const auto found = best_microbatch_size(8, [&](const size_request& r) {
    auto p = *of_rate(1.0 / (8 + r.microbatch_size), r.microbatch_size);
    p.evidence = search_evidence{.objective_value = objective_of(p), .objective_bound = bounds.at(r.microbatch_size)};
    if (!r.first_plan) told.push_back(r.enough);
    return outcome<plan>(p);
  });
  const double any = std::numeric_limits<double>::infinity();
  CHECK(told == std::vector<double>{any, 6, 3, 3});
  CHECK(found->evidence->objective_bound == 2);
}

TEST_CASE("tries all that divide the batch, and no others") {
  const std::map<int, std::vector<std::pair<int, int>>> expected{{1, {{1, 1}}},
                                                                 {7, {{1, 7}, {7, 1}}},
                                                                 {8, {{1, 8}, {2, 4}, {4, 2}, {8, 1}}},
                                                                 {12, {{1, 12}, {2, 6}, {3, 4}, {4, 3}, {6, 2}, {12, 1}}},
                                                                 {9, {{1, 9}, {3, 3}, {9, 1}}},
                                                                 {1 << 30, {}}};
  for (const auto& [batch, sizes] : expected) {
    CAPTURE(batch);
    std::vector<std::pair<int, int>> tried;
    (void)best_microbatch_size(batch, [&](const size_request& r) {
      CHECK(r.first_plan);
      CHECK(r.beat == std::numeric_limits<double>::infinity());
      tried.emplace_back(r.microbatch_size, r.microbatches);
      return of_rate(1, r.microbatch_size);
    });
    if (batch == 1 << 30) {
      REQUIRE(tried.size() == 31);  // the largest power of two of an int, too
      CHECK(tried.back() == std::pair{1 << 30, 1});
    } else {
      CHECK(tried == sizes);
    }
  }
}

TEST_CASE("takes the fastest, the smaller of equals") {
  std::map<int, double> rate{{1, 5}, {2, 9}, {4, 9}, {8, 7}};
  const auto plan_for = [&](const size_request& r) { return of_rate(rate[r.microbatch_size], r.microbatch_size); };
  CHECK(chosen(best_microbatch_size(8, plan_for)) == 2);
  rate[8] = 10;
  CHECK(chosen(best_microbatch_size(8, plan_for)) == 8);
  rate[1] = 11;
  CHECK(chosen(best_microbatch_size(8, plan_for)) == 1);
}

TEST_CASE("sizes without a plan are passed over; with none at all, the reason for size 1") {
  const auto found = best_microbatch_size(8, [](const size_request& r) {
    const int size = r.microbatch_size;
    return size == 4 ? of_rate(1, size) : refuse(refusal::kind::infeasible, "size " + std::to_string(size));
  });
  CHECK(chosen(found) == 4);
  const auto none = best_microbatch_size(
      8, [](const size_request& r) { return refuse(refusal::kind::infeasible, "size " + std::to_string(r.microbatch_size)); });
  REQUIRE(!none);
  CHECK(none.why_not().why == refusal::kind::infeasible);
  CHECK(none.why_not().reason == "size 1");
}

TEST_CASE("ends where it is stopped, with what there is") {
  int calls = 0;
  const auto kept = best_microbatch_size(8, [&](const size_request& r) {
    ++calls;
    return r.microbatch_size == 1 ? of_rate(1, 1) : refuse(refusal::kind::stopped, "stopped");
  });
  CHECK(chosen(kept) == 1);
  CHECK(calls == 2);
  const auto nothing = best_microbatch_size(8, [](const size_request&) { return refuse(refusal::kind::stopped, "stopped"); });
  REQUIRE(!nothing);
  CHECK(nothing.why_not().why == refusal::kind::stopped);
}

TEST_CASE("sizes that may still win are asked again, those of good first plans first, and told what to beat") {
  // First plans: iteration, bound and whether that is all; then what a longer look finds.
  struct answer {
    double first_s, bound_s;
    bool complete;
    double second_s, second_bound_s;
  };
  const std::map<int, answer> answers{{1, {10, 9, false, 9.5, 9.25}},  // may still win, but is beaten by then
                                      {2, {8, 6, false, 7, 6.5}},
                                      {4, {9, 5, false, 6, 5.5}},
                                      {8, {12, 3, true, 0, 0}}};
  std::vector<std::pair<int, double>> asked;
  const auto best = best_microbatch_size(8, [&](const size_request& r) -> outcome<plan> {
    const auto& a = answers.at(r.microbatch_size);
    if (!r.first_plan) asked.emplace_back(r.microbatch_size, r.beat);
    plan p;
    p.predicted.iteration_s = r.first_plan ? a.first_s : a.second_s;
    p.predicted.samples_per_s = 8 / p.predicted.iteration_s;
    p.pipelines = {{.microbatches = r.microbatches, .microbatch_size = r.microbatch_size}};
    p.evidence = {.objective_value = p.predicted.iteration_s,
                  .objective_bound = r.first_plan ? a.bound_s : a.second_bound_s,
                  .complete = r.first_plan && a.complete};
    return p;
  });
  CHECK(chosen(best) == 4);
  CHECK(best->predicted.iteration_s == 6);
  CHECK(asked == std::vector<std::pair<int, double>>{{2, 8.0}, {4, 7.0}});
  CHECK(!best->evidence->complete);  // neither 2 nor 4 was searched to the end
  CHECK(best->evidence->objective_bound == 3);
}

TEST_CASE("of sizes whose first plans are nearly as good, the smallest is asked again first") {
  const std::map<int, double> first_s{{1, 11}, {2, 7.5}, {4, 8}, {8, 7}, {16, 9}};
  const auto order = [&](double alike) {
    std::vector<int> asked;
    const auto plan_for = [&](const size_request& r) -> outcome<plan> {
      if (!r.first_plan) asked.push_back(r.microbatch_size);
      auto p = *of_rate(1, r.microbatch_size);
      p.predicted.iteration_s = first_s.at(r.microbatch_size);
      p.evidence = {.objective_value = p.predicted.iteration_s, .objective_bound = 6, .complete = false};
      return p;
    };
    (void)best_microbatch_size(16, plan_for, {}, {}, alike);
    return asked;
  };
  CHECK(order(1) == std::vector{8, 2, 4, 16, 1});
  CHECK(order(1.1) == std::vector{2, 8, 4, 16, 1});
  CHECK(order(1.2) == std::vector{2, 4, 8, 16, 1});
}

TEST_CASE("first plans that are far from their bounds do not say which size comes next: the smallest does") {
  // First plan and bound.
  const std::map<int, std::pair<double, double>> answers{{1, {30, 2}}, {2, {20, 3}}, {4, {7, 4}}, {8, {6, 5}}, {16, {9, 0}}};
  std::vector<int> asked;
  (void)best_microbatch_size(16, [&](const size_request& r) -> outcome<plan> {
    const auto& [first_s, bound_s] = answers.at(r.microbatch_size);
    if (!r.first_plan) asked.push_back(r.microbatch_size);
    auto p = *of_rate(16 / first_s, r.microbatch_size);
    p.predicted.iteration_s = first_s;
    p.evidence = {.objective_value = first_s, .objective_bound = bound_s, .complete = false};
    return p;
  });
  CHECK(asked == std::vector<int>{8, 4, 16, 1, 2});
}

TEST_CASE("what is told when it is stopped while it asks again") {
  int calls = 0;
  const auto best = best_microbatch_size(
      2,
      [&](const size_request& r) -> outcome<plan> {
        ++calls;
        auto p = *of_rate(r.microbatch_size, r.microbatch_size);
        p.predicted.iteration_s = 2.0 / r.microbatch_size;
        p.evidence = {.objective_value = p.predicted.iteration_s, .objective_bound = 0.5, .complete = false};
        return p;
      },
      [&] { return calls < 2; });
  CHECK(chosen(best) == 2);
  CHECK(calls == 2);
  CHECK(!best->evidence->complete);
  CHECK(best->evidence->objective_bound <= 0.5);
}

TEST_CASE("a batch below 1 is bad input") {
  const auto never_called = [](const size_request&) -> outcome<plan> { throw std::logic_error("called"); };
  CHECK_THROWS_AS((void)best_microbatch_size(0, never_called), input_error);
  CHECK_THROWS_AS((void)best_microbatch_size(-4, never_called), input_error);
}

TEST_CASE("with the planner: the best of all sizes tried one by one") {
  cluster hardware;
  for (const char* device : {"V100-SXM2-32GB", "A100-SXM4-40GB"}) {
    subcluster s;
    s.name = device;
    s.device = *find_device(device);
    s.devices_per_node = 2;
    s.intra_node = s.inter_node = {5e-6, 100e9};
    hardware.subclusters.push_back(s);
  }
  hardware.links = {{0, 1, {50e-6, gbit_per_s(10)}}};
  const auto chain = make_chain(gpt({.layers = 12, .hidden = 1024, .heads = 16}));
  std::vector<double> rates;
  const auto plan_for = [&](const size_request& r) {
    analytic_options costs;
    costs.microbatch_size = r.microbatch_size;
    auto found = interop_dp(hardware, analytic_cost_model(hardware, chain, costs),
                            {.microbatches = r.microbatches, .microbatch_size = r.microbatch_size});
    rates.push_back(found ? found->predicted.samples_per_s : 0);
    return found;
  };
  const auto best = best_microbatch_size(64, plan_for);
  REQUIRE(best);
  REQUIRE(rates.size() >= 7);
  CHECK(best->predicted.samples_per_s == *std::max_element(rates.begin(), rates.end()));
  CHECK(sample_count(*best) == 64);
  // The largest does not win: 64 samples leave no pipeline.
  CHECK(rates.back() < best->predicted.samples_per_s);
}
