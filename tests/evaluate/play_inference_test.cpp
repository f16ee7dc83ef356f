// SPDX-License-Identifier: Apache-2.0
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/evaluate/play_inference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

/// One layer for each of some devices.
struct played_costs {
  std::vector<std::vector<double>> pieces{};  // by layer
  std::vector<double> token_s{};
  double moved_s = 0;
  int tokens = 1;

  [[nodiscard]] int layer_count() const { return static_cast<int>(token_s.size()); }
  static std::vector<placement> placements(const submesh& mesh) { return {{.mesh = mesh}}; }
  [[nodiscard]] double chunk_s(int c, layer_range r, const placement&) const {
    return pieces[static_cast<std::size_t>(r.first)][static_cast<std::size_t>(c)];
  }
  [[nodiscard]] double decoding_s(layer_range r, const placement&) const {
    return (tokens - 1) * token_s[static_cast<std::size_t>(r.first)];
  }
  [[nodiscard]] stage_cost stage(layer_range r, const placement& p) const {
    stage_cost c{.forward_s = decoding_s(r, p)};
    for (int n = 0; n < chunk_count(); ++n) c.forward_s += chunk_s(n, r, p);
    return c;
  }
  [[nodiscard]] transfer_cost transfer(int, const placement&, const placement&) const {
    return {(chunk_count() + tokens - 1) * moved_s, 0};
  }
  [[nodiscard]] int output_tokens() const { return tokens; }
  [[nodiscard]] int chunk_count() const { return static_cast<int>(pieces[0].size()); }
  [[nodiscard]] double chunk_transfer_s(int, int, const placement&, const placement&, proximity) const { return moved_s; }
  [[nodiscard]] double decoding_transfer_s(int, const placement&, const placement&, proximity) const {
    return (tokens - 1) * moved_s;
  }
};
static_assert(inference_costs<played_costs>);

/// Devices in a ring of links.
cluster devices_with(int count, double latency_s) {
  cluster c;
  for (int d = 0; d < count; ++d) {
    c.subclusters.push_back({.name = std::to_string(d), .device = catalogue_device("T4")});
    for (int other = 0; other < d; ++other)
      c.links.push_back({.a = other, .b = d, .link = {.latency_s = latency_s, .bandwidth = 1e30}});
  }
  return c;
}

inference_plan served_by(const cluster& hardware, const played_costs& costs, int in_flight) {
  inference_plan p{.objective = plan_objective::throughput, .in_flight = in_flight};
  for (int i = 0; i < costs.layer_count(); ++i) p.stages.push_back({.layers = {i, i + 1}, .devices = {{{i, 1, 1}, 0}}});
  return evaluate_inference(hardware, costs, p)->plan;
}

}  // namespace

TEST_CASE("a request that is alone takes what evaluate_inference says, and the ways back") {
  const played_costs costs{.pieces = {{3, 1}, {2, 5}, {1, 1}}, .token_s = {3, 2, 1}, .moved_s = 0.5, .tokens = 3};
  for (const double back_s : {0.0, 0.25}) {
    const auto hardware = devices_with(3, back_s);
    const auto p = served_by(hardware, costs, 1);
    const auto& told = *p.predicted;
    const auto played = play_inference(hardware, costs, p, 5);
    CHECK(played.first_token_s == doctest::Approx(told.first_token_s + back_s));
    CHECK(played.token_s == doctest::Approx(told.token_s + back_s));
    CHECK(played.requests_per_s == doctest::Approx(1 / (told.latency_s + 3 * back_s)));
  }
}

TEST_CASE("without a link from the last device to the first a token goes back as it came") {
  const played_costs costs{.pieces = {{1}, {1}, {1}}, .token_s = {1, 1, 1}, .tokens = 2};
  auto hardware = devices_with(3, 0.5);
  std::erase_if(hardware.links, [](const cross_link& l) { return l.a == 0 && l.b == 2; });
  CHECK(play_inference(hardware, costs, served_by(hardware, costs, 1), 3).token_s == doctest::Approx(3 + 1));
}

