// SPDX-License-Identifier: Apache-2.0
// hetsched-export as a user calls it.
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/schedule/text.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

// A plan of equal stages by hand.
std::string plan_text(int layers, int stages, int data, int tensor, const std::string& schedule, int microbatches = 8,
                      int size = 4) {
  auto all = nlohmann::ordered_json::array();
  const int per = layers / stages, devices = data * tensor;
  for (int s = 0; s < stages; ++s) {
    all.push_back(
        {{"layers", {s * per, s + 1 == stages ? layers - 1 : (s + 1) * per - 1}},
         {"devices", {{{"subcluster", "a"}, {"first_device", s * devices}, {"nodes", 1}, {"devices_per_node", devices}}}},
         {"degrees", {{"data", data}, {"context", 1}, {"tensor", tensor}}}});
  }
  return nlohmann::ordered_json{
      {"format", "hetsched/plan"},
      {"version", 2},
      {"subclusters", {{{"name", "a"}, {"devices", 64}}}},
      {"pipelines",
       {{{"microbatches", microbatches}, {"microbatch_size", size}, {"stages", all}, {"schedule", {{"name", schedule}}}}}}}
      .dump();
}

// A layout as Megatron-LM reads it: commas are dropped, (...)*n and x*n unrolled, stages split at '|'.
std::vector<std::string> unrolled(std::string text) {
  text = std::regex_replace(text, std::regex(",|\\s"), "");
  const auto unroll = [&](const std::regex& pattern) {
    std::smatch m;
    while (std::regex_search(text, m, pattern)) {
      std::string repeated;
      for (int i = std::stoi(m[2]); i > 0; --i) repeated += m[1];
      text = m.prefix().str() + repeated + m.suffix().str();
    }
  };
  unroll(std::regex("\\(([^()]*)\\)\\*(\\d+)"));
  unroll(std::regex("([^()|*])\\*(\\d+)"));
  std::vector<std::string> stages{""};
  for (const char c : text)
    if (c == '|')
      stages.emplace_back();
    else
      stages.back() += c;
  return stages;
}

}  // namespace

TEST_CASE("the layout reader of these tests reads Megatron-LM's own example") {
  const auto stages = unrolled("Et*3|(tt|)*29,m|L");
  REQUIRE(stages.size() == 32);
  CHECK(stages[0] == "Ettt");
  CHECK(stages[1] == "tt");
  CHECK(stages[30] == "m");
  CHECK(stages[31] == "L");
}

TEST_CASE("hetsched-export --to megatron: every block once, in the plan's stages, and the sizes") {
  const workplace w;
  for (const auto& [layers, stages, schedule, virtual_stages] :
       {std::tuple{26, 4, "1f1b", 4}, std::tuple{8, 8, "1f1b", 8}, std::tuple{34, 2, "interleaved_1f1b", 4},
        std::tuple{3, 1, "1f1b", 1}}) {
    CAPTURE(layers);
    CAPTURE(stages);
    w.put("p.json", plan_text(layers, stages, 2, 4, schedule));
    const auto run = w.run("hetsched-export --plan p.json --to megatron --out m");
    REQUIRE(run.status == 0);
    CHECK(run.errors == "");
    const auto parts = unrolled(w.get("m/pipeline_layout.txt"));
    CHECK(parts.size() == static_cast<std::size_t>(virtual_stages));
    std::string joined;
    for (const auto& part : parts) joined += part;
    CHECK(joined == "E" + std::string(static_cast<std::size_t>(layers) - 2, 't') + "L");
    const auto script = w.get("m/launch.sh");
    for (const auto& flag : {"--tensor-model-parallel-size 4", "--micro-batch-size 2", "--global-batch-size 32"})
      CHECK(script.find(flag) != std::string::npos);
    CHECK(script.find("--pipeline-model-parallel-size " + std::to_string(stages)) != std::string::npos);
    CHECK(std::system(("bash -n " + w.path("m/launch.sh")).c_str()) == 0);
    const auto ranks = nlohmann::json::parse(w.get("m/ranks.json"))["ranks"];
    REQUIRE(ranks.size() == static_cast<std::size_t>(8 * stages));
    // Tensor ranks lie next to each other, then data, then the pipeline.
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      CHECK(ranks[r]["device"] == r);
      CHECK(ranks[r]["tensor"] == r % 4);
      CHECK(ranks[r]["data"] == r / 4 % 2);
      CHECK(ranks[r]["pipeline_rank"] == r / 8);
    }
  }
}

