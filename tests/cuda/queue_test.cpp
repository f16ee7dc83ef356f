// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/queue.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/runtime/device/device_backend.hpp>

#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(device_queue<fake_queue>);
static_assert(device_backend<cuda_backend<cuda_check::api>>);

TEST_CASE("[threads] moments are reached in their order, and the host is never more than its records ahead") {
  cuda_check::machine machine({.lazy = true});
  fake_devices devices(cuda_check::api{&machine}, {.records = 4});
  const auto q = devices.make_queue(0, "work");
  CHECK(fake_queue::moment().reached());
  std::vector<fake_queue::moment> moments;
  for (int k = 0; k < 40; ++k) {
    moments.push_back(q.record());
    // The one that had this event before.
    if (k >= 4) CHECK(moments[static_cast<std::size_t>(k - 4)].reached());
  }
  q.finish();
  for (const auto& m : moments) CHECK(m.reached());
  CHECK(machine.longest_queue() <= 8);
}

TEST_CASE("[threads] a queue waits once for a point, and not for itself") {
  cuda_check::machine machine;
  fake_devices devices(cuda_check::api{&machine});
  const auto a = devices.make_queue(0, "a"), b = devices.make_queue(1, "b");
  const auto first = a.record(), second = a.record();
  const auto waits = [&] { return machine.calls("cudaStreamWaitEvent"); };
  b.wait(second);
  CHECK(waits() == 1);
  b.wait(second), b.wait(first), a.wait(second), b.wait({});
  CHECK(waits() == 1);
  b.wait(a.record());
  CHECK(waits() == 2);
}

TEST_CASE("[threads] a queue of the host waits itself") {
  cuda_check::machine machine({.lazy = true});
  fake_devices devices(cuda_check::api{&machine});
  const auto q = devices.make_queue(0, "work");
  const fake_queue here(devices);
  CHECK(here.on_host());
  CHECK(here.device() == -1);
  bool done = false;
  REQUIRE(machine.set_device(0) == 0);
  REQUIRE(machine.launch(q.stream(), "a kernel", {}, [&](const auto&) { done = true; }) == 0);
  here.wait(q.record());
  CHECK(done);
  CHECK(here.record().reached());
}

TEST_CASE("[threads] the host waits for a queue as long as it makes progress") {
  // Forty points of 10 ms each.
  cuda_check::machine machine({.most_turns_late = 0, .work_s = 10e-3});
  fake_devices devices(cuda_check::api{&machine}, {.records = 64, .deadline_s = 0.2});
  const auto q = devices.make_queue(0, "work");
  const cuda_buffer<cuda_check::api> memory(q, 64);
  const auto current = q.make_current();
  fake_queue::moment last;
  for (int k = 0; k < 40; ++k) {
    REQUIRE(machine.set_zero(memory.data(), 64, q.stream()) == 0);
    last = q.record();
  }
  fake_queue(devices).wait(last);
  CHECK(last.reached());
}

TEST_CASE("[threads] a queue that stands still is told to whoever waits for it, or for room in it") {
  cuda_check::machine machine({.stops_after = 10});
  fake_devices devices(cuda_check::api{&machine}, {.records = 4, .deadline_s = 0.05});
  const auto q = devices.make_queue(0, "rank 3's computations");
  const auto fill = [&] {
    for (int k = 0; k < 40; ++k) (void)q.record();
  };
  const auto text = "cudaEventQuery failed for rank 3's computations on device 0: no progress for 0.050000 s (600)";
  CHECK_THROWS_WITH_AS(fill(), text, cuda_error);
  machine.resume();
  q.finish();
  fill();
  cuda_check::machine other({.stops_after = 0});
  {
    fake_devices same(cuda_check::api{&other}, {.records = 4, .deadline_s = 0.05});
    const auto p = same.make_queue(0, "rank 3's computations");
    const auto end = p.record();
    CHECK_THROWS_WITH_AS(fake_queue(same).wait(end), text, cuda_error);
    other.resume();
  }
  CHECK(other.leaks().empty());
}

TEST_CASE("[threads] only devices with queues are used, and the current device stays what it was") {
  cuda_check::machine machine({.devices = 4});
  const cuda_check::api api{&machine};
  REQUIRE(api.set_device(3) == 0);
  const auto is_current = [&](int d) {
    int current = -1;
    return api.get_device(current) == 0 && current == d;
  };
  {
    fake_devices devices(api);
    CHECK(machine.calls("cudaMemPoolCreate") == 0);
    CHECK(devices.memory(1).allocations == 0);
    cuda_backend<cuda_check::api> backend(devices, 1, "rank 0");
    CHECK(is_current(3));
    {
      const auto bound = backend.bind();
      CHECK(is_current(1));
    }
    CHECK(is_current(3));
    const auto numbers = backend.make_numbers(3);
    CHECK(is_current(3));
    CHECK(machine.calls("cudaMemPoolCreate") == 1);
    for (int d = 0; d < 4; ++d) CHECK((machine.streams_of(d) > 0) == (d == 1));
    // Device 3 was made current before, and so has a context.
    for (int d = 0; d < 4; ++d) {
      bool has = false;
      CHECK(api.has_context(d, has) == 0);
      CHECK(has == (d == 1 || d == 3));
    }
    (void)devices.make_queue(2, "more");
    CHECK(machine.calls("cudaMemPoolSetAccess") == 2);
  }
  CHECK(is_current(3));
  CHECK(machine.leaks().empty());
}

