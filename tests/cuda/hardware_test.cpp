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

TEST_CASE("network cards are those that Linux lists as active, with their rates") {
  const auto folder = std::filesystem::temp_directory_path() / ("hetsched-nics-" + std::to_string(::getpid()));
  const auto port = [&](const std::string& name, const std::string& number, const std::string& state, const std::string& rate) {
    const auto here = folder / name / "ports" / number;
    std::filesystem::create_directories(here);
    std::ofstream(here / "state") << state << '\n';
    std::ofstream(here / "rate") << rate << '\n';
  };
  port("mlx5_1", "1", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  port("mlx5_0", "2", "4: ACTIVE", "2.5 Gb/sec (1X SDR)");
  port("mlx5_0", "1", "1: DOWN", "10 Gb/sec (4X SDR)");
  port("mlx5_2", "1", "4: ACTIVE", "unknown");
  port("mlx5_2", "x", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  CHECK(find_nics(folder.string()) ==
        std::vector<nic>{{"mlx5_0", 2, gbit_per_s(2.5)}, {"mlx5_1", 1, gbit_per_s(200)}, {"mlx5_2", 1, 0}});
  CHECK(find_nics((folder / "nothing").string()).empty());
  std::filesystem::remove_all(folder);
}