TEST_CASE("hetsched-export: what a target does its own way is said, as JSON too") {
  const workplace w;
  w.put("p.json", plan_text(12, 2, 2, 2, "h1f1b"));
  auto run = w.run("hetsched-export --plan p.json --to megatron --out m");
  REQUIRE(run.status == 0);
  CHECK(run.errors == "hetsched-export: Megatron-LM runs its own 1F1B, not the plan's schedule h1f1b\n");
  run = w.run("hetsched-export --plan p.json --to megatron --out m --json");
  CHECK(nlohmann::json::parse(run.output)["remarks"].size() == 1);
}

TEST_CASE("hetsched-export --to torch: cuts by module, and the schedule that the plan runs") {
  const workplace w;
  w.put("p.json", plan_text(12, 4, 2, 1, "zb_h1"));
  REQUIRE(w.run("hetsched-export --plan p.json --to torch --out t").status == 0);
  const auto stages = nlohmann::json::parse(w.get("t/stages.json"));
  CHECK(stages["data"] == 2);
  int layer = 0;
  for (const auto& s : stages["stages"]) {
    CHECK(s["first_layer"] == layer);
    layer = s["last_layer"].get<int>() + 1;
    CHECK(s["modules"].size() == 3);
  }
  CHECK(layer == 12);
  const auto order = parse_schedule_csv(w.get("t/schedule.csv"));
  CHECK(order.ranks == 4);
  CHECK(order.microbatches == 8);
  for (const auto& l : order.lanes) CHECK(l.actions.size() == 24);  // forward, and both halves of the backward
  CHECK(std::system(("python3 -m py_compile " + w.path("t/run.py")).c_str()) == 0);
  REQUIRE(w.run("hetsched-export --plan p.json --to csv --out c").status == 0);
  CHECK(w.get("c/schedule.csv").find("0F0") != std::string::npos);
}

// Two hosts of eight devices and two of four, all in use.
void put_hosts(const workplace& w) {
  w.put("c.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": [
    {"name": "a", "device": "A100-SXM4-80GB", "nodes": 2, "devices_per_node": 8, "intra_node": {"gbit_per_s": 2400, "latency_us": 3},
     "inter_node": {"gbit_per_s": 100, "latency_us": 5}},
    {"name": "b", "device": "A100-SXM4-40GB", "nodes": 2, "devices_per_node": 4, "intra_node": {"gbit_per_s": 2400, "latency_us": 3},
     "inter_node": {"gbit_per_s": 100, "latency_us": 5}}],
    "links": [{"between": ["a", "b"], "gbit_per_s": 50, "latency_us": 20}]})");
  auto plan = nlohmann::json::parse(plan_text(12, 3, 8, 1, "1f1b", 8, 8));
  plan["subclusters"] = {{{"name", "a"}, {"devices", 16}}, {{"name", "b"}, {"devices", 8}}};
  plan["setting"] = {
      {"costs", "tile"}, {"granularity", "block"}, {"sequence", 128}, {"precision", "bf16"}, {"attention", "flash"}};
  auto& stages = plan["pipelines"][0]["stages"];
  stages[2]["devices"] = {{{"subcluster", "b"}, {"first_device", 0}, {"nodes", 2}, {"devices_per_node", 4}}};
  w.put("p.json", plan.dump());
}

