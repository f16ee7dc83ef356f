// SPDX-License-Identifier: Apache-2.0
#include "hostile_costs.hpp"

#include <hetsched/evaluate.hpp>
#include <hetsched/evaluate/breakdown.hpp>
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/evaluate/play_inference.hpp>
#include <hetsched/evaluate/robust.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/evaluate/state_shares.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// The costs of inference; one of the answers may be wrong.
struct hostile_inference : hostile_costs {
  int tokens = 4, chunks = 2;

  [[nodiscard]] double told(int question, double good) const { return wrong == question ? number : good; }
  [[nodiscard]] int output_tokens() const { return tokens; }
  [[nodiscard]] int chunk_count() const { return chunks; }
  [[nodiscard]] double chunk_s(int, layer_range, const placement&) const { return told(18, .5); }
  [[nodiscard]] double decoding_s(layer_range, const placement&) const { return told(19, .5); }
  [[nodiscard]] double chunk_transfer_s(int, int, const placement&, const placement&, proximity) const { return told(20, .1); }
  [[nodiscard]] double decoding_transfer_s(int, const placement&, const placement&, proximity) const { return told(21, .1); }
};
static_assert(inference_costs<hostile_inference>);

hostile_inference some_inference(random_source& r) {
  hostile_inference costs{some_costs(r)};
  if (one_in(r, 3)) costs.wrong = r.integer(18, 21), costs.number = some_double(r);
  if (one_in(r, 12)) costs.tokens = some_count(r);
  if (one_in(r, 12)) costs.chunks = some_count(r);
  return costs;
}

cluster hardware_of_two() {
  random_source r(1);
  return some_hardware(r);
}

/// A stage on a device of each subcluster; pipelines side by side.
plan some_plan(random_source& r, int most = 2) {
  plan p;
  const char* const names[] = {"exact_1f1b", "1f1b", "h1f1b", "gpipe", "zb_h1", "auto", "none"};
  const std::string name = one_of(r, names);
  for (int l = 0, lines = r.integer(1, most); l < lines; ++l) {
    p.pipelines.push_back({.microbatches = some_count(r), .microbatch_size = mostly(r, 1, 20), .schedule = {.name = name}});
    for (int i = 0; i < 2; ++i)
      p.pipelines.back().stages.push_back(
          {.layers = {2 * i, 2 * i + 2}, .devices = {{{i, 1, 1}, mostly(r, l, 30)}}, .zero = mostly(r, 0, 30)});
  }
  if (!one_in(r, 3)) return p;
  auto& line = one_of(r, p.pipelines);
  auto& s = one_of(r, line.stages);
  switch (r.integer(0, 9)) {
    case 0:
      s.layers = {some_int(r), some_int(r)};
      break;
    case 1:
      s.devices.clear();
      break;
    case 2:
      s.devices[0].mesh = {mostly(r, 0, 2), mostly(r, 1, 2), mostly(r, 1, 2)};
      break;
    case 3:
      s.degrees = {mostly(r, 1, 2), mostly(r, 1, 2), mostly(r, 1, 2), mostly(r, 1, 2)};
      break;
    case 4:
      s.warmup = some_int(r);
      break;
    case 5:
      line.stages.clear();
      break;
    case 6:
      s.shares.data = some_times(r, 1, 2);
      break;
    case 7:
      s.shares.state = some_times(r, 1, 2);
      break;
    case 8:
      line.boundaries = {{.forward_s = some_double(r), .forward_occupied_s = some_double(r)}};
      break;
    default:
      p.objective = static_cast<plan_objective>(r.integer(0, 3));
  }
  return p;
}

evaluate_options some_options(random_source& r) {
  return {.flops_per_sample = one_in(r, 25) ? some_double(r) : 1e9, .epsilon = one_in(r, 25) ? some_double(r) : .1};
}

/// What an evaluation may say.
void expect_evaluation(const outcome<evaluation>& found) {
  if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
  const auto& p = found->plan.predicted;
  expect_time(p.iteration_s);
  expect_time(p.mfu);
  expect(p.lower_bound_s <= p.iteration_s * (1 + 1e-9), "the bound is above the iteration");
}

/// The first pipeline of a plan, for inference.
inference_plan some_inference_plan(random_source& r) {
  const auto p = some_plan(r, 1);
  const auto& line = p.pipelines[0];
  return {.objective = static_cast<plan_objective>(r.integer(one_in(r, 12) ? 0 : 2, 3)),
          .in_flight = line.microbatches,
          .batch_size = line.microbatch_size,
          .stages = line.stages,
          .boundaries = line.boundaries};
}

void expect_evaluation(const outcome<inference_evaluation>& found) {
  if (!found) return expect(!found.why_not().reason.empty(), "there is no reason");
  expect_time(found->plan.predicted->latency_s);
}

/// An evaluation, or a plan that nobody has evaluated, or one that was changed since.
evaluation some_evaluation(random_source& r, const cluster& hardware, const hostile_costs& costs) {
  const auto p = some_plan(r);
  if (one_in(r, 6)) return {p, {}, {}};
  auto found = evaluate(hardware, costs, p);
  if (!found) return {p, {}, {}};
  auto e = *found;
  if (!one_in(r, 3)) return e;
  auto& line = e.plan.pipelines[0];
  switch (r.integer(0, 7)) {
    case 0:
      e.pipelines.clear();
      break;
    case 1:
      line.boundaries.clear();
      break;
    case 2:
      e.plan.gradient_sync.clear();
      break;
    case 3:
      line.copy_sync = {{.owner = some_int(r), .layer = some_int(r), .seconds = some_double(r)}};
      break;
    case 4:
      line.stages[0].update_s = some_double(r);
      break;
    case 5:
      line.stages[0].cost.forward_s = some_double(r);
      break;
    case 6:
      line.stages.pop_back();
      break;
    default:
      e.plan.pipelines.clear();
  }
  return e;
}

