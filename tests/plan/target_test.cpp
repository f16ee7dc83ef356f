// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/target.hpp>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/schedule/builders/bidirectional.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/v_schedules.hpp>

using namespace hetsched;

namespace {

// Stages of `blocks` layers each, embedding and head with the first and the last, on neighbouring devices.
plan plan_of(int stages, int blocks, degrees d, const std::string& schedule = "1f1b", const std::string& granularity = "block") {
  plan p;
  auto& line = p.pipelines.emplace_back(pipeline_plan{.microbatches = 8, .microbatch_size = 4});
  line.schedule.name = schedule;
  for (int s = 0; s < stages; ++s) {
    const int first = s == 0 ? 0 : 1 + s * blocks, last = 1 + (s + 1) * blocks + (s + 1 == stages ? 1 : 0);
    line.stages.push_back({.layers = {first, last},
                           .devices = {{submesh{0, 1, d.device_count()}, s * d.device_count()}},
                           .degrees = d,
                           .zero = d.data > 1 ? 1 : 0});
  }
  p.setting.granularity = granularity;
  return p;
}

std::vector<std::string> texts(const plan& p, const std::string& name) {
  std::vector<std::string> found;
  for (const auto& gap : gaps(p, *find_plan_target(name))) found.push_back((gap.runs_anyway ? "~ " : "") + to_text(gap));
  return found;
}

using list = std::vector<std::string>;

}  // namespace

TEST_CASE("targets: all make sense, have names of their own and stacks that there are") {
  REQUIRE(plan_targets().size() == 6);
  for (const auto& t : plan_targets()) {
    CAPTURE(t.name);
    CHECK_NOTHROW(validate(t));
    CHECK(*find_plan_target(t.name) == t);
    CHECK_FALSE(t.program.empty());
    CHECK(find_training_stack(t.stack));
  }
  CHECK_FALSE(find_plan_target("caffe"));
  CHECK(find_plan_target("torch")->stack == "ddp");
  const auto wrong = [](auto change) {
    auto t = *find_plan_target("megatron");
    change(t);
    CHECK_THROWS_AS(validate(t), input_error);
  };
  wrong([](plan_target& t) { t.name.clear(); });
  wrong([](plan_target& t) { t.stack = "none"; });
  wrong([](plan_target& t) { t.most.tensor = 0; });
  wrong([](plan_target& t) { t.recompute.clear(); });
  wrong([](plan_target& t) { t.zero = {4}; });
  wrong([](plan_target& t) { t.schedules = {static_cast<schedule_id>(99)}; });
  wrong([](plan_target& t) { t.precisions.clear(); });
}

TEST_CASE("what is equal in all stages and cut between blocks goes everywhere") {
  const auto p = plan_of(4, 3, {.data = 2, .context = 1, .tensor = 1});
  for (const auto* name : {"hetsched", "megatron", "flagscale", "deepspeed", "torch"}) CHECK(texts(p, name) == list{});
  CHECK(texts(plan_of(4, 3, {.data = 1, .context = 1, .tensor = 2}), "torch").front() == "stage 0: tensor degree 2, expected 1");
  CHECK_FALSE(can_run(plan_of(4, 3, {.data = 1, .context = 1, .tensor = 2}), *find_plan_target("torch")));
  CHECK(texts(plan_of(2, 3, {.data = 1, .context = 2, .tensor = 1}), "deepspeed").front() ==
        "stage 0: context degree 2, expected 1");
}

TEST_CASE("degrees that differ: FlagScale's meshes may, but for context") {
  auto p = plan_of(2, 3, {.data = 4, .context = 1, .tensor = 1});
  p.pipelines[0].stages[1].degrees = {.data = 1, .context = 1, .tensor = 4};
  p.pipelines[0].stages[1].zero = 0;  // nothing to share out: no difference
  CHECK(texts(p, "megatron") ==
        list{"stage 1: data degree 1, expected 4 as in stage 0", "stage 1: tensor degree 4, expected 1 as in stage 0"});
  CHECK(texts(p, "flagscale") == list{});
  CHECK(texts(p, "hetsched") == list{});
  p.pipelines[0].copy_sync.push_back({.owner = 0, .layer = 7});  // a tied embedding
  CHECK(texts(p, "flagscale") ==
        list{"stage 1: data degree 1, expected 4 as in stage 0", "stage 1: tensor degree 4, expected 1 as in stage 0"});
  p.pipelines[0].copy_sync.clear();
  p.pipelines[0].stages[1].degrees = {.data = 1, .context = 4, .tensor = 1};
  CHECK(texts(p, "flagscale").front() == "stage 1: context degree 4, expected 1");
}

