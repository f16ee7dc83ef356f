// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/export/export_plan.hpp>
#include <hetsched/io/export/megatron.hpp>

#include "plans.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace megatron_rules {

/// One pass of a substitution, as Python's re.sub has it: what it puts in is not looked at again.
std::string unroll(const std::string& text, const std::regex& pattern) {
  std::string out;
  auto from = text.cbegin();
  for (std::sregex_iterator m(text.begin(), text.end(), pattern), end; m != end; ++m) {
    out.append(from, (*m)[0].first);
    for (int n = std::stoi((*m)[2]); n > 0; --n) out += (*m)[1];
    from = (*m)[0].second;
  }
  return out.append(from, text.cend());
}

/// What --pipeline-model-parallel-layout says, a text a stage: commas are nothing, then (...)*n, then x*n, then |.
std::vector<std::string> parse(std::string text) {
  std::erase(text, ',');
  text = unroll(unroll(text, std::regex(R"(\(([^)]+)\)\*(\d+))")), std::regex(R"((.)\*(\d+))"));
  std::vector<std::string> stages{""};
  for (const char c : text)
    if (c == '|')
      stages.emplace_back();
    else
      stages.back() += c;
  return stages;
}

/// What is wrong with a layout; empty if nothing is.
std::string wrong(const std::vector<std::string>& stages, int pipeline, int layers, int further = 0) {
  if (stages.size() % static_cast<std::size_t>(pipeline) != 0) return "stages are no multiple of pipeline ranks";
  std::string flat;
  for (const auto& s : stages) flat += s;
  for (const char c : flat)
    if (c != 'E' && c != 't' && c != 'm' && c != 'L') return "a layer is none of E, t, m, L";
  const auto count = [&](char c) { return std::count(flat.begin(), flat.end(), c); };
  if (flat.empty() || flat.front() != 'E' || count('E') != 1) return "the embedding is not first, and once";
  if (flat.back() != 'L' || count('L') != 1) return "the loss is not last, and once";
  if (count('t') != layers) return "not as many blocks as the model has";
  if (count('m') != further) return "not as many further tokens as the model has";
  if (const auto m = flat.find('m'); m != flat.npos && flat.find('t', m) != flat.npos) return "a block behind a further token";
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto here = std::count(stages[s].begin(), stages[s].end(), 'm');
    if (here > 0 && s + static_cast<std::size_t>(pipeline) < stages.size()) return "not the last virtual stage of its rank";
    if (here > 0 && here != further) return "further tokens in several stages";
  }
  return "";
}

/// The layers of a plan of blocks by stage, as a layout has them.
std::vector<std::string> cuts(const placed_plan& placed) {
  std::vector<std::string> stages;
  for (const auto& s : placed.layout.stages) {
    stages.emplace_back();
    for (int l = s.layers.first; l < s.layers.last; ++l) stages.back() += l == 0 ? 'E' : l + 1 == placed.layers() ? 'L' : 't';
  }
  return stages;
}

std::map<std::string, std::string> options(const placed_plan& placed) {
  std::map<std::string, std::string> found;
  std::vector<std::string> remarks;
  for (const auto& f : megatron_flags(placed, remarks)) {
    const auto space = f.find(' ');
    found[f.substr(0, space)] = space == f.npos ? "" : f.substr(space + 1);
  }
  return found;
}

}  // namespace megatron_rules

TEST_CASE("the reader of these tests reads the examples that Megatron-LM documents") {
  using megatron_rules::parse;
  const auto stages = parse("Ettt|(tt|)*29,m|L");  // parse_str_to_list
  REQUIRE(stages.size() == 32);
  CHECK(stages[0] == "Ettt");
  CHECK(stages[1] == "tt");
  CHECK(stages[29] == "tt");
  CHECK(stages[30] == "m");
  CHECK(stages[31] == "L");
  CHECK(parse("E|(t|)*3,m|m||L") == std::vector<std::string>{"E", "t", "t", "t", "m", "m", "", "L"});  // arguments.py
  CHECK(parse("Et*3|L") == std::vector<std::string>{"Ettt", "L"});
  CHECK(megatron_rules::wrong(parse("Ett|tL"), 2, 3) == "");
  CHECK(megatron_rules::wrong(parse("Ett|tmmL"), 2, 3, 2) == "");
  for (const auto* bad : {"Ett|mtmL", "Etm|ttmL", "Ett|tL", "Em|t|t|tmL"})
    CHECK(megatron_rules::wrong(parse(bad), 2, 3, 2) != "");
  for (const auto* bad : {"Ett|tL|", "tt|L", "Et|tL", "Ett|t", "Et|Et|tL", "Ett|tx|L"})
    CHECK(megatron_rules::wrong(parse(bad), 2, 3) != "");
}

