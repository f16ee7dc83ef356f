// SPDX-License-Identifier: Apache-2.0
// Published iterations of Megatron-LM against the library's costs and schedules, with nothing fitted to them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;

namespace {

struct iteration {
  std::string table{};
  int layers = 0, hidden = 0, heads = 0, tensor = 0, pipeline = 0, data = 0, microbatches = 0, microbatch = 0, chunks = 0;
  bool selective = false;  // and sequence parallel; else full recomputation
  double measured_s = 0;
};

std::vector<iteration> published_iterations() {
  std::ifstream file(HETSCHED_SOURCE_DIR "/tests/data/megatron.csv");
  REQUIRE(file);
  std::vector<iteration> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    auto& r = rows.emplace_back();
    std::getline(std::stringstream(line), r.table, ',');
    std::stringstream cells(line.substr(r.table.size() + 1));
    char comma = 0;
    for (int* cell : {&r.layers, &r.hidden, &r.heads, &r.tensor, &r.pipeline, &r.data, &r.microbatches, &r.microbatch, &r.chunks})
      cells >> *cell >> comma;
    cells >> r.selective >> comma >> r.measured_s;
    REQUIRE(cells);
  }
  return rows;
}

// DGX A100s: NVLink as NCCL's rings use it, eight ports of 200 Gbit/s.
double predicted_s(const iteration& r) {
  const cluster selene{.subclusters = {{.name = "selene",
                                        .device = catalogue_device("A100-SXM4-80GB"),
                                        .nodes = std::max(2, r.data * r.tensor / 8),
                                        .devices_per_node = 8,
                                        .intra_node = {10e-6, 223e9},
                                        .inter_node = {5e-6, 180e9}}}};
  tile_cost_options options;
  options.microbatch_size = r.microbatch;
  options.recompute = {r.selective ? recomputation::selective : recomputation::full};
  options.max_data = 1;
  const auto model =
      make_tile_cost(selene, gpt({.layers = r.layers, .hidden = r.hidden, .heads = r.heads, .vocab = 51200, .sequence = 2048}),
                     options, {.sequence_parallel = r.selective});
  const placement one{{0, 1, r.tensor}, {1, 1, r.tensor}, options.recompute.front()};
  const int ranks = r.data * r.tensor;
  const placement all{{0, ranks < 8 ? 1 : ranks / 8, ranks < 8 ? ranks : 8}, {r.data, 1, r.tensor}, options.recompute.front()};
  pipeline stages;
  double update_s = 0;
  for (int i = 0; i < r.pipeline; ++i) {
    const auto edge = [&](int stage) {
      return stage == 0 ? 0 : stage == r.pipeline ? model.layer_count() : 1 + stage * r.layers / r.pipeline;
    };
    const layer_range layers{edge(i), edge(i + 1)};
    const auto cost = model.stage(layers, one);
    stages.forward_s.push_back(cost.forward_s);
    stages.backward_s.push_back(cost.backward_s);
    if (i > 0) stages.transfer_s.push_back(model.transfer(layers.first - 1, one, one).forward_s);
    update_s = std::max(update_s, model.update(layers, all));
  }
  const auto order = interleaved_1f1b(r.pipeline, r.chunks, r.microbatches);
  return simulate(stages, order, {.timeline = false}).makespan_s + update_s;
}

}  // namespace

TEST_CASE("iterations of Megatron-LM are predicted without having been fitted") {
  const auto rows = published_iterations();
  REQUIRE(rows.size() == 10);
  std::vector<double> ratio;
  double sum = 0;
  for (const auto& r : rows) {
    ratio.push_back(predicted_s(r) / r.measured_s);
    sum += std::abs(ratio.back() - 1);
    CAPTURE(r.table);
    CAPTURE(r.hidden);
    CAPTURE(r.data);
    CAPTURE(r.selective);
    CHECK(std::abs(ratio.back() - 1) < 0.12);
  }
  CHECK(sum / 10 < 0.06);

  // Whatever the devices' speed: large models and small ones alike, four times the replicas for the same batch (Table 2), and
  // selective recomputation in place of full (Table 5).
  const auto [least, most] = std::minmax_element(ratio.begin(), ratio.end());
  CHECK(*most / *least < 1.17);
  CHECK(std::abs(ratio[5] / ratio[4] - 1) < 0.03);
  CHECK(std::abs(ratio[9] / ratio[8] - 1) < 0.04);
}