TEST_CASE("cuts: inside blocks, and ends that stand alone") {
  auto p = plan_of(2, 6, {}, "1f1b", "sublayer");  // four blocks of three layers
  CHECK(texts(p, "megatron") == list{});
  p.pipelines[0].stages[0].layers.last = p.pipelines[0].stages[1].layers.first = 6;
  CHECK(texts(p, "megatron") ==
        list{"stage 1: a begin inside block 1, expected cuts between blocks (hetsched-plan --granularity block)"});
  CHECK(texts(p, "torch") == list{});
  p = plan_of(3, 2, {});
  auto& stages = p.pipelines[0].stages;
  stages[0].layers.last = stages[1].layers.first = 1;
  CHECK(texts(p, "megatron") == list{});
  CHECK(texts(p, "flagscale") == list{"stage 0: the embedding alone, expected at least a block with it"});
  stages[1].layers.last = stages[2].layers.first = 7;
  CHECK(texts(p, "flagscale").back() == "stage 2: the head alone, expected at least a block with it");
  // Not a transformer in parts of blocks at all.
  p = plan_of(2, 6, {}, "1f1b", "sublayer");
  p.pipelines[0].stages[1].layers.last = 13;
  CHECK(texts(p, "megatron") == list{"plan: 13 layers, expected embedding, blocks of 3 and head"});
}

TEST_CASE("what is run in another way comes last: recomputation, ZeRO, schedules of the same shape") {
  auto p = plan_of(2, 3, {.data = 2, .context = 1, .tensor = 2}, "h1f1b");
  p.pipelines[0].stages[0].recompute = recomputation::full;
  p.pipelines[0].stages[1].zero = 3;
  CHECK(texts(p, "megatron") ==
        list{"~ stage 1: ZeRO stage 3, expected 0 or 1", "~ stage 1: recompute none, expected full as in stage 0",
             "~ stage 1: ZeRO stage 3, expected 1 as in stage 0", "~ plan: schedule h1f1b, expected 1f1b or interleaved_1f1b"});
  CHECK(can_run(p, *find_plan_target("megatron")));
  p.pipelines[0].stages[1].degrees.tensor = 1;
  CHECK(texts(p, "megatron").front() == "stage 1: tensor degree 1, expected 2 as in stage 0");
  CHECK_FALSE(can_run(p, *find_plan_target("megatron")));
  CHECK(texts(plan_of(2, 4, {}, "zb_v"), "megatron") == list{"plan: schedule zb_v, expected 1f1b or interleaved_1f1b"});
  CHECK(texts(plan_of(2, 4, {}, "looped_bfs"), "megatron").front().substr(0, 2) == "~ ");
  auto parted = plan_of(2, 4, {}, "zb_v");
  CHECK(texts(parted, "torch") == list{});
  parted.pipelines[0].stages[1].recompute = recomputation::full;
  CHECK(texts(parted, "torch") == list{"~ stage 1: recompute full under schedule zb_v, which parts backwards, expected none"});
  CHECK(texts(parted, "hetsched") == list{});
  parted.pipelines[0].schedule.name = "looped_bfs";
  CHECK(texts(parted, "torch") == list{});
  for (const auto name : schedule_names())  // as their papers have them
    CHECK(parts_backwards(name) == (name.starts_with("zb_") || name.starts_with("v_") || name.starts_with("dualpipe")));
  CHECK(parts_backwards("auto"));
  CHECK_THROWS_AS((void)parts_backwards("zb_h9"), input_error);
  CHECK(texts(plan_of(2, 4, {}, "dualpipe"), "torch").size() == 1);
  CHECK(texts(plan_of(2, 6, {}, "interleaved_1f1b"), "megatron") == list{});
  auto odd = plan_of(2, 6, {}, "interleaved_1f1b");
  odd.pipelines[0].microbatches = 3;
  CHECK(texts(odd, "megatron") == list{"plan: 3 microbatches under interleaved_1f1b, expected a multiple of 2 stages"});
  CHECK(texts(odd, "torch") == list{});
  CHECK(texts(plan_of(1, 6, {}, "interleaved_1f1b"), "megatron") ==
        list{"plan: schedule interleaved_1f1b of one stage, expected at least two"});
  CHECK(texts(plan_of(2, 6, {}, "interleaved_1f1b", "sublayer"), "megatron").size() == 1);  // chunks may begin inside blocks
}

