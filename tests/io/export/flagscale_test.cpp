// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/export/flagscale.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace flagscale_rules {

/// What of a configuration its heterogeneous training reads.
struct arguments {
  std::vector<int> meshes, split;  ///< tensor, context, expert, data, pipeline of each mesh; blocks of each stage
  std::vector<std::string> types;
  int pipeline = 0, layers = 0, micro_batch = 0, global_batch = 0;
  bool untied = false, distributed_optimizer = false, partial_reduce = false;
};

std::vector<std::string> items(const std::string& list) {
  std::vector<std::string> all;
  std::string word;
  for (const char c : list)
    if (c == ',' || c == ']') {
      if (!word.empty()) all.push_back(word);
      word.clear();
    } else if (c != '[' && c != ' ' && c != '"') {
      word += c;
    }
  return all;
}

std::vector<int> numbers(const std::string& list) {
  std::vector<int> all;
  for (const auto& item : items(list)) all.push_back(std::stoi(item));
  return all;
}

/// Reads the lines "key: value" of a YAML; keys are used once in what is read here.
arguments read(std::string_view yaml) {
  std::map<std::string, std::string> values;
  std::istringstream lines{std::string(yaml)};
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(": ");
    if (colon != line.npos)
      values[line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' '))] = line.substr(colon + 2);
  }
  const auto number = [&](const char* key) { return values.count(key) ? std::stoi(values[key]) : 0; };
  return {.meshes = numbers(values["hetero_process_meshes"]),
          .split = numbers(values["hetero_pipeline_layer_split"]),
          .types = items(values["hetero_device_types"]),
          .pipeline = number("pipeline_model_parallel_size"),
          .layers = number("num_layers"),
          .micro_batch = number("micro_batch_size"),
          .global_batch = number("global_batch_size"),
          .untied = values["untie_embeddings_and_output_weights"] == "True",
          .distributed_optimizer = values["use_distributed_optimizer"] == "True",
          .partial_reduce = values["use_partial_reduce_for_shared_embedding"] == "True"};
}

/// The mesh m of the arguments: tensor, context, expert, data, pipeline.
std::vector<int> mesh(const arguments& a, std::size_t m) {
  return {a.meshes.begin() + static_cast<std::ptrdiff_t>(5 * m), a.meshes.begin() + static_cast<std::ptrdiff_t>(5 * m + 5)};
}

/// What pre_validate_args and ParallelContext assert; empty if all holds.
std::string wrong(const arguments& a) {
  if (a.meshes.empty() || a.meshes.size() % 5 != 0) return "meshes are not fives";
  const auto count = a.meshes.size() / 5;
  const auto first = mesh(a, 0), last = mesh(a, count - 1);
  int pipeline = 0;
  for (std::size_t m = 0; m < count; ++m) {
    const auto one = mesh(a, m);
    if (first[3] * a.micro_batch % one[3] != 0) return "samples";
    if (one[1] != 1) return "context";
    pipeline += one[4];
  }
  if (pipeline != a.pipeline) return "pipeline";
  if (!a.untied && first[0] != last[0]) return "tied weights on different tensor degrees";
  if (!a.untied && first[3] != last[3] && a.distributed_optimizer &&
      ((first[3] % last[3] != 0 && last[3] % first[3] != 0) || !a.partial_reduce))
    return "tied weights on different data degrees";
  if (std::accumulate(a.split.begin(), a.split.end(), 0) != a.layers) return "layers";
  if (a.split.size() != static_cast<std::size_t>(a.pipeline)) return "stages";
  if (a.types.size() != count) return "types";
  return "";
}

/// Lines of a hosts.txt, as parse_hostfile has them.
struct host {
  std::string name, type;
  int slots = 0;
};
std::vector<host> hosts(std::string_view text) {
  std::vector<host> all;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.front() == '#') continue;
    std::istringstream words(line);
    host h;
    std::string slots, type;
    words >> h.name >> slots >> type;
    h.slots = std::stoi(slots.substr(6));
    h.type = type.substr(5);
    for (const auto& other : all) CHECK(other.name != h.name);  // it refuses a host twice
    all.push_back(h);
  }
  return all;
}