// Programs in bin/ that write what they are called with, in place of those that need GPUs and other hosts.
void put_programs(const workplace& w, int gpus, int mebibytes, const std::string& capability) {
  std::filesystem::create_directory(w.path("bin"));
  std::string listed;
  for (int g = 0; g < gpus; ++g)
    listed += std::to_string(g) + ", NVIDIA A100-SXM4-80GB, " + std::to_string(mebibytes) + ", " + capability + "\n";
  w.put("bin/nvidia-smi", "#!/bin/bash\ncat <<'END'\n" + listed + "END\n");
  w.put("bin/torchrun", "#!/bin/bash\necho \"$CUDA_VISIBLE_DEVICES|$*\" >> \"$LOG\"\n");
  w.put("bin/ssh", "#!/bin/bash\nshift\nbash -c \"$*\"\n");
  w.put("bin/srun", "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n\"$@\"\n");
  w.put("bin/mpirun", R"(#!/bin/bash
one=()
for word in "$@" :; do
  if [ "$word" = : ]; then "${one[@]}"; one=()
  elif [ "$word" = env ] || [ ${#one[@]} != 0 ]; then one+=("$word"); fi
done
)");
  for (const auto* name : {"nvidia-smi", "torchrun", "ssh", "srun", "mpirun"})
    std::filesystem::permissions(w.path(std::string("bin/") + name), std::filesystem::perms::owner_all);
}

int shell(const workplace& w, const std::string& line) {
  const int status = std::system(
      ("cd '" + w.path("") + "' && PATH=\"$PWD/bin:$PATH\" LOG=\"$PWD/log\" bash -c '" + line + "' > printed 2> complained")
          .c_str());
  return WEXITSTATUS(status);
}

// The devices of each rank, host by host, as torchrun hands ranks out: by node rank, after those of lower ones.
std::vector<std::string> ranks_of(const std::string& log) {
  std::map<int, std::pair<int, std::string>> starts;  // by node rank: processes, devices
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    REQUIRE(std::regex_search(line, found,
                              std::regex("^(.*)\\|--nnodes 4 --node-rank (\\d) --nproc-per-node (\\d+) --master-addr (\\S+)")));
    starts[std::stoi(found[2])] = {std::stoi(found[3]), found[1]};
    CHECK(found[4] == "a-0");
  }
  std::vector<std::string> ranks;
  for (const auto& [node, start] : starts) {
    std::istringstream devices(start.second);
    int count = 0;
    for (std::string device; std::getline(devices, device, ','); ++count) ranks.push_back(std::to_string(node) + ":" + device);
    CHECK(count == start.first);
  }
  return ranks;
}

TEST_CASE("launch.sh and start_all.sh give each device its rank, on hosts of 8, 8, 4 and 4") {
  const workplace w;
  put_hosts(w);
  put_programs(w, 8, 81920, "8.0");
  REQUIRE(w.run("hetsched-export --plan p.json --cluster c.json --to megatron --out m").status == 0);
  std::vector<std::string> expected;
  for (int node = 0; node < 4; ++node)
    for (int device = 0; device < (node < 2 ? 8 : 4); ++device)
      expected.push_back(std::to_string(node) + ":" + std::to_string(device));
  for (const auto* how : {"ssh", "srun", "mpirun"}) {
    CAPTURE(how);
    w.put("log", "");
    CHECK(shell(w, std::string("bash m/start_all.sh ") + how + " --train-iters 3") == 0);
    CHECK(w.get("complained") == "");
    CHECK(ranks_of(w.get("log")) == expected);
    CHECK(w.get("log").find("--use-distributed-optimizer") == std::string::npos);
    CHECK(w.get("log").find("--pipeline-model-parallel-layout Et*3|t*4|t*3L ") != std::string::npos);
    CHECK(w.get("log").find("--train-iters 3\n") != std::string::npos);
  }
  CHECK(shell(w, "bash m/start_all.sh rsh") == 2);
  CHECK(w.get("complained").find("rsh is none of ssh, srun, mpirun") != std::string::npos);
  // Hosts have the names that their owner puts there.
  const auto hosts = std::regex_replace(w.get("m/hosts.txt"), std::regex("a-0 "), "node17 ");
  w.put("m/hosts.txt", hosts);
  w.put("log", "");
  CHECK(shell(w, "bash m/launch.sh 3") == 0);
  CHECK(w.get("log").find("--node-rank 3 --nproc-per-node 4 --master-addr node17") != std::string::npos);
}

TEST_CASE("check.py ends a start on devices that the plan was not made for, and says why") {
  const workplace w;
  put_hosts(w);
  put_programs(w, 8, 81920, "8.0");
  REQUIRE(w.run("hetsched-export --plan p.json --cluster c.json --to megatron --out m").status == 0);
  const auto said = [&](const char* what) { return w.get("complained").find(what) != std::string::npos; };
  CHECK(shell(w, "bash m/launch.sh 0") == 0);
  put_programs(w, 4, 81920, "8.0");
  CHECK(shell(w, "bash m/launch.sh 0") == 1);
  CHECK(said("check.py: the plan wants GPU 4 of a-0, and nvidia-smi lists 4 GPUs"));
  CHECK(shell(w, "bash m/launch.sh 2") == 0);
  put_programs(w, 8, 40960, "8.0");
  CHECK(shell(w, "bash m/launch.sh 1") == 1);
  CHECK(said("check.py: the plan counts on 80.0 GiB of GPU 0 of a-1, and NVIDIA A100-SXM4-80GB has 40.0"));
  CHECK(shell(w, "bash m/launch.sh 3") == 0);
  put_programs(w, 8, 81920, "7.0");
  CHECK(shell(w, "bash m/launch.sh 0") == 1);
  CHECK(said("computes in bf16 on GPU 0 of a-0, and NVIDIA A100-SXM4-80GB has none"));
  w.put("bin/nvidia-smi", "#!/bin/bash\nexit 9\n");
  CHECK(shell(w, "bash m/launch.sh 0") == 0);
  CHECK(said("GPUs were not checked"));
}

TEST_CASE("every script that is exported is one, and run.py of DeepSpeed cuts where the plan does") {
  const workplace w;
  put_hosts(w);
  for (const auto* to : {"torch", "torchtitan", "flagscale", "deepspeed", "megatron"}) {
    CAPTURE(to);
    const auto run = w.run(std::string("hetsched-export --plan p.json --cluster c.json --out x --to ") + to);
    CAPTURE(run.errors);
    REQUIRE(run.status == 0);
    CHECK(shell(w, "for f in x/*.sh; do [ ! -e $f ] || bash -n $f || exit 1; done; python3 -m py_compile x/*.py") == 0);
    if (std::string(to) != "deepspeed") std::filesystem::remove_all(w.path("x"));
    if (std::string(to) == "deepspeed") std::filesystem::rename(w.path("x"), w.path("d"));
  }
  // Of DeepSpeed what runtime/pipe/module.py does as it makes a module, in its order.
  w.put("test.py", R"(import sys, types
class PipelineModule:
    def __init__(self, layers, num_stages, loss_fn=None, stage=0):
        self.stage_id = stage
        self._layer_specs = list(layers)
        self._partition_layers(method="parameters")
        self.activation_checkpoint_interval = 0
        self._build()
    def _build(self):
        self.built = self._layer_specs[self._local_start:self._local_stop]
    def _set_bounds(self, start=None, stop=None):
        self._local_start, self._local_stop = start, stop
for name, has in (("torch", {}), ("deepspeed", {}), ("deepspeed.pipe", {"PipelineModule": PipelineModule})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(has)
sys.path.insert(0, "d")
import run
parts = [run.PlannedModule(range(12), 3, stage=s) for s in range(3)]
assert parts[0].parts == [0, 4, 8, 12], parts[0].parts
assert [p.built for p in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
assert [p.activation_checkpoint_interval for p in parts] == [0, 0, 0]
try:
    run.PlannedModule(range(11), 3)
except SystemExit as wrong:
    assert str(wrong) == "the plan has 12 layers, the model 11", wrong
else:
    raise SystemExit("a model of another length was taken")
)");
  CHECK(shell(w, "python3 test.py") == 0);
  CHECK(w.get("complained") == "");
}

TEST_CASE("torchtitan gets a file, or a function of Python that reads it") {
  const workplace w;
  auto plan = nlohmann::json::parse(plan_text(12, 2, 2, 1, "1f1b"));
  plan["setting"] = {
      {"costs", "tile"}, {"granularity", "block"}, {"sequence", 128}, {"precision", "bf16"}, {"attention", "flash"}};
  for (auto& stage : plan["pipelines"][0]["stages"]) stage["zero"] = 2, stage["recompute"] = "full";
  w.put("p.json", plan.dump());
  REQUIRE(w.run("hetsched-export --plan p.json --to torchtitan --out t").status == 0);
  put_programs(w, 8, 81920, "8.0");
  CHECK(shell(w, "bash t/launch.sh --model.name llama3") == 0);
  CHECK(std::regex_search(w.get("log"),
                          std::regex("-m torchtitan.train --job.config_file \\S+/t/torchtitan.toml "
                                     "--parallelism.pipeline_parallel_schedule_csv \\S+/t/schedule.csv --model.name llama3\n")));
  CHECK(shell(w, "TORCHTITAN_CONFIG=users:base bash t/launch.sh") == 0);
  CHECK(w.get("log").find("-m torchtitan.train --module torchtitan_plan --config planned\n") != std::string::npos);
  // Of version 0.3 what the function touches.
  w.put("users.py", R"(class section:
    def __init__(self, *names): self.__dict__.update(dict.fromkeys(names))
class base:
    def __init__(self):
        self.training = section("local_batch_size", "global_batch_size", "seq_len", "mixed_precision_param", "mixed_precision_reduce")
        self.parallelism = section(*(f"{d}_degree" for d in ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel",
            "context_parallel", "expert_parallel", "pipeline_parallel")), "fsdp_reshard_after_forward", "pipeline_parallel_schedule",
            "pipeline_parallel_microbatch_size", "module_fqns_per_model_part")
)");
  w.put("test.py", R"(import os, sys, types
class FullAC:
    class Config: pass
for name in ("torchtitan", "torchtitan.distributed", "torchtitan.distributed.activation_checkpoint"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[name].FullAC = sys.modules[name].SelectiveAC = FullAC
sys.path.insert(0, "t")
os.environ["TORCHTITAN_CONFIG"] = "users:base"
import torchtitan_plan
config = torchtitan_plan.planned()
assert config.training.local_batch_size == 16 and config.training.global_batch_size == 32
assert config.parallelism.module_fqns_per_model_part == [["tok_embeddings", *(f"layers.{i}" for i in range(5))],
    [*(f"layers.{i}" for i in range(5, 10)), "norm", "lm_head"]]
assert config.parallelism.pipeline_parallel_degree == 2 and config.parallelism.pipeline_parallel_microbatch_size == 2
assert os.path.isfile(config.parallelism.pipeline_parallel_schedule_csv)
assert isinstance(config.activation_checkpoint, FullAC.Config) and config.training.disable_cuda_graphs
)");
  CHECK(shell(w, "python3 test.py") == 0);
  CHECK(w.get("complained") == "");
}

TEST_CASE("a plan that was predicted says what it is worth, and one of devices that the cluster lacks is not exported") {
  const workplace w;
  put_hosts(w);
  auto plan = nlohmann::json::parse(w.get("p.json"));
  plan["predicted"] = {{"iteration_s", 0.5}, {"lower_bound_s", 0.4}, {"samples_per_s", 128},
                       {"mfu", 0.3},         {"load_balance", 0.9},  {"period_s", 0.05}};
  plan["setting"]["stack"] = "hetsched";
  w.put("p.json", plan.dump());
  auto run = w.run("hetsched-export --plan p.json --cluster c.json --to megatron --out m");
  CAPTURE(run.errors);
  REQUIRE(run.status == 0);
  CHECK(run.output.find("the plan is worth 500 ms an iteration, 128 samples/s, as stack hetsched has it\n") == 0);
  CHECK(run.errors.find("hetsched-plan --stack megatron") != std::string::npos);
  plan["pipelines"][0]["stages"][2]["devices"][0]["first_device"] = 4;
  w.put("p.json", plan.dump());
  run = w.run("hetsched-export --plan p.json --cluster c.json --to megatron --out m");
  CHECK(run.status == 2);
  CHECK(run.errors.find("p.json") != std::string::npos);
}

TEST_CASE("hetsched-export: what a target cannot express is named, and nothing is written") {
  const workplace w;
  const auto refused = [&](const std::string& to, const std::string& why, int status = 1) {
    const auto run = w.run("hetsched-export --plan p.json --to " + to + " --out x");
    CAPTURE(why);
    CHECK(run.status == status);
    CHECK(run.output == "");
    CHECK(run.errors.find(why) != std::string::npos);
    CHECK(w.files().count("x") == 0);
  };
  w.put("p.json", plan_text(12, 2, 1, 4, "1f1b"));
  refused("torch", "stage 0: tensor degree 4, expected 1; stage 1: tensor degree 4, expected 1");
  refused("torch", "hetsched-plan --for torch");
  refused("caffe", "--to", 2);
  w.put("p.json", plan_text(12, 2, 1, 1, "zb_v"));
  refused("megatron", "schedule zb_v, expected 1f1b or interleaved_1f1b");
  w.put("p.json", plan_text(12, 2, 1, 1, "dualpipe"));
  refused("torch", "schedule dualpipe, expected");
  auto uneven = nlohmann::json::parse(plan_text(12, 2, 4, 1, "1f1b"));
  uneven["pipelines"][0]["stages"][1]["degrees"] = {{"data", 1}, {"context", 1}, {"tensor", 4}};
  w.put("p.json", uneven.dump());
  refused("megatron", "stage 1: tensor degree 4, expected 1 as in stage 0");
  uneven = nlohmann::json::parse(plan_text(12, 2, 1, 1, "1f1b"));
  uneven["setting"] = {
      {"costs", "tile"}, {"granularity", "sublayer"}, {"sequence", 128}, {"precision", "fp16"}, {"attention", "flash"}};
  uneven["pipelines"][0]["stages"][1]["layers"] = {6, 13};
  w.put("p.json", uneven.dump());
  refused("megatron", "stage 1: a begin inside block 1");
  w.put("p.json", "{}");
  refused("megatron", "p.json", 2);
}
