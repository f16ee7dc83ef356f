// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/inventory/inventory.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/cluster_json.hpp>

using namespace hetsched;

namespace {

std::string problem(const std::function<void()>& call) {
  try {
    call();
  } catch (const input_error& wrong) {
    return wrong.what();
  }
  return "none";
}

// Of a DGX A100 as nvidia-smi prints it, with the terminal's underlining; cards and columns of CPUs shortened.
const std::string dgx_a100 =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-63\t0\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-63\t0\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t64-127\t1\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t64-127\t1\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n";

// Four V100 without a switch: one link to one neighbour, two to the others.
const std::string four_v100 =
    "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\n"
    "GPU0\tX\tNV1\tNV2\tNV2\tPHB\t0-9\n"
    "GPU1\tNV1\tX\tNV2\tNV2\tPHB\t0-9\n"
    "GPU2\tNV2\tNV2\tX\tNV1\tSYS\t0-9\n"
    "GPU3\tNV2\tNV2\tNV1\tX\tSYS\t0-9\n"
    "mlx5_0\tPHB\tPHB\tSYS\tSYS\tX\n";

const std::string bridged_pairs =
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n"
    "GPU0\tX\tNV4\tPHB\tPHB\t0-9\n"
    "GPU1\tNV4\tX\tPHB\tPHB\t0-9\n"
    "GPU2\tPHB\tPHB\tX\tNV4\t0-9\n"
    "GPU3\tPHB\tPHB\tNV4\tX\t0-9\n";

const std::string nccl_xml = R"(<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="49">
    <pci busid="0000:03:00.0" class="0x060400" vendor="0x1000" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:0f:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:0f:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:07:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700" vendor="0x15b3" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.000000" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
)";

const std::string ibstat = R"(CA 'mlx5_0'
	CA type: MT4123
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 200
		Link layer: InfiniBand
CA 'mlx5_1'
	Port 1:
		State: Down
		Rate: 40
CA 'mlx5_2'
	Port 1:
		State: Active
		Rate: 100
)";

}  // namespace

TEST_CASE("hosts as Slurm lists them") {
  const auto groups = parse_host_list("gpu[01-03,12],old[9-10], dgx-a100-1,head");
  REQUIRE(groups.size() == 4);
  CHECK(groups[0].name == "gpu");
  CHECK(groups[0].hosts == std::vector<std::string>{"gpu01", "gpu02", "gpu03", "gpu12"});
  CHECK(groups[1].hosts == std::vector<std::string>{"old9", "old10"});
  CHECK(groups[2].name == "dgx-a100");
  CHECK(groups[3].name == "head");
  CHECK(parse_host_list("r[1-2]n[1-2].lab").at(1).hosts == std::vector<std::string>{"r2n1.lab", "r2n2.lab"});
  CHECK(parse_host_list("17").front().name == "17");
  for (const auto* bad :
       {"", ",", "gpu[1-", "gpu1]", "gpu[a-b]", "gpu[2-1]", "gpu[]", "gpu1,gpu1", "gpu1 gpu2", "g[0-99999999]"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)parse_host_list(bad), input_error);
  }
  CHECK(problem([] { (void)parse_host_list("gpu[1-x]"); }) ==
        "host list: \"gpu[1-x]\": expected ranges of numbers in brackets, as in [01-08,12]");
}

TEST_CASE("hosts as mpirun lists them") {
  const auto groups = parse_hostfile("# the lab\r\ngpu01 slots=8 max_slots=8\ngpu02:8\nbox\n\n", "hosts");
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].hosts == std::vector<std::string>{"gpu01", "gpu02"});
  CHECK(groups[0].slots == 8);
  CHECK(groups[1].slots == 0);
  const auto numbered = parse_hostfile("fe80::1 slots = 4\nfe80::2 slots\t=4\n[fe80::a]:4\n::1\n10.0.0.7 slots= 2\n", "hosts");
  REQUIRE(numbered.size() == 3);
  CHECK(numbered[0].name == "fe80");
  CHECK(numbered[0].hosts == std::vector<std::string>{"fe80::1", "fe80::2", "fe80::a"});
  CHECK(numbered[0].slots == 4);
  CHECK(numbered[1].name == "::");
  CHECK(numbered[2].slots == 2);
  CHECK(problem([] { (void)parse_hostfile("fe80::g slots=4\n", "hosts"); }) ==
        "hosts: line 1: \"fe80::g\" is no name of a host, expected letters, digits, - _ .");
  CHECK(problem([] { (void)parse_hostfile("gpu1 slots=8\ngpu2 slots=4\n", "hosts"); }) ==
        "hosts: line 2: host gpu2 has 4 slots, and gpu1, which is alike, 8");
  CHECK(problem([] { (void)parse_hostfile("gpu1 slots=many\n", "hosts"); }) == "hosts: line 1: \"many\" is no number of slots");
  CHECK(problem([] { (void)parse_hostfile("<!DOCTYPE html>\n", "hosts"); }) ==
        "hosts: line 1: found \"html>\" behind a host, expected slots=N");
  CHECK(problem([] { (void)parse_hostfile("gpu1,gpu2\n", "hosts"); }) ==
        "hosts: line 1: \"gpu1,gpu2\" is no name of a host, expected letters, digits, - _ .");
  CHECK(problem([] { (void)parse_hostfile("# none\n", "hosts"); }) == "hosts: expected hosts, one on each line");
}

