// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/export/torchtitan.hpp>
#include <hetsched/schedule/text.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace torchtitan_rules {

/// The values of a TOML by section and key, and the parts, a line each: of what TOML has, what these files need.
struct configuration {
  std::map<std::string, std::string> values;
  std::vector<std::vector<std::string>> parts;

  [[nodiscard]] int number(const std::string& key) const { return std::stoi(values.at(key)); }
};

configuration read(std::string_view text) {
  configuration found;
  std::istringstream lines{std::string(text)};
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find(" = ");
    if (line.starts_with("  [")) {
      auto& part = found.parts.emplace_back();
      for (std::size_t from = line.find('"'); from != line.npos; from = line.find('"', line.find('"', from + 1) + 1))
        part.push_back(line.substr(from + 1, line.find('"', from + 1) - from - 1));
    } else if (line.starts_with("[")) {
      section = line.substr(1, line.size() - 2);
    } else if (equals != line.npos) {
      auto value = line.substr(equals + 3);
      std::erase(value, '"');
      found.values[section + "." + line.substr(0, equals)] = value;
    }
  }
  return found;
}

/// The stages of a rank, as pipeline_module_split has them.
std::vector<int> stages_of(const std::string& schedule, int rank, int degree, int stages) {
  CHECK(stages % degree == 0);
  if (schedule == "ZBVZeroBubble") {
    CHECK(stages == 2 * degree);
    return {rank, stages - 1 - rank};
  }
  std::vector<int> all;
  for (int s = rank; s < stages; s += degree) all.push_back(s);
  return all;
}

/// All modules of a Llama of so many blocks, in order.
std::vector<std::string> modules(int blocks) {
  std::vector<std::string> all{"tok_embeddings"};
  for (int b = 0; b < blocks; ++b) all.push_back("layers." + std::to_string(b));
  all.insert(all.end(), {"norm", "output"});
  return all;
}

}  // namespace torchtitan_rules

TEST_CASE("the reader of these tests reads the lists that torchtitan documents") {
  const auto found = torchtitan_rules::read(  // job_config.py, module_fqns_per_model_part
      "[parallelism]\nmodule_fqns_per_model_part = [\n  [\"tok_embeddings\", \"layers.0\"],\n  [\"layers.1\", \"layers.2\"],\n]\n"
      "pipeline_parallel_degree = 2\n");
  CHECK(found.parts == std::vector<std::vector<std::string>>{{"tok_embeddings", "layers.0"}, {"layers.1", "layers.2"}});
  CHECK(found.number("parallelism.pipeline_parallel_degree") == 2);
  CHECK(torchtitan_rules::stages_of("PipelineScheduleMulti", 1, 2, 6) == std::vector{1, 3, 5});
  CHECK(torchtitan_rules::stages_of("ZBVZeroBubble", 1, 2, 4) == std::vector{1, 2});
}

TEST_CASE("parts, ranks and microbatches read back are the plan's") {
  for (const auto* name : {"1f1b", "interleaved_1f1b", "zb_v", "zb_h1"}) {
    CAPTURE(name);
    auto file = equal_plan(18, 2, {.data = 2, .tensor = 2}, name);
    for (auto& s : file.plan.pipelines.front().stages) s.zero = 1, s.recompute = recomputation::full;
    const auto placed = place_plan(file, "torchtitan", hosts_of_two_sizes());
    const auto made = export_torchtitan(placed);
    CHECK(made.remarks.empty());
    const auto found = torchtitan_rules::read(made.text("torchtitan.toml"));
    const auto& order = placed.order();
    REQUIRE(found.parts.size() == static_cast<std::size_t>(order.stages));
    std::vector<std::string> all;
    for (const auto& part : found.parts) all.insert(all.end(), part.begin(), part.end());
    CHECK(all == torchtitan_rules::modules(16));
    for (std::size_t v = 0; v < found.parts.size(); ++v)  // norm is with the head
      CHECK(found.parts[v].size() ==
            static_cast<std::size_t>(placed.layout.stages[v].layers.size()) + (v + 1 == found.parts.size()));
    const int degree = found.number("parallelism.pipeline_parallel_degree");
    CHECK(degree == 2);
    for (int r = 0; r < degree; ++r)
      for (const int s :
           torchtitan_rules::stages_of(found.values.at("parallelism.pipeline_parallel_schedule"), r, degree, order.stages))
        CHECK(order.rank(0, s) == r);
    // world = dp_replicate * dp_shard * cp * tp * pp
    CHECK(found.number("parallelism.data_parallel_replicate_degree") * found.number("parallelism.data_parallel_shard_degree") *
              found.number("parallelism.tensor_parallel_degree") * degree ==
          8);
    const int local = found.number("training.local_batch_size");
    CHECK(local / found.number("parallelism.pipeline_parallel_microbatch_size") == placed.line().microbatches);
    CHECK(found.number("training.global_batch_size") == 2 * local);
    CHECK(found.values.at("training.mixed_precision_param") == "bfloat16");
    CHECK(found.values.at("activation_checkpoint.mode") == "full");
    CHECK(parse_schedule_csv(made.text("schedule.csv")).rank_of == order.rank_of);
    CHECK(has(std::string(made.text("launch.sh")), "-m torchtitan.train \"${given[@]}\""));
  }
}

TEST_CASE("one stage: no pipeline, and copies or shards") {
  auto file = equal_plan(18, 1, {.data = 4});
  auto made = export_torchtitan(place_plan(file, "torchtitan"));
  auto found = torchtitan_rules::read(made.text("torchtitan.toml"));
  CHECK(found.number("parallelism.data_parallel_replicate_degree") == 4);
  CHECK(found.number("training.local_batch_size") == 1);
  CHECK(found.number("training.global_batch_size") == 32);
  CHECK(made.text("schedule.csv").empty());
  file.plan.pipelines.front().stages.front().zero = 3;
  found = torchtitan_rules::read(export_torchtitan(place_plan(file, "torchtitan")).text("torchtitan.toml"));
  CHECK(found.number("parallelism.data_parallel_shard_degree") == 4);
  CHECK(found.values.at("parallelism.fsdp_reshard_after_forward") == "always");
  file = equal_plan(18, 2, {.data = 4});
  made = export_torchtitan(place_plan(file, "torchtitan"));
  REQUIRE(made.remarks.size() == 1);
  CHECK(has(made.remarks[0], "which has ZeRO stage 0"));
}

TEST_CASE("what torchtitan does not do") {
  const auto refused = [](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return export_plan(file, "torchtitan", hosts_of_two_sizes()); }), why));
  };
  refused(equal_plan(18, 2), "stage 0: 1 replica, expected at least 2");
  refused(plan_of({{.end = 18, .subcluster = 1, .degrees = {.data = 2}}}),
          "devices that compute in fp16, expected fp32, tf32 or bf16");
  refused(equal_plan(18, 2, {.data = 2}, "dualpipe"), "schedule dualpipe");
  auto file = plan_of({{.end = 6, .degrees = {.data = 2}}, {.end = 14, .first_device = 2, .degrees = {.data = 2}}});
  file.plan.setting.granularity = "sublayer";
  refused(file, "a begin inside block");
}
