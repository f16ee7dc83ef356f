// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/measure/layer_time_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/planners/partition.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../training.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A layer that also sleeps: as long as that, it takes the same on a busy machine as on an idle one.
struct sleeping_layer {
  using tensor = matrix<double>;
  using inner = any_layer<tensor>;
  struct context {
    inner::context own;
  };
  inner layer;
  std::function<double()> forward_s;  ///< backwards sleep twice as long

  static void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  context make_context() { return {layer.make_context()}; }
  tensor forward(const tensor& x, context& c) {
    sleep(forward_s());
    return layer.forward(x, c.own);
  }
  tensor backward(const tensor& g, context& c) {
    sleep(2 * forward_s());
    return layer.backward(g, c.own);
  }
  auto parameters() { return layer.parameters(); }
  auto gradients() { return layer.gradients(); }
};

double played_s(const std::vector<int>& cuts, const std::vector<std::vector<double>>& seconds, int microbatches) {
  pipeline p;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    double all = 0;
    for (int l = cuts[s]; l < cuts[s + 1]; ++l) all += seconds[s][static_cast<std::size_t>(l)];
    p.forward_s.push_back(all / 3);
    p.backward_s.push_back(2 * all / 3);
  }
  p.transfer_s.assign(p.forward_s.size() - 1, 0);
  return simulate(p, build_schedule("1f1b", p, microbatches)).makespan_s;
}

}  // namespace

TEST_CASE("layers take what was measured where they are, and elsewhere what their rank's others make likely") {
  layer_time_table table({{1, 1, 2, 1}, {2, 2, 4, 2}}, {{2, 2, 4, 2}, {4, 4, 8, 4}});
  CHECK(table.seconds() == number_table({{3, 3, 6, 3}, {6, 6, 12, 6}}));
  // A rank that is slower as a whole is so for all layers; one layer that is does not make others so.
  table.measured(0, std::vector<layer_time>{{0, 2, 4}, {1, 2, 4}});
  table.measured(1, std::vector<layer_time>{{2, 12, 24}, {3, 2, 4}});
  CHECK(table.seconds() == number_table({{6, 6, 12, 6}, {6, 6, 36, 6}}));
  CHECK(table.of(1, 2) == layer_time{2, 12, 24});
  // What has left is remembered, beside what the rank takes now.
  table.measured(0, std::vector<layer_time>{{0, 1, 2}, {1, 1, 2}, {2, 2, 4}});
  table.measured(1, std::vector<layer_time>{{3, 2, 4}});
  CHECK(table.seconds() == number_table({{3, 3, 6, 3}, {6, 6, 36, 6}}));
  // A lone layer may be slow alone: the rank's others are thought so until one comes, itself for longer.
  table.measured(1, std::vector<layer_time>{{3, 6, 12}});
  CHECK(table.of(1, 1) == layer_time{1, 6, 12});
  table.measured(1, std::vector<layer_time>{{1, 2, 4}});
  CHECK(table.of(1, 1) == layer_time{1, 2, 4});
  CHECK(table.of(1, 3) == layer_time{3, 6, 12});
  CHECK(table.of(1, 0) == layer_time{0, 2, 4});

  CHECK_THROWS_AS(table.measured(2, {}), input_error);
  CHECK_THROWS_AS(table.measured(0, std::vector<layer_time>{{4, 1, 1}}), input_error);
  CHECK_THROWS_AS(table.measured(0, std::vector<layer_time>{{0, -1, 1}}), input_error);
  CHECK_THROWS_AS(layer_time_table({{1, 0}}, {{1, 1}}), input_error);
  CHECK_THROWS_AS(layer_time_table({{1, 1}}, number_table{1}), input_error);
  CHECK_THROWS_AS(layer_time_table({}, {}), input_error);
}