TEST_CASE("ZeRO stages that go with one stage only") {
  auto p = plan_of(1, 6, {.data = 4, .context = 1, .tensor = 1});
  p.pipelines[0].stages[0].zero = 3;
  CHECK(texts(p, "torchtitan") == list{});
  CHECK(texts(p, "deepspeed").front() == "~ stage 0: ZeRO stage 3, expected 0 or 1");
  p = plan_of(2, 3, {.data = 4, .context = 1, .tensor = 1});
  for (auto& s : p.pipelines[0].stages) s.zero = 3;
  CHECK(texts(p, "torchtitan").front() == "~ stage 0: ZeRO stage 3, expected 1");
  CHECK(texts(p, "deepspeed").size() == 2);
}

TEST_CASE("replicas that a target needs to compute in 16 bits") {
  CHECK(texts(plan_of(1, 6, {}), "torchtitan") == list{});  // one device
  CHECK(texts(plan_of(1, 6, {.data = 1, .context = 1, .tensor = 4}), "torchtitan") ==
        list{"stage 0: 1 replica, expected at least 2"});
  CHECK(texts(plan_of(2, 3, {.data = 1, .context = 1, .tensor = 2}), "torchtitan").front() ==
        "stage 0: 1 replica, expected at least 2");
}

TEST_CASE("a strict target refuses what others run in their own way") {
  auto p = plan_of(2, 3, {.data = 2, .context = 1, .tensor = 1});
  p.pipelines[0].stages[1].zero = 3;  // this library's trainer
  CHECK(texts(p, "hetsched") == list{"stage 1: ZeRO stage 3, expected 0, 1 or 2"});
  CHECK_FALSE(can_run(p, *find_plan_target("hetsched")));
}

TEST_CASE("gaps: plans that are none are an error") {
  auto p = plan_of(2, 3, {});
  p.pipelines[0].stages[1].degrees.data = 0;
  CHECK_THROWS_AS((void)gaps(p, *find_plan_target("megatron")), input_error);
  p = plan_of(2, 3, {});
  p.pipelines[0].stages[0].layers = {3, 3};
  CHECK_THROWS_AS((void)gaps(p, *find_plan_target("hetsched")), input_error);
  p.pipelines[0].stages.clear();
  CHECK_THROWS_AS((void)can_run(p, *find_plan_target("hetsched")), input_error);
}