TEST_CASE("a layout read back is the plan: random cuts, one stage a rank") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int stages = 1 + static_cast<int>(random() % 8), layers = stages + 2 + static_cast<int>(random() % 30);
    std::vector<planned_stage> all;
    for (int s = 0, first = 0; s < stages; ++s) {
      const int most = layers - first - (stages - s - 1);
      first = s + 1 == stages ? layers : first + 1 + static_cast<int>(random() % static_cast<unsigned>(std::min(most, 5)));
      all.push_back({.end = first, .first_device = s});
    }
    const auto placed = place_plan(plan_of(all), "Megatron-LM");
    const auto text = megatron_layout(placed);
    CAPTURE(text);
    const auto read = megatron_rules::parse(text);
    CHECK(read == megatron_rules::cuts(placed));
    CHECK(megatron_rules::wrong(read, stages, layers - 2) == "");
  }
}

TEST_CASE("virtual stages go round the ranks, as Megatron-LM deals them out") {
  const auto placed = place_plan(equal_plan(34, 2, {}, "interleaved_1f1b"), "Megatron-LM");
  const auto read = megatron_rules::parse(megatron_layout(placed));
  REQUIRE(read.size() == 4);
  CHECK(megatron_rules::wrong(read, 2, 32) == "");
  // layout[vpp_rank * pipeline + pp_rank] is of pp_rank.
  for (int v = 0; v < 4; ++v) CHECK(placed.order().rank(0, v) == v % 2);
  CHECK(read == megatron_rules::cuts(placed));
  auto file = equal_plan(34, 4, {}, "interleaved_1f1b");
  for (const int microbatches : {8, 10}) {
    file.plan.pipelines.front().microbatches = microbatches;
    const auto why = refusal([&] { return export_plan(file, "megatron"); });
    CHECK((why == "") == (microbatches % 4 == 0));
  }
}

TEST_CASE("modules that predict further tokens stay with the head, and other targets say that they have none") {
  for (const auto* schedule : {"1f1b", "interleaved_1f1b"})
    for (const int further : {1, 3}) {
      auto file = equal_plan(18, 3, {}, schedule);
      file.plan.pipelines.front().microbatches = 9;
      file.plan.setting.further_tokens = further;
      const auto placed = place_plan(file, "x");
      const auto stages = megatron_rules::parse(megatron_layout(placed));
      CHECK(megatron_rules::wrong(stages, 3, 16, further) == "");
      CHECK(stages.back().ends_with(std::string(static_cast<std::size_t>(further), 'm') + "L"));
      CHECK(megatron_rules::options(placed)["--mtp-num-layers"] == std::to_string(further));
      for (const auto* target : {"torch", "torchtitan", "flagscale", "deepspeed"})
        CHECK(has(refusal([&] { return export_plan(file, target); }),
                  "plan: a head that predicts " + std::to_string(further) + " further"));
    }
}

TEST_CASE("flags are the plan: sizes, sequence, ZeRO, recomputation") {
  auto file = equal_plan(18, 2, {.data = 2, .context = 2, .tensor = 2, .expert = 2});
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 1, s.recompute = recomputation::full;
  auto found = megatron_rules::options(place_plan(file, "Megatron-LM"));
  CHECK(found["--tensor-model-parallel-size"] == "2");
  CHECK(found["--context-parallel-size"] == "2");
  CHECK(found["--expert-model-parallel-size"] == "2");
  CHECK(found["--pipeline-model-parallel-size"] == "2");
  CHECK(found["--micro-batch-size"] == "2");
  CHECK(found["--global-batch-size"] == "32");
  // global / (micro * data) is the number of microbatches.
  CHECK(32 / (2 * 2) == file.plan.pipelines.front().microbatches);
  CHECK(found["--seq-length"] == "1024");
  CHECK(found.count("--sequence-parallel") == 1);
  CHECK(found.count("--use-distributed-optimizer") == 1);
  CHECK(found["--recompute-granularity"] == "full --recompute-method uniform --recompute-num-layers 1");
  for (auto& s : file.plan.pipelines.front().stages) s.recompute = recomputation::selective;
  CHECK(megatron_rules::options(place_plan(file, "Megatron-LM"))["--recompute-granularity"] == "selective");
}