TEST_CASE("GPUs as nvidia-smi lists them") {
  const auto names =
      parse_gpu_list("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5a)\nGPU 1: Tesla V100-SXM2-16GB (UUID: GPU-6b)\n", "gpus.txt");
  CHECK(names == std::vector<std::string>{"NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"});
  CHECK(problem([] {
          (void)parse_gpu_list("command not found\n", "gpus.txt");
        }).starts_with("gpus.txt: expected lines as nvidia-smi"));
  CHECK(problem([] {
          (void)parse_gpu_list("GPU 0: NVIDIA A100 (UUID: GPU-5a)\n  MIG 3g.20gb Device 0: (UUID: MIG-1)\n", "gpus.txt");
        }).starts_with("gpus.txt: GPUs in slices (MIG)"));
}

TEST_CASE("what joins the GPUs of a host") {
  const auto dgx = parse_topology(dgx_a100, "topo.txt");
  CHECK(dgx == host_topology{.gpus = 4, .nvlinks = 12, .nics_gbit = {0, 0}});
  CHECK(parse_topology(four_v100, "topo.txt") == host_topology{.gpus = 4, .nvlinks = 5, .nics_gbit = {0}});
  CHECK(parse_topology(bridged_pairs, "topo.txt") == host_topology{.gpus = 4, .in_pairs = true});
  const auto two = parse_topology(nccl_xml, "topo.xml");
  CHECK(two.gpus == 2);
  CHECK(two.nvlinks == 4);
  CHECK(two.pcie_gbit_per_s == doctest::Approx(8 * 16.0 * 128 / 130));
  CHECK(two.nics_gbit == std::vector<double>{200});
  CHECK(problem([] { (void)parse_topology("No devices were found\n", "t"); }).starts_with("t: expected the matrix"));
  CHECK(problem([] { (void)parse_topology("\tGPU0\tGPU1\nGPU0\tX\tNVx\nGPU1\tNVx\tX\n", "t"); }) ==
        "t: GPU0: NVx is no number of NVLinks");
  CHECK(problem([] { (void)parse_topology("\tGPU0\tGPU1\nGPU0\tX\n", "t"); }) == "t: expected rows of 2 GPUs, found 1");
  CHECK(problem([] { (void)parse_topology("\tGPU0\tGPU1\nGPU0\tX\nGPU1\tSYS\tX\n", "t"); }) ==
        "t: GPU0: expected a cell for each of 2 GPUs");
  CHECK(problem([] { (void)parse_topology("<system version=\"1\"/>", "t"); }).starts_with("t: expected a topology of NCCL"));
  CHECK(parse_ibstat(ibstat, "ib") == std::vector<double>{200, 100});
  CHECK(problem([] { (void)parse_ibstat("State: Down\n", "ib"); }).starts_with("ib: expected active ports"));
}

TEST_CASE("a cluster of what is known, with its guesses marked") {
  const auto groups = parse_host_list("gpu[01-04],old[1-2]");
  const std::vector<std::string> a100(4, "NVIDIA A100-SXM4-80GB");
  const std::vector<std::string> old{"Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB", "Tesla T4"};
  const auto made =
      make_inventory(groups, {{.gpus = a100, .topology = parse_topology(dgx_a100, "t"), .nics_gbit = {200, 200}}, {.gpus = old}});
  const auto& c = made.hardware;
  REQUIRE(c.subclusters.size() == 3);
  CHECK(c.subclusters[0].name == "gpu");
  CHECK(c.subclusters[0].nodes == 4);
  CHECK(c.subclusters[0].devices_per_node == 4);
  CHECK(c.subclusters[0].intra_node.bandwidth == gbit_per_s(2400));
  CHECK(c.subclusters[0].inter_node.bandwidth == gbit_per_s(200));
  CHECK(c.subclusters[0].nics == 2);
  CHECK(c.subclusters[1].name == "old-V100-SXM2-16GB");
  CHECK(c.subclusters[1].devices_per_node == 2);
  CHECK(c.subclusters[1].intra_node.bandwidth == gbit_per_s(126));
  CHECK(c.subclusters[2].devices_per_node == 1);
  REQUIRE(c.links.size() == 3);
  CHECK(c.between(0, 1)->bandwidth == gbit_per_s(10));
  CHECK(c.between(1, 2)->bandwidth == gbit_per_s(126));  // in one host
  // What is known is no guess.
  for (const auto& g : made.guesses) CHECK(g.find("/subclusters/0/") == std::string::npos);
  REQUIRE(made.guesses.size() == 6);
  CHECK(made.guesses[0].starts_with("/subclusters/1/intra_node: guessed, 16 lanes of PCIe of its generation"));
  CHECK(made.guesses[1].starts_with("/subclusters/1/inter_node: guessed, Ethernet of 10 Gbit/s"));

  const auto read = parse_cluster(to_json(made), "cluster.json");
  REQUIRE(read.subclusters.size() == 3);
  CHECK(read.subclusters[0] == c.subclusters[0]);
  CHECK(read.subclusters[1] == c.subclusters[1]);
  CHECK(read.subclusters[2].device == c.subclusters[2].device);
  CHECK(read.links == c.links);

  CHECK(problem([&] {
          (void)make_inventory(groups, {{.gpus = a100}, {}});
        }) == "hosts old: nothing says what their devices are (--gpus, --device)");
  CHECK(problem([&] {
          (void)make_inventory(groups, {{.gpus = {"A1000000"}}, {.gpus = old}});
        }).starts_with("hosts gpu: there is no device \"A1000000\"; did you mean"));
  CHECK(problem([&] {
          (void)make_inventory(groups, {{.gpus = old, .topology = parse_topology(dgx_a100, "t")}, {.gpus = old}});
        }) == "hosts gpu: 3 devices, and a topology of 4");
}