TEST_CASE("[threads] a layer gets slower by two on one rank: within ten steps layers are where a new plan puts them") {
  using tensor = matrix<double>;
  constexpr int ranks = 3, microbatches = 6, every = 5, drift = 6, steps = drift + 2 * every;
  const toy<double> t{.layers = 12, .seed = 51};
  const sgd usual{.learning_rate = 0.05, .momentum = 0.9};
  const auto first = even_layout(t.layers, schedule_of("1f1b", ranks, microbatches));
  // Layers 4 to 7 are rank 1's; one is twice as large as the others.
  constexpr double usual_s = 1e-3;
  const auto seconds_of = [&](int rank, int layer, std::int64_t step) {
    return (layer == 5 ? 2 : 1) * (rank == 1 && layer == 5 && step >= drift ? 2 : 1) * usual_s;
  };
  std::vector<std::vector<double>> expected, now;
  for (int r = 0; r < ranks; ++r) {
    expected.emplace_back();
    now.emplace_back();
    for (int l = 0; l < t.layers; ++l) {
      expected.back().push_back(seconds_of(r, l, 0));
      now.back().push_back(3 * seconds_of(r, l, drift));
    }
  }
  double best_s = std::numeric_limits<double>::infinity();  // of all cuts
  for (int a = 1; a < t.layers - 1; ++a)
    for (int b = a + 1; b < t.layers; ++b) best_s = std::min(best_s, played_s({0, a, b, t.layers}, now, microbatches));

  const std::vector<int> even{0, 4, 8, 12};
  std::vector<std::vector<double>> losses(ranks);
  std::vector<std::vector<int>> cuts(ranks);
  std::vector<int> moves(ranks, 0);
  hetsched::run_on_threads(toy_communicator<double>::connect(ranks), [&](toy_communicator<double>& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    std::int64_t step = 0;
    const auto make = [&](int l) {
      return any_layer<tensor>(sleeping_layer{t.make(l), [&, l] { return seconds_of(comm.rank(), l, step); }});
    };
    const auto shape = [](int, int rows) { return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width}; };
    toy_trainer<double, sgd> trainer(first, make, shape, comm, usual);
    auto backward = expected;
    for (auto& of_rank : backward)
      for (auto& s : of_rank) s *= 2;
    layer_time_table table(number_table{expected}, number_table{backward});
    cuts[me] = even;
    std::map<int, std::pair<std::vector<double>, std::vector<double>>> took;
    for (; step < steps; step = trainer.committed_step()) {
      losses[me].push_back(one_step(t, trainer, comm.rank()).loss);
      for (const auto& l : trainer.layer_times()) {
        took[l.layer].first.push_back(l.forward_s);
        took[l.layer].second.push_back(l.backward_s);
      }
      if (trainer.committed_step() % every != 1) continue;
      std::vector<double> mine;
      for (auto& [layer, times] : took)
        // The least of the steps: beside other work of the machine most of them may take longer.
        for (const double x : {double(layer), std::ranges::min(times.first), std::ranges::min(times.second)}) mine.push_back(x);
      took.clear();
      std::vector<std::vector<double>> all;
      REQUIRE(comm.gather(mine, all, deadline_in(30)) == wait_result::progress);
      for (int r = 0; r < ranks; ++r) {
        std::vector<layer_time> told;
        const auto& numbers = all[static_cast<std::size_t>(r)];
        for (std::size_t i = 0; i < numbers.size(); i += 3)
          told.push_back({static_cast<int>(numbers[i]), numbers[i + 1], numbers[i + 2]});
        table.measured(r, told);
      }
      const auto next = partition(
          {.seconds = table.seconds(), .devices = std::vector<int>(ranks, 1), .microbatches = microbatches, .in_order = true});
      REQUIRE(next);
      const auto believed = [&](const std::vector<int>& c) {
        const auto seconds = table.seconds();
        std::vector<std::vector<double>> rows;
        for (int r = 0; r < ranks; ++r) rows.emplace_back(seconds[r].begin(), seconds[r].end());
        return played_s(c, rows, microbatches);
      };
      if (believed(next->cuts) > 0.95 * believed(cuts[me])) continue;
      cuts[me] = next->cuts;
      ++moves[me];
      auto layout = trainer.layout();
      for (std::size_t s = 0; s < ranks; ++s) layout.pipelines[0].stages[s].layers = {cuts[me][s], cuts[me][s + 1]};
      trainer.move_layers(layout, make, shape);
    }
  });
  CHECK(moves[0] > 0);
  CHECK(played_s(even, now, microbatches) > 1.15 * best_s);
  for (std::size_t r = 0; r < ranks; ++r) {
    CHECK(cuts[r] == cuts[0]);
    CHECK(losses[r] == losses[0]);
  }
  CAPTURE(cuts[0]);
  CHECK(played_s(cuts[0], now, microbatches) <= 1.1 * best_s);
  // Nobody has to know that layers moved: a pipeline of one direction has the same bits under any cuts.
  CHECK(losses[0] == train(t, first, steps, usual).losses);
}