TEST_CASE("what only a cluster tells: precisions, NCCL and hosts") {
  cluster c;
  for (const auto& [name, device] :
       {std::pair{"a", "A100-SXM4-40GB"}, {"v", "V100-SXM2-16GB"}, {"m", "MI300X"}, {"n", "Ascend910B2(A2)"}})
    c.subclusters.push_back({name, find_device(device).value(), 2, 2, {1e-6, 1e11}, {1e-5, 1e10}});
  c.links.push_back({.a = 0, .b = 1, .link = {1e-5, 1e9}});
  auto p = plan_of(3, 2, {.data = 2, .context = 1, .tensor = 1});
  p.setting.precision = "bf16";
  auto& stages = p.pipelines[0].stages;
  const auto lie = [&](int stage, int subcluster, int first_device) {
    stages[static_cast<std::size_t>(stage)].devices = {{submesh{subcluster, 1, 2}, first_device}};
  };
  const auto told = [&](const std::string& name) {
    list found;
    for (const auto& gap : gaps(p, *find_plan_target(name), c))
      if (!gap.runs_anyway) found.push_back(to_text(gap));
    CHECK(can_run(p, *find_plan_target(name), c) == found.empty());
    return found;
  };
  lie(0, 0, 0), lie(1, 0, 2), lie(2, 1, 0);
  const list fp16{"stage 2: devices that compute in fp16, expected bf16 as in stage 0"};
  for (const auto* name : {"megatron", "flagscale", "deepspeed"}) CHECK(told(name) == fp16);
  CHECK(told("torchtitan").size() == 2);
  CHECK(told("torchtitan").front() == "stage 2: devices that compute in fp16, expected fp32, tf32 or bf16");
  for (const auto* name : {"hetsched", "torch"}) CHECK(told(name) == list{});
  CHECK(texts(p, "megatron") == list{});  // of devices nothing is known
  p.setting.precision = "tf32";           // V100 multiply in fp32, which is stored alike
  CHECK(told("megatron") == list{});
  p.setting.precision = "fp16";
  CHECK(told("flagscale") == list{});
  CHECK(told("torchtitan").size() == 1);
  for (auto& s : stages) s.degrees.expert = 2;
  CHECK(told("megatron") == list{"stage 0: expert degree 2 in fp16, expected 1"});
  for (auto& s : stages) s.degrees.expert = 1;
  p.setting.precision.clear();  // of measured costs
  CHECK(told("megatron") == list{});

  c.links[0].path.nccl = false;
  CHECK(told("megatron") == list{"plan: devices of a and v, expected such as NCCL joins"});
  CHECK(told("torch") == told("megatron"));
  CHECK(told("flagscale") == list{});
  c.links[0].path.nccl = true;
  c.subclusters[0].inter_node_path.nccl = false;
  CHECK(told("torch") == list{"plan: several nodes of a, expected such as NCCL joins"});
  c.subclusters[0].inter_node_path.nccl = true;
  lie(2, 2, 0);
  CHECK(told("torch") == list{"plan: devices of a and m, expected such as NCCL joins"});
  lie(0, 2, 2), lie(1, 2, 2);
  CHECK(told("torch") == list{});  // AMD's alone
  lie(0, 3, 0), lie(1, 3, 0), lie(2, 3, 0);
  CHECK(told("torch") == list{"plan: devices of n, expected such as NCCL joins"});
  CHECK_THROWS_AS((void)joined_by_nccl(c, 0, 4), input_error);

  lie(0, 0, 0), lie(1, 1, 0), lie(2, 0, 2);
  CHECK(told("flagscale") == list{});
  for (auto& s : stages) s.degrees.data = 1;
  stages[0].devices = {{submesh{0, 1, 1}, 0}};
  stages[1].devices = {{submesh{0, 1, 1}, 2}};
  stages[2].devices = {{submesh{0, 1, 1}, 1}};
  CHECK(told("flagscale") == list{"stage 2: devices of node 0 of a again, expected all ranks of a host one after another"});
  CHECK(told("megatron") == list{});
  lie(2, 4, 0);
  CHECK_THROWS_AS((void)told("megatron"), input_error);
}

TEST_CASE("heads of several tokens, schedules told by their actions, and room that 1F1B needs") {
  auto p = plan_of(2, 4, {});
  p.setting.further_tokens = 1;
  CHECK(texts(p, "torch") == list{"plan: a head that predicts 1 further token, expected one that predicts the next"});
  for (const auto* name : {"hetsched", "megatron"}) CHECK(texts(p, name) == list{});
  p = plan_of(2, 4, {}, "mine");
  p.pipelines[0].schedule.actions = dualpipe(2, 8);
  CHECK(texts(p, "torch").front().substr(0, 2) == "pl");
  p.pipelines[0].schedule.actions = zb_v(2, 8);
  CHECK(texts(p, "torch") == list{});  // whatever it is called
  CHECK(texts(p, "torchtitan").back().substr(0, 2) == "~ ");
  CHECK(texts(p, "megatron").front().substr(0, 2) == "pl");
  p = plan_of(2, 4, {}, "h1f1b");
  for (auto& s : p.pipelines[0].stages) {
    s.cost.weight_bytes = s.cost.activation_bytes = bytes_t{1} << 30;
    s.memory_capacity_bytes = bytes_t{2} << 30;
  }
  CHECK(texts(p, "flagscale").front() == "stage 0: room for 1 microbatches, expected for 2, which it keeps under 1f1b");
  CHECK(texts(p, "torch") == list{});
}

