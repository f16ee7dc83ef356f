// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/find_nics.hpp>
#include <hetsched/cuda/hardware.hpp>
#include <hetsched/cuda_check/api.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace hetsched;

TEST_CASE("a device is described by what CUDA knows of it") {
  cuda_check::machine machine({.devices = 3});
  const cuda_devices<cuda_check::api> devices(cuda_check::api{&machine});
  const auto d = describe_device(devices, 2);
  CHECK(d.name == "strict device of kind 1");
  CHECK(d.memory_bytes == 16 * gib);
  CHECK(d.multiprocessors == 11);
  CHECK(d.clock_hz == 1e9);
  CHECK(d.memory_bandwidth == 0);  // not known
  CHECK_THROWS_AS((void)describe_device(devices, 3), cuda_error);
}

TEST_CASE("[threads] copies within and between devices take as long as the machine takes") {
  constexpr double s_per_byte = 1e-9;
  cuda_check::machine machine({.devices = 2, .most_turns_late = 0, .copy_s_per_byte = s_per_byte});
  {
    cuda_devices<cuda_check::api> devices(cuda_check::api{&machine});
    const copy_options how{.bytes = {1000, 4'000'000}, .warmup = 1, .repeats = 5};
    for (const int from : {0, 1}) {
      const auto samples = profile_copies(devices, from, 1, how);
      REQUIRE(samples.size() == 2);
      CHECK(samples[1].bytes == 4'000'000);
      CHECK(samples[1].took.median_s >= 0.75 * 4e6 * s_per_byte);  // the least that the fake takes
      CHECK(samples[0].took.median_s < samples[1].took.median_s);
    }
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

TEST_CASE("network cards are those that Linux lists as active, with their rates, kinds and places") {
  namespace fs = std::filesystem;
  const auto folder = fs::temp_directory_path() / ("hetsched-nics-" + std::to_string(::getpid()));
  const auto write = [](const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  };
  const auto port = [&](const std::string& name, const std::string& number, const std::string& state, const std::string& rate) {
    const auto here = folder / name / "ports" / number;
    write(here / "state", state);
    write(here / "rate", rate);
  };
  port("mlx5_1", "1", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  port("mlx5_0", "2", "4: ACTIVE", "2.5 Gb/sec (1X SDR)");
  port("mlx5_0", "1", "1: DOWN", "10 Gb/sec (4X SDR)");
  port("mlx5_2", "1", "4: ACTIVE", "unknown");
  port("mlx5_2", "x", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  write(folder / "mlx5_1/ports/1/link_layer", "InfiniBand");
  const auto device = folder / "devices/pci0000:15/0000:15:01.0/0000:17:00.0";
  write(device / "numa_node", "1");
  fs::create_directory_symlink(device, folder / "mlx5_1/device");
  write(folder / "alone/pci10000:e0/10000:e0:02.0/numa_node", "-1");
  CHECK(find_nics(folder.string()) ==
        std::vector<nic>{{.name = "mlx5_0", .port = 2, .bandwidth = gbit_per_s(2.5)},
                         {.name = "mlx5_1",
                          .bandwidth = gbit_per_s(200),
                          .link_layer = "InfiniBand",
                          .place = {.path = {"pci0000:15", "0000:15:01.0", "0000:17:00.0"}, .node = 1}},
                         {.name = "mlx5_2"}});
  CHECK(find_nics((folder / "nothing").string()).empty());
  CHECK(find_pci_place((folder / "alone/pci10000:e0/10000:e0:02.0").string()) ==
        pci_place{.path = {"pci10000:e0", "10000:e0:02.0"}, .node = -1});
  CHECK(find_pci_place((folder / "nothing").string()) == pci_place{});
  CHECK(pci_name(1, 0x17, 2) == "0001:17:02.0");
  fs::remove_all(folder);
}
