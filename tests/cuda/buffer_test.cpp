// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/buffer.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <hetsched/cuda/graphs.hpp>

#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

using buffer = cuda_buffer<cuda_check::api>;

TEST_CASE("[threads] no GPU is one clear error") {
  for (const int code : {34, 35, 100}) {
    cuda_check::machine machine({.no_gpu = code});
    CHECK_THROWS_AS(fake_devices(cuda_check::api{&machine}), cuda_error);
    try {
      const fake_devices devices(cuda_check::api{&machine});
    } catch (const cuda_error& e) {
      CHECK(e.code == code);
      CHECK(std::string(e.what()).find("there is no GPU to use: cudaGetDeviceCount: ") == 0);
    }
  }
}

TEST_CASE("[threads] buffers know their memory, and a device's is counted and limited") {
  cuda_check::machine machine;
  fake_devices devices(cuda_check::api{&machine}, {.limit_bytes = 1000});
  const auto q = devices.make_queue(1, "work");
  {
    const buffer on_device(q, 600), on_host(fake_queue(devices), 4096);
    CHECK(on_device.space() == memory_space::device);
    CHECK(on_device.device() == 1);
    CHECK(on_host.space() == memory_space::pinned);
    CHECK(on_host.device() == -1);
    CHECK(buffer().data() == nullptr);
    CHECK_THROWS_WITH_AS(
        buffer(q, 401),
        "cudaMallocFromPoolAsync failed for a buffer of 401 bytes on device 1: 600 bytes of the limit of 1000 are in use (2)",
        cuda_error);
    machine.fail("cudaMallocFromPoolAsync", 2);
    CHECK_THROWS_AS(buffer(q, 100), cuda_error);
    const buffer fits(q, 400);
    CHECK(devices.memory(1).now_bytes == 1000);
  }
  CHECK(devices.memory(1).now_bytes == 0);
  CHECK(devices.memory(1).most_bytes == 1000);
  CHECK(devices.memory(0).allocations == 0);
  CHECK(machine.blocks_alive() == 0);
}