/// Where RankMapper and ProcessMesh put each rank: sorted by the first mesh of its host's type, then by rank; then tensor ranks
/// next to each other, data, stages. Gives, by logical rank, the physical one and the place.
struct place {
  int physical = 0, stage = 0, data = 0, tensor = 0;
};
std::vector<place> places(const arguments& a, const std::vector<host>& machines) {
  std::vector<std::string> type_of;
  for (const auto& h : machines) type_of.insert(type_of.end(), static_cast<std::size_t>(h.slots), h.type);
  std::vector<int> sorted(type_of.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto index = [&](int rank) {
    return std::find(a.types.begin(), a.types.end(), type_of[static_cast<std::size_t>(rank)]) - a.types.begin();
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](int x, int y) { return index(x) < index(y); });
  std::vector<place> all;
  int stage = 0;
  for (std::size_t m = 0; m < a.meshes.size() / 5; ++m) {
    const auto one = mesh(a, m);
    for (int p = 0; p < one[4]; ++p, ++stage)
      for (int d = 0; d < one[3]; ++d)
        for (int t = 0; t < one[0]; ++t) {
          REQUIRE(all.size() < sorted.size());
          CHECK(type_of[static_cast<std::size_t>(sorted[all.size()])] == a.types[m]);
          all.push_back({sorted[all.size()], stage, d, t});
        }
  }
  CHECK(all.size() == sorted.size());
  return all;
}

/// Checks that what is exported, read back, is the plan.
void expect_same(const placed_plan& placed, const plan_export& made) {
  const auto read_back = read(made.text("flagscale.yaml"));
  CHECK(wrong(read_back) == "");
  const auto blocks = blocks_of_stages(placed);
  REQUIRE(read_back.split.size() == blocks.size());
  for (std::size_t s = 0; s < blocks.size(); ++s) CHECK(read_back.split[s] == blocks[s].last - blocks[s].first);
  const auto found = places(read_back, hosts(made.text("hosts.txt")));
  REQUIRE(found.size() == placed.ranks.size());
  for (std::size_t r = 0; r < found.size(); ++r) {
    CHECK(found[r].physical == static_cast<int>(r));
    CHECK(found[r].stage == placed.ranks[r].pipeline_rank);
    CHECK(found[r].data == placed.ranks[r].data);
    CHECK(found[r].tensor == placed.ranks[r].tensor);
  }
  // The first mesh feeds data: its replicas' samples are a microbatch.
  const int data = placed.line().stages.front().degrees.data;
  CHECK(read_back.micro_batch * data == placed.line().microbatch_size);
  CHECK(read_back.global_batch / (read_back.micro_batch * data) == placed.line().microbatches);
}

}  // namespace flagscale_rules

TEST_CASE("the reader of these tests takes FlagScale's own examples") {
  using flagscale_rules::arguments;
  const auto three = flagscale_rules::read(  // examples/aquila/conf/train/hetero.yaml
      "  pipeline_model_parallel_size: 3\n    hetero_pipeline_layer_split: [6, 2, 4]\n"
      "    hetero_process_meshes: [2, 1, 1, 1, 1, 4, 1, 1, 1, 1, 2, 1, 1, 1, 1]\n"
      "    hetero_device_types: [\"A800\", \"A800\", \"A800\"]\n  num_layers: 12\n  global_batch_size: 32\n  micro_batch_size: "
      "1\n"
      "  untie_embeddings_and_output_weights: True\n");
  CHECK(flagscale_rules::wrong(three) == "");
  CHECK(flagscale_rules::places(three, {{"h", "A800", 8}}).back().stage == 2);
  arguments two{.meshes = {2, 1, 1, 4, 1, 4, 1, 1, 2, 1},  // examples/llama3/conf/train/8b_hetero.yaml
                .split = {18, 14},
                .types = {"A800", "A100"},
                .pipeline = 2,
                .layers = 32,
                .micro_batch = 1,
                .global_batch = 16,
                .untied = true};
  CHECK(flagscale_rules::wrong(two) == "");
  two.untied = false;
  CHECK(flagscale_rules::wrong(two) != "");
  two.untied = true;
  two.split = {18, 13};
  CHECK(flagscale_rules::wrong(two) == "layers");
}

TEST_CASE("degrees, layers and devices of each stage: what is exported, read back, is the plan") {
  const auto hosts = hosts_of_two_sizes();
  for (const auto& file : {plan_of({{.end = 5, .degrees = {.data = 4, .tensor = 2}},
                                    {.end = 12, .first_device = 8, .degrees = {.data = 4, .tensor = 2}},
                                    {.end = 18, .subcluster = 1, .degrees = {.data = 2, .tensor = 4}}}),
                           plan_of({{.end = 5, .subcluster = 1, .degrees = {.tensor = 4}},
                                    {.end = 12, .degrees = {.data = 2, .tensor = 4}},
                                    {.end = 18, .subcluster = 1, .first_device = 4, .degrees = {.data = 4}}}),
                           plan_of({{.end = 3, .degrees = {.data = 2}},
                                    {.end = 9, .first_device = 2, .degrees = {.data = 2}},
                                    {.end = 18, .first_device = 4, .degrees = {.data = 4}}})}) {
    auto same = file;
    same.plan.setting.precision = "fp16";
    const auto placed = place_plan(same, "FlagScale", hosts);
    flagscale_rules::expect_same(placed, export_flagscale(placed));
  }
}