TEST_CASE("pipelines that are copies of one are replicas, those of each in a row, and shard for themselves") {
  auto file = equal_plan(18, 2, {.data = 2, .tensor = 2});
  for (auto& s : file.plan.pipelines[0].stages) s.zero = 1;
  file.plan.pipelines.push_back(file.plan.pipelines[0]);
  for (auto& s : file.plan.pipelines[1].stages) s.devices[0].mesh.subcluster = 1;
  const auto placed = place_plan(file, "Megatron-LM");
  REQUIRE(placed.ranks.size() == 16);
  for (int r = 0; r < 16; ++r) {
    const auto& rank = placed.ranks[static_cast<std::size_t>(r)];
    CHECK(rank ==
          placed_rank{
              .pipeline_rank = r / 8, .data = r / 2 % 4, .tensor = r % 2, .subcluster = r / 4 % 2, .device = r / 8 * 4 + r % 4});
  }
  const auto of = megatron_rules::options(placed);
  CHECK(of.at("--micro-batch-size") == "2");
  CHECK(of.at("--global-batch-size") == "64");
  CHECK(of.at("--num-distributed-optimizer-instances") == "2");
  CHECK(megatron_rules::parse(megatron_layout(placed)) == megatron_rules::cuts(placed));
  file.plan.pipelines.pop_back();
  CHECK(megatron_rules::options(place_plan(file, "Megatron-LM")).count("--num-distributed-optimizer-instances") == 0);
}

TEST_CASE("precision is what devices compute in, and gradients are as the stack counts them") {
  const auto flags = [](plan_file file, const char* stack, bool hosts) {
    if (*stack) file.plan.setting.stack = find_training_stack(stack).value();
    return megatron_rules::options(place_plan(file, "Megatron-LM", hosts ? std::optional(hosts_of_two_sizes()) : std::nullopt));
  };
  const auto on_a = equal_plan(18, 2);
  CHECK(flags(on_a, "megatron", true).count("--bf16") == 1);
  CHECK(flags(on_a, "megatron", true).count("--accumulate-allreduce-grads-in-fp32") == 1);
  CHECK(flags(on_a, "megatron", true).count("--grad-reduce-in-bf16") == 0);
  CHECK(flags(on_a, "hetsched", true).count("--grad-reduce-in-bf16") == 1);
  CHECK(flags(on_a, "", true).count("--grad-reduce-in-bf16") == 1);
  CHECK(flags(on_a, "megatron", true).count("--fp8-format") == 0);
  auto eighths = on_a;
  eighths.plan.setting.stack = *find_training_stack("megatron");
  eighths.plan.setting.stack->fp8_products = true;
  eighths.plan.setting.stack->name = "eighths";
  CHECK(flags(eighths, "", false).at("--fp8-format") == "hybrid");
  CHECK(export_megatron(place_plan(eighths, "Megatron-LM")).remarks.empty());
  // A100 have none.
  CHECK(flags(eighths, "", true).count("--fp8-format") == 0);
  const auto without = export_megatron(place_plan(eighths, "Megatron-LM", hosts_of_two_sizes())).remarks;
  REQUIRE(without.size() == 1);
  CHECK(has(without[0], "priced with products in fp8, where devices have it; Megatron-LM is not told to use it"));
  // A V100 is priced in fp16 where the model is of bf16.
  const auto on_v = plan_of({{.end = 9, .subcluster = 1, .first_device = 0}, {.end = 18, .subcluster = 1, .first_device = 1}});
  CHECK(flags(on_v, "megatron", true).count("--fp16") == 1);
  CHECK(flags(on_v, "megatron", true).count("--bf16") == 0);
  CHECK(flags(on_v, "megatron", true).count("--accumulate-allreduce-grads-in-fp32") == 0);
  const auto mixed = plan_of({{.end = 9}, {.end = 18, .subcluster = 1}});
  CHECK(flags(mixed, "megatron", false).count("--bf16") == 1);  // nothing is known of the devices
  auto measured = on_a;
  measured.plan.setting.costs = "profile";
  CHECK(flags(measured, "", true).count("--grad-reduce-in-bf16") == 0);
  auto plain = on_a;
  plain.plan.setting.precision = "fp32";
  CHECK(flags(plain, "", true).count("--bf16") + flags(plain, "", true).count("--fp16") == 0);
}

