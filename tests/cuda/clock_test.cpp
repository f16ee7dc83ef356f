// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/clock.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/timeline.hpp>

#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(device_clock<host_clock> && device_clock<cuda_clock<cuda_check::api>>);

namespace {

/// A kernel that takes some ms.
void slow(cuda_check::machine& machine, const fake_queue& q, int ms) {
  REQUIRE(machine.set_device(q.device()) == 0);
  REQUIRE(machine.launch(q.stream(), "slow", {},
                         [ms](const auto&) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }) == 0);
}

}  // namespace

TEST_CASE("[threads] work on a queue is timed where it is done, not where it is enqueued") {
  cuda_check::machine machine;
  fake_devices devices{cuda_check::api{&machine}};
  const auto q = devices.make_queue(1, "work");
  cuda_clock<cuda_check::api> clock(q, {"first", "", "second"});
  for (int round = 0; round < 2; ++round) {
    const double begin = steady_now_s();
    for (const std::size_t k : {2, 0}) {
      clock.begin(k);
      slow(machine, q, k == 0 ? 20 : 5);
      clock.end(k);
    }
    q.finish();
    clock.read();
    const double end = steady_now_s();
    // The two looks at the host's clock lie apart when the machine is busy.
    const double apart = 0.5;
    CHECK(clock.start_s(2) > begin - apart);
    CHECK(clock.end_s(2) >= clock.start_s(2) + 0.005);
    CHECK(clock.start_s(0) >= clock.end_s(2));
    CHECK(clock.end_s(0) >= clock.start_s(0) + 0.020);
    CHECK(clock.end_s(0) < end + apart);
  }
  CHECK(machine.calls("range first") == 2);
  CHECK(machine.calls("range second") == 2);
  CHECK(machine.reports().empty());
}

TEST_CASE("a profiler's range ends where what it is of fails") {
  cuda_check::machine machine;
  fake_devices devices{cuda_check::api{&machine}};
  const auto q = devices.make_queue(0, "work");
  {
    cuda_clock<cuda_check::api> clock(q, {"first", "second"});
    clock.begin(0);
    clock.abandon();
    CHECK(machine.calls("range first") == 1);
    clock.begin(1);
    clock.end(1);
    clock.abandon();
  }
  CHECK(machine.calls("range second") == 1);
  CHECK(machine.reports().empty());
}

TEST_CASE("[threads] times of calls, on the host's queue and where no events are wanted") {
  cuda_check::machine machine;
  fake_devices devices(cuda_check::api{&machine}, {.times = false});
  for (const auto& q : {devices.make_queue(0, "work"), fake_queue(devices)}) {
    cuda_clock<cuda_check::api> clock(q, {"a"});
    const double begin = steady_now_s();
    clock.begin(0);
    clock.end(0);
    clock.read();
    CHECK(clock.start_s(0) >= begin);
    CHECK(clock.end_s(0) >= clock.start_s(0));
    CHECK(clock.end_s(0) <= steady_now_s());
  }
  CHECK(machine.calls("cudaEventElapsedTime") == 0);
}

TEST_CASE("[threads] the timeline of a step says how long the devices computed, not how long that took to enqueue") {
  constexpr double work_s = 2e-3;
  cuda_check::machine machine({.seed = 5, .devices = 3, .work_s = work_s});
  fake_devices devices{cuda_check::api{&machine}};
  const task<double> t(1, {1, 1, 1}, 4);
  std::vector<timeline> measured(3);
  (void)run_on_fake(devices, {0, 1, 2}, t, one_f_one_b({3, 2, 1}, 4), {}, 2, &measured);
  for (const auto& own : measured) {
    std::vector<timed_action> computations;
    for (const auto& a : own.actions)
      if (is_compute(a.what.kind)) computations.push_back(a);
    REQUIRE(computations.size() == 8);
    for (std::size_t k = 0; k < computations.size(); ++k) {
      CHECK(computations[k].end_s - computations[k].start_s >= work_s * (1 - 1e-6));
      if (k > 0) CHECK(computations[k].start_s >= computations[k - 1].end_s - 1e-6);  // one queue
    }
  }
  CHECK(machine.reports().empty());
}