TEST_CASE("types: ranks that come back to a subcluster are of another type") {
  const auto placed = place_plan(plan_of({{.end = 6, .subcluster = 1, .degrees = {.tensor = 4}},
                                          {.end = 12, .degrees = {.tensor = 4}},
                                          {.end = 18, .subcluster = 1, .first_device = 4, .degrees = {.tensor = 4}}}),
                                 "FlagScale", hosts_of_two_sizes());
  const auto starts = starts_of(placed);
  const auto types = flagscale_types(starts);
  CHECK(types == std::vector<std::string>{"v", "a", "v.2"});
  const auto meshes = flagscale_meshes(placed, starts, types);
  REQUIRE(meshes.size() == 3);
  CHECK(meshes[2] == flagscale_mesh{.degrees = {.tensor = 4}, .stages = 1, .type = "v.2"});
}

TEST_CASE("recomputation stage by stage, ZeRO, NCCL and devices that are seen") {
  auto file = plan_of({{.end = 9, .first_device = 2, .degrees = {.data = 2}, .recompute = recomputation::full, .zero = 1},
                       {.end = 18, .first_device = 8, .degrees = {.data = 2}, .zero = 1}});
  file.plan.pipelines.front().microbatches = 32;
  auto hosts = hosts_of_two_sizes();
  hosts.subclusters[0].inter_node_path.nccl = false;
  const auto text = std::string(export_flagscale(place_plan(file, "FlagScale", hosts)).text("flagscale.yaml"));
  CHECK(has(text, "      recompute_granularity_per_stage_micro_batch:\n        - [1, 32, 1]\n        - [1, 32, 0]\n"));
  CHECK(has(text, "      recompute_granularity: \"full\"\n"));
  CHECK(has(text, "    use_distributed_optimizer: True\n"));
  CHECK(has(text, "      hetero_use_cpu_communication: True\n"));
  CHECK(has(text, "      a-0:\n        CUDA_VISIBLE_DEVICES: \"2,3\"\n      a-1:\n        CUDA_VISIBLE_DEVICES: \"0,1\"\n"));
  CHECK(has(text, "      bf16: True\n"));
  for (auto& s : file.plan.pipelines.front().stages) s.recompute = recomputation::selective;
  const auto selective = std::string(export_flagscale(place_plan(file, "FlagScale", hosts)).text("flagscale.yaml"));
  CHECK(has(selective, "      recompute_granularity: \"selective\"\n"));
  CHECK(!has(selective, "per_stage"));
  file.plan.pipelines.front().stages[1].recompute = recomputation::none;
  const auto some = export_flagscale(place_plan(file, "FlagScale", hosts));
  CHECK(has(std::string(some.text("flagscale.yaml")), "        - [1, 32, 1]\n        - [1, 32, 0]\n"));
  CHECK(has(some.remarks.at(0), "they recompute fully"));
}

TEST_CASE("what FlagScale's heterogeneous training does not do") {
  const auto hosts = hosts_of_two_sizes();
  const auto refused = [&](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return export_plan(file, "flagscale", hosts); }), why));
  };
  refused(equal_plan(18, 2, {}, "interleaved_1f1b"), "schedule interleaved_1f1b, expected 1f1b");
  refused(equal_plan(18, 2, {.context = 2}), "context degree 2, expected 1");
  refused(plan_of({{.end = 9}, {.end = 18, .subcluster = 1}}),
          "stage 1: devices that compute in fp16, expected bf16 as in stage 0");
  refused(plan_of({{.end = 1}, {.end = 18, .first_device = 1}}), "stage 0: the embedding alone");
  auto file = plan_of({{.end = 9, .degrees = {.tensor = 2}}, {.end = 18, .first_device = 2, .degrees = {.data = 2}}});
  file.plan.pipelines.front().copy_sync = {{.owner = 0, .layer = 17, .bytes = 8, .seconds = 0}};
  refused(file, "stage 1: tensor degree 1, expected 2 as in stage 0");
  file.plan.pipelines.front().copy_sync.clear();
  CHECK(has(std::string(export_flagscale(place_plan(file, "FlagScale", hosts)).text("flagscale.yaml")), "untie_embeddings"));
  file = plan_of({{.end = 6, .degrees = {}}, {.end = 12, .first_device = 8}, {.end = 18, .first_device = 1}});
  refused(file, "stage 2: devices of node 0 of a again, expected all ranks of a host one after another");
  file = equal_plan(18, 2, {.tensor = 3});
  refused(file, "context x tensor degrees of 1 x 3, expected ones that divide sequences of 1024 tokens");
}