TEST_CASE("what Megatron-LM has no flag for is refused, with the reason") {
  const auto refused = [](const plan_file& file, const char* why) {
    CHECK(has(refusal([&] { return export_plan(file, "megatron", hosts_of_two_sizes()); }), why));
  };
  auto file = plan_of({{.end = 9, .degrees = {.data = 4}}, {.end = 18, .first_device = 4, .degrees = {.tensor = 4}}});
  refused(file, "stage 1: tensor degree 4, expected 1 as in stage 0");
  file = equal_plan(18, 2, {.data = 2, .expert = 2});
  file.plan.setting.precision = "fp16";
  refused(file, "stage 0: expert degree 2 in fp16, expected 1");
  file = equal_plan(18, 2, {}, "zb_v");
  refused(file, "schedule zb_v, expected 1f1b or interleaved_1f1b");
  file = equal_plan(18, 2);
  file.plan.setting.granularity = "sublayer";
  refused(file, "18 layers, expected embedding, blocks of 3 and head");
  file = plan_of({{.end = 6}, {.end = 14, .first_device = 1}});
  file.plan.setting.granularity = "sublayer";
  refused(file, "stage 1: a begin inside block 1");
  auto apart = hosts_of_two_sizes();
  apart.links.front().path.nccl = false;
  const auto mixed = plan_of({{.end = 9}, {.end = 18, .subcluster = 1}});
  CHECK(has(refusal([&] { return export_plan(mixed, "megatron", apart); }), "devices of a and v, expected such as NCCL joins"));
  refused(mixed, "stage 1: devices that compute in fp16, expected bf16 as in stage 0");
}

TEST_CASE("stages that save memory differently: all save as much as the one that saves most") {
  auto file = equal_plan(18, 2, {.data = 2});
  file.plan.pipelines.front().stages[0].recompute = recomputation::full;
  file.plan.pipelines.front().stages[0].zero = 1;
  const auto made = export_megatron(place_plan(file, "Megatron-LM"));
  CHECK(made.remarks.size() == 2);
  CHECK(has(std::string(made.text("launch.sh")), "--use-distributed-optimizer"));
  CHECK(has(std::string(made.text("launch.sh")), "--recompute-granularity full"));
  for (auto& s : file.plan.pipelines.front().stages) s.zero = 3, s.recompute = recomputation::none;
  CHECK(has(export_megatron(place_plan(file, "Megatron-LM")).remarks.at(0), "has ZeRO stage 3"));
}

TEST_CASE("files and remarks of Megatron-LM") {
  auto file = equal_plan(18, 2, {}, "h1f1b");
  file.plan.setting.stack = training_stack{};
  const auto made = export_megatron(place_plan(file, "Megatron-LM", hosts_of_two_sizes()));
  CHECK(made.text("pipeline_layout.txt") == "Et*8|t*8L\n");
  for (const auto* name : {"launch.sh", "start_all.sh", "hosts.txt", "assumptions.json", "check.py", "ranks.json"})
    CHECK(!made.text(name).empty());
  CHECK(has(std::string(made.text("launch.sh")), "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"));
  REQUIRE(made.remarks.size() == 2);
  CHECK(made.remarks[0] == "Megatron-LM runs its own 1F1B, not the plan's schedule h1f1b");
  CHECK(has(made.remarks[1], "hetsched-plan --stack megatron"));
}
