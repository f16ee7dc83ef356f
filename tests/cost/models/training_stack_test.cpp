// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/training_stack.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

TEST_CASE("named stacks: what is published of their bytes a parameter") {
  CHECK(training_stacks().front() == training_stack{});
  for (const auto& s : training_stacks()) {
    CHECK_NOTHROW(validate(s));
    CHECK(find_training_stack(s.name) == s);
    CHECK(state_bytes(1, {}, 0, memory_in(s, precision::bf16, 4)) == 16);
  }
  CHECK_FALSE(find_training_stack("Megatron"));
  const std::int64_t million = 1'000'000;
  const auto bytes = [&](const char* name, precision p, int data, int zero) {
    return state_bytes(million, {.data = data}, zero, memory_in(*find_training_stack(name), p, 2)) / million;
  };
  // This library's own: 16 bytes.
  CHECK(bytes("hetsched", precision::bf16, 1, 0) == 16);
  // Megatron-LM's documentation of its distributed optimizer: 18 and 6 + 12 / d in bf16, 20 and 4 + 16 / d in fp16.
  CHECK(bytes("megatron", precision::bf16, 1, 0) == 18);
  CHECK(bytes("megatron", precision::bf16, 4, 1) == 6 + 3);
  CHECK(bytes("megatron", precision::fp16, 1, 0) == 20);
  CHECK(bytes("megatron", precision::fp16, 4, 1) == 4 + 4);
  // Fully sharded data parallelism keeps weights, gradients and two moments in fp32, and nothing else.
  for (const char* name : {"fsdp", "torchtitan"}) CHECK(bytes(name, precision::bf16, 8, 3) == 16 / 8);
}

TEST_CASE("a stack that makes no sense is refused") {
  CHECK_THROWS_AS(validate(training_stack{.name = ""}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.fp16 = {.working_bytes = -1}}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.activations = {.selective_kept = 1.5}}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.overheads = {.margin = -1}}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.host_launch_s = std::numeric_limits<double>::infinity()}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.update_bandwidth = 0}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.update_bandwidth = 1.5}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.gather_overlap = 1.01}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.reduction_overlap = -0.1}), input_error);
  CHECK_THROWS_AS(validate(training_stack{.sends = send_mode{3}}), input_error);
}

namespace {

// What a device of one stage holds, as plans have it.
bytes_t held(const char* gpu, const layer_chain& chain, const char* stack, precision computed, int samples,
             const placement& where) {
  const cluster hardware{.subclusters = {{.name = "all",
                                          .device = catalogue_device(gpu),
                                          .nodes = where.mesh.nodes,
                                          .devices_per_node = where.mesh.devices_per_node,
                                          .intra_node = {5e-6, 3e11},
                                          .inter_node = {1e-5, 2e11}}}};
  const auto costs = training_costs(hardware, chain,
                                    {.precision = computed, .stack = *find_training_stack(stack)})(samples * where.degrees.data);
  return memory_of(costs.stage({0, chain.size()}, where), costs.overheads(where), 1).total();
}

placement sharded(int gpus, int tensor, recomputation mode, int zero) {
  return {.mesh = {0, std::max(1, gpus / 8), 8},
          .degrees = {.data = gpus / tensor, .tensor = tensor},
          .recompute = mode,
          .zero = zero};
}

}  // namespace

TEST_CASE("what ran fits: of 172 runs of MPT under FSDP at most one in twenty is refused") {
  const std::map<std::string, std::array<int, 3>> sizes{
      {"125m", {12, 768, 12}}, {"350m", {24, 1024, 16}}, {"760m", {24, 1536, 12}}, {"1b", {24, 2048, 16}}, {"3b", {32, 2560, 20}},
      {"7b", {32, 4096, 32}},  {"13b", {40, 5120, 40}},  {"30b", {48, 7168, 56}},  {"70b", {80, 8192, 64}}};
  std::ifstream file(std::string(HETSCHED_SOURCE_DIR) + "/tests/data/mpt_iterations.csv");
  REQUIRE(file);
  std::string line;
  std::getline(file, line);
  int runs = 0, refused = 0, refused_elsewhere = 0;
  while (std::getline(file, line)) {
    std::vector<std::string> cell;
    std::stringstream cells(line);
    for (std::string text; std::getline(cells, text, ',');) cell.push_back(text);
    if (cell.at(6) == "amp_fp8") continue;
    const auto number = [&](std::size_t i) { return std::stoi(cell.at(i)); };
    const auto& [layers, hidden, heads] = sizes.at(cell.at(1));
    auto model = gpt({.layers = layers, .hidden = hidden, .heads = heads, .vocab = 50368, .sequence = number(2)});
    model.dropout = false;
    const auto where =
        sharded(number(3), 1, number(8) != 0 ? recomputation::full : recomputation::none, cell.at(7) == "FULL_SHARD" ? 3 : 2);
    const auto fits = [&](const char* stack) {
      return held(cell.at(0).c_str(), make_chain(model), stack, precision::bf16, number(4), where) <=
             catalogue_device(cell.at(0)).memory_bytes;
    };
    ++runs;
    refused += !fits("fsdp");
    refused_elsewhere += !fits("hetsched");
  }
  CHECK(runs == 172);
  CHECK(20 * refused <= runs);
  CHECK(3 * refused_elsewhere > runs);
}

// pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 4: peaks of PyTorch's allocator, in GiB.
TEST_CASE("published peaks of torchtitan: never under by more than 3 %, and at most 6 % over") {
  const auto model = [](int layers, int hidden, int heads, int inner, int sequence) {
    return make_chain(llama({.layers = layers,
                             .hidden = hidden,
                             .heads = heads,
                             .kv_heads = 8,
                             .ffn_hidden = inner,
                             .vocab = 128256,
                             .sequence = sequence}));
  };
  using enum recomputation;
  struct row {
    int gpus, tensor, samples, sequence;
    recomputation mode;
    double gib;
  };
  for (const row& r : {row{8, 1, 2, 8192, selective, 82.4},
                       {128, 1, 2, 8192, selective, 67.0},
                       {8, 1, 1, 32768, full, 83.9},
                       {256, 8, 16, 8192, full, 71.9}}) {
    const auto chain = r.tensor > 1 ? model(80, 8192, 64, 28672, r.sequence) : model(32, 4096, 32, 14336, r.sequence);
    const auto bytes =
        held("H100-SXM5-80GB", chain, "torchtitan", precision::bf16, r.samples, sharded(r.gpus, r.tensor, r.mode, 3));
    const double ratio = static_cast<double>(bytes) / (r.gib * static_cast<double>(gib));
    CAPTURE(r.gib);
    CHECK(ratio > 0.97);
    CHECK(ratio < 1.06);
  }
}