TEST_CASE("[threads] a process makes no context on a GPU that it does not use") {
  cuda_check::machine machine({.devices = 4});
  const cuda_check::api api{&machine};
  {
    fake_devices devices(api);
    const cuda_backend<cuda_check::api> backend(devices, 2, "rank 0");  // by a thread that has chosen none
    const auto bound = backend.bind();
    (void)upload(backend.compute_queue(), matrix<double>(1, 2));
    backend.compute_queue().finish();
  }
  for (int d = 0; d < 4; ++d) {
    bool has = false;
    CHECK(api.has_context(d, has) == 0);
    CHECK(has == (d == 2));
  }
}

TEST_CASE("[threads] queues that were lent serve again") {
  cuda_check::machine machine({.devices = 2});
  fake_devices devices(cuda_check::api{&machine});
  int first = 0;
  for (int training = 0; training < 10; ++training) {
    {
      const cuda_backend<cuda_check::api> one(devices, 0, "rank 0");
      const auto copy = one;  // of both, one queue each
      const auto numbers = copy.make_numbers(2);
      const auto q = one.compute_queue();
      CHECK_FALSE(q == one.transfer_queue());
      const auto here = q.make_current();
      matrix<double> numbered(1, 1);
      numbered(0, 0) = training + 0.5;
      CHECK(download(q, upload(q, numbered)) == numbered);
    }
    if (training == 0) first = machine.streams_of(0);
    CHECK(machine.streams_of(0) == first);
  }
}

TEST_CASE("[threads] what other ranks wait for goes first on its device: its streams have a priority, and serve nothing else") {
  cuda_check::machine machine({.devices = 1});
  fake_devices devices(cuda_check::api{&machine});
  const auto plain = [&] { return machine.calls("cudaStreamCreateWithFlags"); };
  const auto urgent = [&] { return machine.calls("cudaStreamCreateWithPriority"); };
  {
    const cuda_backend<cuda_check::api> backend(devices, 0, "rank 0");
    CHECK(plain() == 2);   // what is freed; computations
    CHECK(urgent() == 1);  // slices
    CHECK(backend.transfer_queue().own()->is_urgent());
    CHECK(!backend.compute_queue().own()->is_urgent());
  }
  const auto one = devices.lend_queue(0, "one"), other = devices.lend_queue(0, "another");
  CHECK(plain() == 3);
  const auto first = devices.lend_queue(0, "first", true);
  CHECK(urgent() == 1);
  const auto second = devices.lend_queue(0, "second", true);
  CHECK(urgent() == 2);
  CHECK(plain() == 3);
}

TEST_CASE("[threads] the memory of numbers that others take the place of is not used again while a device writes there") {
  cuda_check::machine machine({.lazy = true});
  fake_devices devices(cuda_check::api{&machine});
  const cuda_backend<cuda_check::api> backend(devices, 0, "a rank");
  const auto q = backend.compute_queue();
  const cuda_buffer<cuda_check::api> source(q, 64);
  auto numbers = backend.make_numbers(8);
  void* const first = numbers.data();
  REQUIRE(machine.copy_rows(first, 64, source.data(), 64, 64, 1, q.stream()) == 0);
  numbers = {};
  CHECK(backend.make_numbers(8).data() != first);
  q.finish();
  CHECK(backend.make_numbers(8).data() == first);
}

TEST_CASE("[threads] whatever call fails while something is made, nothing is left of it") {
  int failed = 0;
  for (const auto* const call :
       {"cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags",
        "cudaMemPoolCreate", "cudaMemPoolSetAccess", "cudaMallocFromPoolAsync", "cudaHostAlloc", "cudaEventRecord"})
    for (int successes = 0; successes < 12; ++successes) {
      CAPTURE(call);
      CAPTURE(successes);
      cuda_check::machine machine;
      machine.fail(call, 719, successes);
      try {
        fake_devices devices(cuda_check::api{&machine}, {.records = 3});
        for (const int d : {0, 1}) {
          const cuda_backend<cuda_check::api> backend(devices, d, "a rank");
          const auto made = tensor_traits<fake_tensor>::make({2, 2}, backend.compute_queue());
          const auto numbers = backend.make_numbers(2);
        }
      } catch (const cuda_error& e) {
        CHECK(e.code == 719);
        ++failed;
      }
      CHECK(machine.leaks().empty());
    }
  CHECK(failed > 30);
}

TEST_CASE("[threads] errors name the call, the place and the device") {
  cuda_check::machine machine;
  fake_devices devices(cuda_check::api{&machine});
  const auto q = devices.make_queue(1, "rank 3's computations");
  machine.fail("cudaEventRecord", 719);
  CHECK_THROWS_WITH_AS((void)q.record(),
                       "cudaEventRecord failed for rank 3's computations on device 1: an error of the strict device (719)",
                       cuda_error);
  machine.fail("cudaStreamSynchronize", 2);
  CHECK_THROWS_WITH_AS(q.finish(), "cudaStreamSynchronize failed for rank 3's computations on device 1: out of memory (2)",
                       cuda_error);
}
