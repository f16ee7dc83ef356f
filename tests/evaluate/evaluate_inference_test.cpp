// SPDX-License-Identifier: Apache-2.0
#include <hetsched/evaluate/evaluate_inference.hpp>

#include <doctest/doctest.h>

#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/evaluate/evaluate.hpp>

using namespace hetsched;

namespace {

cluster three_devices() {
  cluster c;
  for (const char* name : {"a", "b", "c"}) c.subclusters.push_back({name, catalogue_device("T4"), 1, 1, {}, {}});
  connect(c, "a", "b", {1, 1});
  connect(c, "b", "c", {1, 1});
  return c;
}

/// Three layers with times of their own, and pieces of a prompt.
struct made_up {
  std::vector<std::vector<double>> chunks{{3, 1}, {2, 5}, {1, 1}};  // by layer
  std::vector<double> decoding{6, 4, 2};
  double moved = 0.5, moved_later = 0.25;

  static int layer_count() { return 3; }
  static std::vector<placement> placements(const submesh& mesh) { return {{.mesh = mesh}}; }
  [[nodiscard]] stage_cost stage(layer_range r, const placement& p) const {
    return {.forward_s = chunk_s(0, r, p) + chunk_s(1, r, p) + decoding_s(r, p),
            .weight_bytes = r.size() * gib,
            .activation_bytes = r.size() * gib / 4};
  }
  [[nodiscard]] transfer_cost transfer(int, const placement& a, const placement& b) const {
    if (a.mesh.subcluster + b.mesh.subcluster == 2) return {1e301};  // no link from a to c
    return {2 * moved + moved_later, 0};
  }
  static int output_tokens() { return 3; }
  static int chunk_count() { return 2; }
  [[nodiscard]] double chunk_s(int c, layer_range r, const placement&) const {
    double sum = 0;
    for (int l = r.first; l < r.last; ++l) sum += chunks[static_cast<std::size_t>(l)][static_cast<std::size_t>(c)];
    return sum;
  }
  [[nodiscard]] double decoding_s(layer_range r, const placement&) const {
    double sum = 0;
    for (int l = r.first; l < r.last; ++l) sum += decoding[static_cast<std::size_t>(l)];
    return sum;
  }
  [[nodiscard]] double chunk_transfer_s(int, int, const placement&, const placement&, proximity) const { return moved; }
  [[nodiscard]] double decoding_transfer_s(int, const placement&, const placement&, proximity) const { return moved_later; }
};
static_assert(inference_costs<made_up>);

inference_plan on(std::vector<int> subclusters, int in_flight) {
  inference_plan p{.in_flight = in_flight, .batch_size = 2};
  for (int i = 0; i < 3; ++i)
    p.stages.push_back({.layers = {i, i + 1}, .devices = {{{subclusters[static_cast<std::size_t>(i)], 1, 1}, 0}}});
  return p;
}

}  // namespace

TEST_CASE("inference plan: pieces of the prompt follow each other, tokens do not") {
  const auto judged = evaluate_inference(three_devices(), made_up{}, on({0, 1, 2}, 1));
  REQUIRE(judged);
  REQUIRE(judged->plan.predicted);
  const auto& served = *judged->plan.predicted;
  // Ends on a: 3, 4; on the link: 3.5, 4.5; on b: 5.5, 10.5; on the link: 6, 11; on c: 7, 12.
  CHECK(served.first_token_s == 12);
  CHECK(served.latency_s == 12 + 12 + 2 * 0.25);
  CHECK(served.token_s == 12.5 / 2);
  // One batch at a time: two requests in 24.5 s, of three tokens each.
  CHECK(served.requests_per_s == doctest::Approx(2 / 24.5));
  CHECK(served.tokens_per_s == doctest::Approx(6 / 24.5));
  CHECK(judged->shortage.empty());
}

TEST_CASE("inference plan: with enough in flight the slowest stage decides") {
  const auto served = *evaluate_inference(three_devices(), made_up{}, on({0, 1, 2}, 8))->plan.predicted;
  CHECK(served.latency_s == 24.5);
  CHECK(served.requests_per_s == doctest::Approx(2 / 11.0));
}

TEST_CASE("inference plan: every batch in flight has its cache on every device") {
  const auto four = evaluate_inference(three_devices(), made_up{}, on({0, 1, 2}, 4));
  CHECK(four->plan.stages[1].memory_bytes == 2 * gib);
  const auto many = evaluate_inference(three_devices(), made_up{}, on({0, 1, 2}, 61));
  REQUIRE(many);
  INFO(many->shortage);
  CHECK(many->shortage.find("stage 0 needs 16.25 GiB") == 0);
}

TEST_CASE("inference plan: no link is a refusal; what is of training, counts of none and evaluate are errors") {
  const auto judged = evaluate_inference(three_devices(), made_up{}, on({0, 2, 1}, 1));
  CHECK_FALSE(judged);
  for (const auto& change : std::vector<void (*)(inference_plan&)>{
           [](inference_plan& p) { p.objective = plan_objective::cost; }, [](inference_plan& p) { p.in_flight = 0; },
           [](inference_plan& p) { p.batch_size = 0; }, [](inference_plan& p) { p.stages.pop_back(); }}) {
    auto wrong = on({0, 1, 2}, 1);
    change(wrong);
    CHECK_THROWS_AS(static_cast<void>(evaluate_inference(three_devices(), made_up{}, wrong)), input_error);
  }
  plan trained;
  trained.pipelines.push_back(forward_pipeline(on({0, 1, 2}, 1)));
  CHECK_THROWS_AS(static_cast<void>(evaluate(three_devices(), made_up{}, trained)), input_error);
  trained.pipelines[0].schedule.name = "1f1b";
  CHECK(evaluate(three_devices(), made_up{}, trained));
  trained.objective = plan_objective::latency;
  CHECK_THROWS_WITH_AS(static_cast<void>(evaluate(three_devices(), made_up{}, trained)),
                       "a plan with the objective latency is for inference: it has no iteration", input_error);
}

TEST_CASE("inference plan: worth less the longer a request takes, or the fewer there are; as a pipeline it has forwards") {
  auto p = on({0, 1, 2}, 4);
  CHECK_THROWS_AS(static_cast<void>(objective_of(p)), input_error);
  p.predicted = inference_prediction{.latency_s = 3, .requests_per_s = 4};
  CHECK(objective_of(p) == 3);
  p.objective = plan_objective::throughput;
  CHECK(objective_of(p) == 0.25);
  p.predicted->requests_per_s = 0;
  CHECK_THROWS_AS(static_cast<void>(objective_of(p)), input_error);
  const auto line = forward_pipeline(p);
  CHECK(line.microbatches == 4);
  CHECK(line.microbatch_size == 2);
  CHECK(line.stages == p.stages);
  CHECK(line.schedule.name == "forward");
}
