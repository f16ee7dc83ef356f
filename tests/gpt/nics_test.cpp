// SPDX-License-Identifier: Apache-2.0
#include <train/nics.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/cuda_check/api.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include "../runtime/dense.hpp"

using namespace hetsched;

namespace {

using variables = std::vector<std::pair<std::string, std::string>>;

/// Of a GPU of so many multiprocessors on a machine with a card beside it and a slower one.
train::nccl_rank rank_beside(const std::string& card, double gbit, double host, int multiprocessors) {
  const std::vector<std::string> bridge{"pci0000:15", "0000:15:01.0"};
  train::nccl_rank r;
  r.multiprocessors = multiprocessors;
  r.where = {.host = host,
             .gpu = {.path = bridge, .node = 0},
             .nics = {{.name = card, .port = 1, .bandwidth = gbit_per_s(gbit), .link_layer = "InfiniBand", .place = {bridge, 0}},
                      {.name = "slow", .port = 2, .bandwidth = gbit_per_s(10), .link_layer = "InfiniBand", .place = {}}},
             .is_set = false};
  return r;
}

std::vector<train::nccl_setting> settings(const std::vector<train::nccl_rank>& ranks,
                                          const std::vector<std::pair<int, int>>& joined, const std::string& interface = "") {
  std::vector<train::nccl_setting> found(ranks.size());
  using control = thread_communicator<hetsched::test::matrix<double>>;
  run_on_threads(control::connect(static_cast<int>(ranks.size())), [&](control& end) {
    const auto r = static_cast<std::size_t>(end.rank());
    found[r] = train::choose_nccl(end, ranks[r], joined, interface, 20);
  });
  return found;
}

}  // namespace

TEST_CASE("processes tell NCCL of the cards that the plan's edges want, and all of the same channels") {
  train::nccl_rank host;  // of the first machine
  host.where.host = 1;
  const auto found =
      settings({rank_beside("mlx5_0", 200, 1, 132), rank_beside("mlx5_0", 200, 1, 132), host, rank_beside("ib0", 100, 2, 40)},
               {{0, 1}, {1, 3}, {2, 3}}, "eth1");
  const std::pair<std::string, std::string> met_by{"NCCL_SOCKET_IFNAME", "=eth1"};
  CHECK(found[0].variables == variables{{"NCCL_IB_HCA", "=mlx5_0:1"}, met_by});
  CHECK(found[1].variables == found[0].variables);
  CHECK(found[2].variables == variables{met_by});
  CHECK(found[3].variables == variables{{"NCCL_IB_HCA", "=ib0:1"}, met_by});
  for (const auto& s : found) {
    CHECK(s.channels == 2);
    CHECK(s.told == std::vector<std::string>{
                        "NCCL: 2 channels, while transfers last 5% of the smallest GPU's 40 multiprocessors",
                        "NCCL: rank 0: mlx5_0:1 (200 Gbit/s), for other ranks of its machine",
                        "NCCL: rank 1: mlx5_0:1 (200 Gbit/s), the nearest and fastest of InfiniBand, which all machines have",
                        "NCCL: rank 3: ib0:1 (100 Gbit/s), the nearest and fastest of InfiniBand, which all machines have"});
  }
}

TEST_CASE("processes tell NCCL of no cards where no edge leaves a machine, or a user has chosen") {
  auto own = rank_beside("mlx5_0", 200, 1, 132);
  const auto local = settings({own, own}, {{0, 1}});
  CHECK(local[1].variables.empty());
  CHECK(local[1].channels == 4);
  CHECK(local[1].told.back() == "NCCL: rank 0, 1: no network cards chosen: transfers stay on one machine");
  own.where.is_set = true;
  const auto chosen = settings({own, rank_beside("ib0", 100, 2, 132)}, {{0, 1}});
  CHECK(chosen[1].variables.empty());
  CHECK(chosen[1].told.back() == "NCCL: rank 0, 1: no network cards chosen: NCCL's variables are set");
}

TEST_CASE("a user chooses NCCL's cards by the environment or a file that NCCL reads") {
  const auto file = std::filesystem::temp_directory_path() / ("hetsched-nccl-conf-" + std::to_string(::getpid()));
  const auto write = [&](const std::string& text) { std::ofstream(file) << text << '\n'; };
  ::setenv("NCCL_CONF_FILE", file.c_str(), 1);
  write("NCCL_DEBUG=INFO\n#NCCL_NET=IB");
  CHECK(!train::has_chosen_nics());
  write("NCCL_DEBUG=INFO\nNCCL_NET=Socket");
  CHECK(train::has_chosen_nics());
  train::set_for_nccl({{"NCCL_NET", "IB"}});
  CHECK(std::getenv("NCCL_NET") == nullptr);
  std::filesystem::remove(file);
  CHECK(!train::has_chosen_nics());
  ::setenv("NCCL_IB_HCA", "mlx5_3", 1);
  CHECK(train::has_chosen_nics());
  train::set_for_nccl({{"NCCL_IB_HCA", "=mlx5_0:1"}, {"NCCL_SOCKET_IFNAME", "=lo"}});
  CHECK(std::getenv("NCCL_IB_HCA") == std::string("mlx5_3"));
  CHECK(std::getenv("NCCL_SOCKET_IFNAME") == std::string("=lo"));
  ::unsetenv("NCCL_IB_HCA");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  ::unsetenv("NCCL_CONF_FILE");

  const auto before = train::nccl_host_number();
  CHECK(before == train::nccl_host_number());
  ::setenv("NCCL_HOSTID", "another", 1);
  CHECK(before != train::nccl_host_number());
  ::unsetenv("NCCL_HOSTID");
}

TEST_CASE("a rank of a process has its GPU's multiprocessors, or none on the host") {
  cuda_check::machine machine({.devices = 1});
  const cuda_devices<cuda_check::api> devices(cuda_check::api{&machine});
  CHECK(train::find_nccl_rank(devices, 0).multiprocessors == 10);
  CHECK(train::find_nccl_rank(devices, -1).multiprocessors == 0);
  CHECK(train::find_nccl_rank(devices, 0).where.host == train::find_nccl_rank(devices, -1).where.host);
}