TEST_CASE("several pipelines and unequal shares stay at home") {
  auto p = plan_of(2, 3, {.data = 2, .context = 1, .tensor = 1});
  p.pipelines[0].stages[1].shares.data = {0.75, 0.25};
  CHECK(texts(p, "megatron") == list{"stage 1: uneven shares of its work, expected equal ones"});
  CHECK(texts(p, "hetsched") == list{});
  p.pipelines[0].stages[1].shares.data.clear();
  p.pipelines[0].microbatch_size = 3;
  CHECK(texts(p, "torch").front() == "stage 0: a data degree of 2, expected one that divides microbatches of 3 samples");
  p = plan_of(2, 3, {});
  p.pipelines.push_back(p.pipelines.front());
  p.pipelines[0].microbatch_size = p.pipelines[1].microbatch_size = 4;
  CHECK(texts(p, "flagscale") == list{"plan: 2 pipelines, expected 1"});
  CHECK_FALSE(unlike_pipelines(p));
  CHECK(texts(p, "megatron") == list{});  // copies of one
  p.pipelines[1].stages[1].warmup = 7;
  CHECK(texts(p, "megatron") == list{"~ pipeline 1: another order, expected the same as in pipeline 0"});
  CHECK(can_run(p, *find_plan_target("megatron")));
  const auto unlike = [&](auto change, const std::string& found) {
    auto other = p;
    change(other.pipelines[1]);
    CHECK(texts(other, "megatron").front() == "pipeline 1: " + found + ", expected the same as in pipeline 0");
    CHECK_FALSE(can_run(other, *find_plan_target("megatron")));
    CHECK(texts(other, "hetsched") == list{});
  };
  unlike([](pipeline_plan& line) { line.microbatches = 4; }, "other microbatches");
  unlike([](pipeline_plan& line) { line.stages[0].layers.last = line.stages[1].layers.first = 5; }, "other layers of stage 0");
  unlike([](pipeline_plan& line) { line.stages[1].degrees.tensor = 2; }, "other degrees of stage 1");
  unlike([](pipeline_plan& line) { line.stages[1].recompute = recomputation::full; }, "another recomputation of stage 1");
  CHECK(texts(p, "hetsched") == list{});
}

TEST_CASE("docs/targets.md has a row for each target, as the data say") {
  std::ifstream file(HETSCHED_SOURCE_DIR "/docs/targets.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(page.empty());
  const auto listed = [](const auto& all, auto text) {
    std::string joined;
    for (const auto& one : all) joined += (joined.empty() ? "" : ", ") + std::string(text(one));
    return joined.empty() ? std::string("-") : joined;
  };
  const auto name = [](const auto& one) { return name_of(one); };
  const auto itself = [](const std::string& one) { return one; };
  for (const auto& t : plan_targets()) {
    std::string most;
    for (const auto& [axis, degree] :
         {std::pair{"context", t.most.context}, {"tensor", t.most.tensor}, {"expert", t.most.expert}})
      if (degree == 1) most += (most.empty() ? "no " : ", ") + std::string(axis);
    if (most.empty()) most = "all";
    if (t.least_replicas > 1) most += "; on several devices " + std::to_string(t.least_replicas) + " replicas or more";
    const std::string cuts = t.cuts == target_cuts::layers   ? "layers"
                             : t.cuts == target_cuts::blocks ? "blocks"
                                                             : "blocks, with the ends";
    const auto number = [](int one) { return std::to_string(one); };
    list together;
    if (t.precisions.size() < 4) together.push_back("in " + listed(t.precisions, name));
    if (t.one_precision) together.push_back("in one precision");
    if (!t.fp16_experts) together.push_back("no expert degrees in fp16");
    if (t.joined_by_nccl) together.push_back("joined by NCCL");
    if (t.hosts_in_a_row) together.push_back("a host's ranks in a row");
    if (!t.further_tokens) together.push_back("no further tokens");
    const auto row = "| `" + t.name + "` | " + t.program + " | `" + t.stack + "` | " + cuts + " | " + listed(t.equal, name) +
                     " | " + most + " | " + listed(t.recompute, name) +
                     (t.recompute_parted ? "" : "; none where a schedule parts backwards") + " | " + listed(t.zero, number) +
                     (t.zero_alone.empty() ? "" : "; on one stage also " + listed(t.zero_alone, number)) + " | " +
                     (t.schedules.empty() ? "all" : listed(t.schedules, name)) + " | " + listed(together, itself) + " |";
    CAPTURE(row);
    CHECK(page.find(row + "\n") != std::string::npos);
  }
}

TEST_CASE("space_of says a target's rules in words") {
  CHECK(space_of(*find_plan_target("hetsched")) == "ZeRO stage 0, 1 or 2");
  CHECK(space_of(*find_plan_target("flagscale")) ==
        "one pipeline; whole blocks, with embedding and head; equal shares; all stages alike in expert and zero; context degrees "
        "up to 1; "
        "recompute none or full; ZeRO stage 0 or 1; under 1f1b; all devices in one precision; no expert degrees in fp16; each "
        "host's ranks in a row; a head that predicts the next token alone");
}