TEST_CASE("equal stages are all busy once as many requests are in flight; a single stage always is") {
  const played_costs costs{.pieces = {{2}, {2}, {2}, {2}}, .token_s = {2, 2, 2, 2}, .tokens = 7};
  const auto hardware = devices_with(4, 0);
  for (const int in_flight : {4, 8}) {
    const auto played = play_inference(hardware, costs, served_by(hardware, costs, in_flight), 20 * in_flight);
    CHECK(played.requests_per_s == doctest::Approx(1 / 14.0));
    CHECK(played.token_s == doctest::Approx(2 * in_flight));
  }
  const played_costs one{.pieces = {{5, 1}}, .token_s = {0.5}, .tokens = 5};
  const auto alone = devices_with(1, 0);
  CHECK(play_inference(alone, one, served_by(alone, one, 3), 300).requests_per_s == doctest::Approx(1 / 8.0).epsilon(0.01));
}

TEST_CASE(
    "no play is faster than evaluate_inference's bound, and with many in flight the slowest stages of both phases are busy") {
  random_source random(1318);
  for (int n = 0; n < 60; ++n) {
    CAPTURE(n);
    const int stages = random.integer(1, 4), pieces = random.integer(1, 3);
    played_costs costs{.moved_s = random.uniform(0, 1), .tokens = random.integer(1, 12)};
    for (int s = 0; s < stages; ++s) {
      costs.token_s.push_back(random.uniform(0.2, 2));
      auto& own = costs.pieces.emplace_back();
      for (int c = 0; c < pieces; ++c) own.push_back(random.uniform(0.5, 5));
    }
    // Requests that begin together are at their prompts together, and then at their tokens.
    double slowest_prompt_s = pieces * costs.moved_s, slowest_tokens_s = (costs.tokens - 1) * costs.moved_s;
    for (std::size_t s = 0; s < costs.token_s.size(); ++s) {
      slowest_prompt_s = std::max(slowest_prompt_s, std::accumulate(costs.pieces[s].begin(), costs.pieces[s].end(), 0.0));
      slowest_tokens_s = std::max(slowest_tokens_s, (costs.tokens - 1) * costs.token_s[s]);
    }
    const auto hardware = devices_with(stages, 0.1);
    for (const int in_flight : {1, 3, 40}) {
      CAPTURE(in_flight);
      const auto p = served_by(hardware, costs, in_flight);
      const auto played = play_inference(hardware, costs, p, 12 * in_flight);
      const double bound = p.predicted->requests_per_s;
      // A window of requests may begin and end anywhere between two ends.
      CHECK(played.requests_per_s <= bound * (1 + 1.0 / (8 * in_flight)));
      if (in_flight == 40) CHECK(played.requests_per_s >= 0.9 / (slowest_prompt_s + slowest_tokens_s));
      CHECK(played.first_token_s >= p.predicted->first_token_s * (1 - 1e-9));
      CHECK(played.token_s >= p.predicted->token_s * (1 - 1e-9));
    }
  }
}

TEST_CASE("as many requests as play in a moment: 20 times those in flight, and fewer of very long ones") {
  const auto alone = devices_with(1, 0);
  // Of requests that begin together the first ones have others in front of them, so that the times depend on how many there are.
  const auto same = [&](int tokens, int in_flight, int requests) {
    const played_costs costs{.pieces = {{5, 1}}, .token_s = {0.5}, .tokens = tokens};
    const auto p = served_by(alone, costs, in_flight);
    const auto moment = play_inference(alone, costs, p), told = play_inference(alone, costs, p, requests);
    CHECK(moment.first_token_s == told.first_token_s);
    CHECK(moment.token_s == told.token_s);
    CHECK(moment.first_token_s != play_inference(alone, costs, p, requests + 1).first_token_s);
  };
  same(5, 3, 60);
  same(100'000, 2, 8);  // a million steps, or nearly so
}

TEST_CASE("what cannot be played is refused") {
  const played_costs costs{.pieces = {{1}, {1}}, .token_s = {1, 1}, .tokens = 2};
  const auto hardware = devices_with(2, 0);
  auto p = served_by(hardware, costs, 2);
  CHECK_THROWS_AS((void)play_inference(hardware, costs, p, 5), input_error);
  auto without = p;
  without.boundaries.clear();
  CHECK_THROWS_AS((void)play_inference(hardware, costs, without, 6), input_error);
  without.stages.clear();
  CHECK_THROWS_AS((void)play_inference(hardware, costs, without, 6), input_error);
  p.in_flight = 0;
  CHECK_THROWS_AS((void)play_inference(hardware, costs, p), input_error);
}