const std::vector<door> doors{
    {"evaluate",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       expect_evaluation(evaluate(hardware, some_costs(r), some_plan(r), some_options(r)));
     }},
    {"evaluate_inference",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       if (one_in(r, 4)) return expect_evaluation(evaluate_inference(hardware, some_costs(r), some_inference_plan(r)));
       expect_evaluation(evaluate_inference(hardware, some_inference(r), some_inference_plan(r)));
     }},
    {"play_inference",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_inference(r);
       auto p = some_inference_plan(r);
       if (!one_in(r, 4))
         if (auto found = evaluate_inference(hardware, costs, p)) p = found->plan;
       const auto seen = one_in(r, 8) ? play_inference(hardware, costs, p)
                                      : play_inference(hardware, costs, p, one_in(r, 6) ? some_count(r) : 20);
       expect_time(seen.first_token_s);
       expect_time(seen.requests_per_s);
     }},
    {"with_free_links", [](random_source& r) { (void)with_free_links(some_hardware(r)); }, false},
    {"break_down",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       const auto whole = some_evaluation(r, hardware, costs);
       const auto alone = one_in(r, 4) ? some_evaluation(r, hardware, costs) : whole;
       (void)break_down(hardware, whole, alone);
     }},
    {"iterations_under_jitter",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto e = some_evaluation(r, hardware, some_costs(r));
       for (const double s :
            iterations_under_jitter(e.plan, one_in(r, 6) ? some_double(r) : .1, one_in(r, 6) ? some_count(r) : 2))
         expect(s >= 0, "a time");
     }},
    {"most_robust_plan",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       std::vector<plan> plans;
       for (int i = r.integer(0, 2); i > 0; --i) plans.push_back(some_plan(r));
       const robust_options options{.share = one_in(r, 12) ? some_double(r) : .9,
                                    .spread = one_in(r, 12) ? some_double(r) : .1,
                                    .samples = one_in(r, 12) ? some_count(r) : 3,
                                    .how = some_options(r),
                                    .go_on = [](int n, double) { return n < 5; }};
       const auto found = most_robust_plan(
           hardware, [&](int) -> const hostile_costs& { return costs; }, plans, options);
       if (found) expect(found->quantile_s >= 0, "a time");
     }},
    {"speed_cases",
     [](random_source& r) {
       for (const auto& c : speed_cases(some_hardware(r), one_in(r, 3) ? some_double(r) : .2))
         for (const double f : c.speed) expect(f > 0 && f < 2, "a speed");
     }},
    {"least_regret_plan",
     [](random_source& r) {
       auto cases = speed_cases(hardware_of_two(), .2);
       if (one_in(r, 8)) cases.clear();
       if (one_in(r, 8) && !cases.empty()) cases.back().hardware = some_hardware(r);
       if (one_in(r, 8) && !cases.empty()) cases.back().speed = some_times(r, 2);
       const auto costs = some_costs(r);
       const auto on = [&](const cluster&) -> costs_by_size { return [&](int) -> const hostile_costs& { return costs; }; };
       std::vector<plan> plans;
       for (int i = r.integer(0, 2); i > 0; --i) plans.push_back(some_plan(r));
       const auto found = least_regret_plan(
           cases, on, plans, {.how = some_options(r), .moves = one_in(r, 3), .go_on = [](int n, double) { return n < 5; }});
       if (found) expect(found->worst_loss >= 0 && found->worst_loss <= found->fastest_loss, "losses");
     }},
    {"iteration_under",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto e = some_evaluation(r, hardware, some_costs(r));
       expect_time(iteration_under(e, static_cast<send_mode>(r.integer(0, one_in(r, 12) ? 4 : 2))));
     }},
    {"fastest_with_sends",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       std::vector<plan> plans;
       for (int i = r.integer(0, 2); i > 0; --i) plans.push_back(some_plan(r));
       const auto found = fastest_with_sends(hardware, [&](int) -> const hostile_costs& { return costs; }, plans,
                                             static_cast<send_mode>(r.integer(0, one_in(r, 12) ? 4 : 2)),
                                             {.how = some_options(r),
                                              .most_plans = one_in(r, 8) ? some_count(r) : 5,
                                              .go_on = [](int n, double) { return n < 5; }});
       if (found) expect(found->iteration_s >= 0, "a time");
     }},
    {"sends_under",
     [](random_source& r) {
       const auto found = sends_under(some_plan(r), static_cast<send_mode>(r.integer(0, one_in(r, 12) ? 4 : 2)));
       expect(found <= send_mode::blocking, "a way to send");
     }},
    {"with_state_by_room",
     [](random_source& r) {
       const auto hardware = some_hardware(r);
       const auto costs = some_costs(r);
       auto e = some_evaluation(r, hardware, costs);
       expect_evaluation(with_state_by_room(
           hardware, [&](int) -> const hostile_costs& { return costs; }, std::move(e), some_options(r)));
     }},
};

TEST_CASE("public functions of evaluate refuse what they cannot take") { knock(doors, 4'000); }

}  // namespace
