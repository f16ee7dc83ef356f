// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>

#include "workplace.hpp"

using namespace hetsched::test;

namespace {

const std::string gpus =
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    "GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-3)\nGPU 3: NVIDIA A100-SXM4-80GB (UUID: GPU-4)\n";
const std::string topology =
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPXB\t0-63\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPXB\t0-63\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\t0-63\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\t0-63\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\n";

}  // namespace

TEST_CASE("from what Slurm and nvidia-smi say to a plan") {
  const workplace w;
  w.put("gpus.txt", gpus);
  w.put("topo.txt", topology);
  const auto made = w.run(
      "hetsched-cluster --from-slurm 'gpu[01-02],old1' --gpus gpu=gpus.txt --topology gpu=topo.txt --network gpu=200 "
      "--device old=V100-SXM2-16GB:2 --out cluster.json");
  CAPTURE(made.errors);
  REQUIRE(made.status == 0);
  CHECK(made.errors.find("/subclusters/1/intra_node: guessed, 16 lanes of PCIe of its generation") != std::string::npos);
  CHECK(made.errors.find("/subclusters/0") == std::string::npos);
  const auto file = nlohmann::json::parse(w.get("cluster.json"));
  CHECK(file.at("subclusters").at(0).at("intra_node").at("gbit_per_s") == 2400);
  CHECK(file.at("subclusters").at(0).at("inter_node").at("gbit_per_s") == 200);
  CHECK(file.at("notes").size() == 2);
  w.put("model.json",
        R"({"format": "hetsched/model", "version": 1,
            "transformer": {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000, "sequence": 512, "dtype": "fp16"}})");
  const auto plan =
      w.run("hetsched-plan --cluster cluster.json --model model.json --global-batch 32 --microbatch-size 4 --out plan.json");
  CAPTURE(plan.errors);
  CHECK(plan.status == 0);

  const auto json = w.run("hetsched-cluster --device T4:2 --out t4.json --json");
  REQUIRE(json.status == 0);
  CHECK(nlohmann::json::parse(json.output) ==
        nlohmann::json{{"files", {"t4.json"}}, {"guesses", {nlohmann::json::parse(w.get("t4.json")).at("notes").at(0)}}});

  // One host, printed.
  const auto one = w.run("hetsched-cluster --gpus gpus.txt --topology topo.txt");
  REQUIRE(one.status == 0);
  CHECK(one.errors.empty());
  CHECK(nlohmann::json::parse(one.output).at("subclusters").at(0).at("devices_per_node") == 4);
}

TEST_CASE("hosts of which nothing is known, and options that say it twice") {
  const workplace w;
  w.put("gpus.txt", gpus);
  w.put("hosts", "gpu1 slots=4\ngpu2 slots=4\n");
  const auto problem = [&](const std::string& options) {
    const auto r = w.run("hetsched-cluster " + options);
    CHECK(r.status == 2);
    return r.errors;
  };
  const auto says = [&](const std::string& options, const std::string& what) {
    CAPTURE(options);
    CHECK(problem(options).find(what) != std::string::npos);
  };
  says("", "hosts host: nothing says what their devices are (--gpus, --device)");
  says("--from-slurm gpu1 --hostfile hosts --gpus gpus.txt", "expected one of them");
  says("--hostfile hosts --gpus gpus.txt --device A100", "--gpus says what hosts gpu have");
  says("--hostfile hosts --gpus gpu=gpus.txt --gpus gpu=gpus.txt", "given twice for hosts gpu");
  says("--hostfile hosts --gpus old=gpus.txt", "there are no hosts \"old\"; known: gpu");
  says("--hostfile hosts --device T4:0", "expected NAME or NAME:COUNT");
  says("--hostfile hosts --device T4:2", "2 devices, and 4 slots");
  says("--hostfile hosts --device T4 --network fast", "expected Gbit/s");
  says("--hostfile hosts --gpus gpus.txt --out gpus.txt", "gpus.txt");
  CHECK(w.get("gpus.txt") == gpus);
  CHECK(w.run("hetsched-cluster --hostfile hosts --device T4 --network 2x100").status == 0);
}
