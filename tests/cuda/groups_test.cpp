// SPDX-License-Identifier: Apache-2.0
// Stages on groups of fake GPUs and hosts: tensors travel in slices.
#include <hetsched/cuda/local_communicator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"
#include "grouped_task.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("[threads] stages on groups of fake GPUs and hosts have the bits of groups of threads, and no races") {
  int sliced = 0;
  for (int instance = 0; instance < 80 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto t = random_task(random, static_cast<std::uint64_t>(instance) + 1);
    const cuda_check::habits habits{.seed = static_cast<std::uint64_t>(instance) + 1,
                                    .devices = random.integer(1, 4),
                                    .lazy = random.integer(0, 1) == 0,
                                    .in_order = random.integer(0, 1) == 0,
                                    .launch_queue = 32};
    std::vector<int> places;
    for (int r = 0; r < t.ranks(); ++r) places.push_back(random.integer(instance % 3 == 0 ? -1 : 0, habits.devices - 1));
    cuda_check::machine machine(habits);
    {
      fake_devices devices(cuda_check::api{&machine});
      CHECK(on_fake(t, devices, cuda_local_communicator<fake_tensor, cuda_check::api>::connect(devices, places), places) ==
            on_host(t));
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
    sliced += t.ranks() > static_cast<int>(t.layouts.size());
  }
  CHECK(sliced > 40 / sanitizer_share);
}