TEST_CASE("[threads] memory is pinned once, and used again when those that copy it have ended") {
  cuda_check::machine machine({.lazy = true});
  fake_devices devices(cuda_check::api{&machine});
  const fake_queue here(devices);
  const auto q = devices.make_queue(0, "copies");
  buffer target(q, 64);
  void* first = nullptr;
  {
    buffer source(here, 64);
    first = source.data();
    machine.host_access(first, 64, true);
    work_on(q, {&source}, {&target}, [&] { REQUIRE(machine.copy_rows(target.data(), 64, first, 64, 64, 1, q.stream()) == 0); });
  }
  const buffer other(here, 64);  // the copy has not begun
  CHECK(other.data() != first);
  q.finish();
  const buffer again(here, 60);
  CHECK(again.data() == first);
  CHECK(machine.calls("cudaHostAlloc") == 2);
  CHECK(devices.pinned_bytes() == 128);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("[threads] whether pinned memory is free is asked for while others use the pool") {
  cuda_check::machine machine;
  fake_devices devices(cuda_check::api{&machine});
  const auto q = devices.make_queue(0, "copies");
  const fake_queue here(devices);
  {
    buffer source(here, 64);
    source.end_read(q, q.record());
  }
  q.finish();
  bool asked = false, held_up = false;
  std::thread other;
  machine.on_query = [&] {
    if (std::exchange(asked, true)) return;
    std::promise<std::size_t> bytes;
    auto answer = bytes.get_future();
    other = std::thread([&devices, to = std::move(bytes)]() mutable { to.set_value(devices.pinned_bytes()); });
    held_up = answer.wait_for(std::chrono::seconds(2)) != std::future_status::ready;
  };
  const buffer again(here, 64);
  other.join();
  CHECK(asked);
  CHECK(!held_up);
  CHECK(machine.calls("cudaHostAlloc") == 1);
}

TEST_CASE("[threads] work that throws has marked what it enqueued") {
  for (const bool writes : {false, true}) {
    cuda_check::machine machine({.lazy = true});
    {
      fake_devices devices(cuda_check::api{&machine});
      const auto a = devices.make_queue(0, "a"), b = devices.make_queue(0, "b");
      buffer first(a, 64), second(a, 64);
      const auto copy = [&](const fake_queue& q, buffer& to, const buffer& from, bool fails) {
        work_on(q, {&from}, {&to}, [&] {
          REQUIRE(machine.copy_rows(to.data(), 64, from.data(), 64, 64, 1, q.stream()) == 0);
          if (fails) throw input_error("planted");
        });
      };
      work_on(a, {}, {&first, &second}, [&] {
        for (auto* t : {&first, &second}) REQUIRE(machine.set_zero(t->data(), 64, a.stream()) == 0);
      });
      CHECK_THROWS_AS(copy(b, second, first, true), input_error);
      writes ? copy(a, first, second, false) : copy(a, second, first, false);
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("[threads] a buffer that others still read can be moved, overwritten and destroyed") {
  for (const bool lazy : {false, true}) {
    cuda_check::machine machine({.seed = 3, .lazy = lazy});
    {
      fake_devices devices(cuda_check::api{&machine});
      const auto a = devices.make_queue(0, "a"), b = devices.make_queue(1, "b");
      for (int k = 0; k < 20; ++k) {
        buffer source(a, 64), target(b, 64);
        work_on(a, {}, {&source}, [&] { REQUIRE(machine.set_zero(source.data(), 64, a.stream()) == 0); });
        buffer moved = std::move(source);
        work_on(b, {&moved}, {&target}, [&] { enqueue_copy(b, target, moved); });
        work_on(a, {}, {&moved}, [&] { REQUIRE(machine.set_zero(moved.data(), 64, a.stream()) == 0); });
        moved = buffer(a, 128);
      }
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("[threads] memory from outside comes back when all queues have done with it, and streams serve again") {
  cuda_check::machine machine({.stops_after = 1});
  outside brought(machine, 1024);
  {
    fake_devices devices(cuda_check::api{&machine}, {}, brought.adopted());
    {
      const auto lent = devices.lend_queue(0, "mine"), other = devices.lend_queue(0, "copies");
      const auto &a = *lent, &b = *other;
      CHECK(a.stream() == brought.stream(0, "mine"));
      buffer target(b, 256);
      void* first = nullptr;
      {
        buffer source(a, 256);
        first = source.data();
        work_on(a, {}, {&source}, [&] { REQUIRE(machine.set_zero(source.data(), 256, a.stream()) == 0); });
        work_on(b, {&source}, {&target}, [&] { enqueue_copy(b, target, source); });
      }
      CHECK(brought.blocks_out() == 2);  // the copy has not begun
      {
        const buffer more(a, 256);
        CHECK(more.data() != first);
        const buffer last(a, 256);
        machine.resume();
        // There is no more: what is in use is waited for.
        const buffer again(a, 256);
        CHECK(again.data() == first);
        CHECK_THROWS_WITH_AS(buffer(a, 256), "an adopted allocator failed for a buffer of 256 bytes on device 0: it has none (2)",
                             cuda_error);
        CHECK(devices.memory(0).now_bytes == 1024);
      }
      CHECK(devices.memory(0).now_bytes == 256);
      CHECK(devices.memory(0).allocations == 6);
    }
    CHECK(brought.blocks_out() == 0);
    const auto lent = devices.lend_queue(0, "mine");
    CHECK(machine.streams_of(0) == brought.streams());
    CHECK(machine.calls("cudaMallocFromPoolAsync") == 1);
    CHECK(machine.calls("cudaMemPoolCreate") == 1);
  }
  CHECK(machine.calls("cudaStreamDestroy") == 0);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK_THROWS_WITH_AS(fake_devices(cuda_check::api{&machine}, {}, {.free = brought.adopted().free}),
                       "cuda_adoption has no allocate, but the other half", input_error);
}

TEST_CASE("[threads] an owner that is a buffer may end while memory is allocated for a graph") {
  cuda_check::machine machine({.stops_after = 1});
  outside brought(machine);
  {
    fake_devices devices(cuda_check::api{&machine}, {}, brought.adopted());
    const auto q = devices.make_queue(0, "q");
    const auto current = q.make_current();
    {
      auto arena = std::make_shared<buffer>(q, 1024);
      auto* const part = arena->data();
      const buffer view = buffer::view(q, part, 256, std::move(arena));
      REQUIRE(machine.set_zero(part, 256, q.stream()) == 0);
    }
    machine.resume();
    q.finish();
    CHECK(brought.blocks_out() == 1);  // nobody has asked
    const detail::cuda_graph<cuda_check::api> graph(q, [&] { const buffer inside(q, 64); });
    CHECK(brought.blocks_out() == 1);  // the graph's
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("[threads] a view keeps its owner until all queues have done with it, those of work without marks, too") {
  cuda_check::machine machine({.stops_after = 0});
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto a = devices.make_queue(0, "a"), b = devices.make_queue(0, "b");
    const auto current = a.make_current();
    const auto arena = std::make_shared<buffer>(a, 1024);
    auto* const part = static_cast<std::byte*>(arena->data()) + 256;
    buffer copy(b, 256);
    std::weak_ptr<buffer> marked, unmarked;
    {
      auto owner = std::make_shared<buffer>(buffer::view(a, part, 256, arena));
      marked = owner;
      buffer view = buffer::view(a, part, 256, std::move(owner));
      CHECK(view.device() == 0);
      CHECK(view.bytes() == 256);
      work_on(a, {}, {&view}, [&] { REQUIRE(machine.set_zero(part, 256, a.stream()) == 0); });
      work_on(b, {&view}, {&copy}, [&] { enqueue_copy(b, copy, view); });
      view = buffer();
    }
    {
      auto owner = std::make_shared<buffer>(buffer::view(a, part + 256, 256, arena));
      unmarked = owner;
      const buffer view = buffer::view(a, part + 256, 256, std::move(owner));
      REQUIRE(machine.set_zero(view.data(), 256, a.stream()) == 0);
    }
    { const buffer other(a, 64); }
    CHECK_FALSE(marked.expired());
    CHECK_FALSE(unmarked.expired());
    machine.resume();
    a.finish();
    { const buffer other(a, 64); }
    CHECK(unmarked.expired());
    b.finish();
    { const buffer other(a, 64); }
    CHECK(marked.expired());
    int number = 0;
    CHECK(buffer::view(fake_queue(devices), &number, sizeof number).space() == memory_space::pinned);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}
