// SPDX-License-Identifier: Apache-2.0
// What the fake catches, call by call: it has to be stricter than a real GPU.
#include <hetsched/cuda_check.hpp>

#include "rules.hpp"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Two devices with two streams each, a block and an event on the first stream of each, and a pinned block.
struct setting {
  explicit setting(cuda_check::habits habits = {}) : machine(habits), cuda{&machine} {
    for (int d = 0; d < 2; ++d) {
      REQUIRE(cuda.set_device(d) == 0);
      REQUIRE(cuda.create_pool(d, pool[d]) == 0);
      for (auto& s : stream[d]) REQUIRE(cuda.create_stream(s) == 0);
      REQUIRE(cuda.create_event(event[d]) == 0);
      REQUIRE(cuda.allocate(block[d], bytes, pool[d], stream[d][0]) == 0);
      REQUIRE(cuda.set_zero(block[d], bytes, stream[d][0]) == 0);
    }
    REQUIRE(cuda.set_device(0) == 0);
    REQUIRE(cuda.allocate_pinned(pinned, bytes) == 0);
    machine.host_access(pinned, bytes, true);
  }
  void order(cuda_check::api::stream after, cuda_check::api::event e, cuda_check::api::stream before) {
    REQUIRE(cuda.record(e, before) == 0);
    REQUIRE(cuda.wait(after, e) == 0);
  }
  static constexpr std::size_t bytes = 64;
  cuda_check::machine machine;
  cuda_check::api cuda;
  cuda_check::api::pool pool[2] = {};
  cuda_check::api::stream stream[2][2] = {};
  cuda_check::api::event event[2] = {};
  void* block[2] = {};
  void* pinned = nullptr;
};

struct wrong {
  const char* report;  ///< a part of it; "" if all is well
  std::function<void(setting&)> calls;
};

void nothing(const cuda_check::machine::view&) {}

}  // namespace

TEST_CASE("[threads] a kernel that uses what it has not said is reported, on a device and on the host") {
  cuda_check::machine machine({.devices = 1});
  cuda_devices<cuda_check::api> devices(cuda_check::api{&machine});
  for (const auto& q : {devices.make_queue(0, "work"), cuda_queue<cuda_check::api>(devices)}) {
    const cuda_buffer<cuda_check::api> told(q, 64), other(q, 64);
    const auto* const reads = static_cast<const double*>(told.data());
    auto* const silent = static_cast<double*>(other.data());
    const auto current = q.make_current();
    cuda_check::launch(q, "a kernel", {{reads, 64, false}}, [&](const auto& memory) {
      *memory.write(silent) = memory.read(reads)[1];
      (void)memory.read(reads + 7);  // inside of what is said
    });
    q.finish();
    CHECK(machine.reports().size() == (q.on_host() ? 2 : 1));
  }
  for (const auto& r : machine.reports()) CHECK(r == "a kernel writes what it has not said that it does");
}

TEST_CASE("[threads] the fake reports what is not ordered or not there, and nothing else") {
  const std::vector<wrong> all{
      {"in no order", [](setting& s) { (void)s.cuda.set_zero(s.block[0], 64, s.stream[0][1]); }},
      {"",
       [](setting& s) {
         s.order(s.stream[0][1], s.event[0], s.stream[0][0]), (void)s.cuda.set_zero(s.block[0], 64, s.stream[0][1]);
       }},
      {"in no order", [](setting& s) { (void)s.cuda.copy_peer(s.block[1], 1, s.block[0], 0, 64, s.stream[1][0]); }},
      {"",
       [](setting& s) {
         s.order(s.stream[1][0], s.event[0], s.stream[0][0]),
             (void)s.cuda.copy_peer(s.block[1], 1, s.block[0], 0, 64, s.stream[1][0]);
       }},
      // An event that is recorded too early, or after the wait.
      {"in no order",
       [](setting& s) {
         (void)s.cuda.record(s.event[0], s.stream[0][0]), (void)s.cuda.set_zero(s.block[0], 64, s.stream[0][0]),
             (void)s.cuda.wait(s.stream[0][1], s.event[0]), (void)s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][1]);
       }},
      {"in no order",
       [](setting& s) {
         (void)s.cuda.wait(s.stream[0][1], s.event[0]), (void)s.cuda.record(s.event[0], s.stream[0][0]),
             (void)s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][1]);
       }},
      // Two reads need no order, other bytes neither.
      {"",
       [](setting& s) {
         s.order(s.stream[0][1], s.event[0], s.stream[0][0]);
         for (auto* t : s.stream[0]) (void)s.machine.launch(t, "a kernel", {{s.block[0], 64, false}}, nothing);
       }},
      {"",
       [](setting& s) {
         s.order(s.stream[0][1], s.event[0], s.stream[0][0]);
         (void)s.cuda.set_zero(s.block[0], 32, s.stream[0][0]),
             (void)s.cuda.set_zero(static_cast<char*>(s.block[0]) + 32, 32, s.stream[0][1]);
       }},
      {"in no order",
       [](setting& s) {
         s.order(s.stream[0][1], s.event[0], s.stream[0][0]);
         (void)s.cuda.set_zero(s.block[0], 33, s.stream[0][0]),
             (void)s.cuda.set_zero(static_cast<char*>(s.block[0]) + 32, 32, s.stream[0][1]);
       }},
      // The host.
      {"in no order",
       [](setting& s) {
         (void)s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][0]), s.machine.host_access(s.pinned, 64, false);
       }},
      {"",
       [](setting& s) {
         (void)s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][0]), (void)s.cuda.synchronize(s.stream[0][0]),
             s.machine.host_access(s.pinned, 64, false);
       }},
      {"in no order",
       [](setting& s) {
         (void)s.cuda.copy(s.block[0], s.pinned, 64, s.stream[0][0]), s.machine.host_access(s.pinned, 64, true);
       }},
      {"touches the memory of a device",
       [](setting& s) { (void)s.cuda.synchronize(s.stream[0][0]), s.machine.host_access(s.block[0], 64, false); }},
      {"not pinned",
       [](setting& s) {
         char on_stack[64] = {};
         (void)s.cuda.copy(s.block[0], on_stack, 64, s.stream[0][0]), (void)s.cuda.synchronize(s.stream[0][0]);
       }},
      {"over the end", [](setting& s) { (void)s.cuda.copy(s.pinned, s.block[0], 65, s.stream[0][0]); }},
      // Memory that is freed early, twice, or used afterwards.
      {"in no order", [](setting& s) { (void)s.cuda.free(s.block[0], s.stream[0][1]); }},
      {"not there",
       [](setting& s) { (void)s.cuda.free(s.block[0], s.stream[0][0]), (void)s.cuda.set_zero(s.block[0], 64, s.stream[0][0]); }},
      {"not there",
       [](setting& s) { (void)s.cuda.free(s.block[0], s.stream[0][0]), (void)s.cuda.free(s.block[0], s.stream[0][0]); }},
      {"in no order",
       [](setting& s) {
         void* p = nullptr;
         (void)s.cuda.allocate(p, 64, s.pool[0], s.stream[0][0]), (void)s.cuda.set_zero(p, 64, s.stream[0][1]);
       }},
      // Devices.
      {"names neither",
       [](setting& s) {
         s.order(s.stream[0][0], s.event[1], s.stream[1][0]), (void)s.cuda.copy(s.block[1], s.block[0], 64, s.stream[0][0]);
       }},
      {"others than the memory's",
       [](setting& s) {
         s.order(s.stream[0][0], s.event[1], s.stream[1][0]),
             (void)s.cuda.copy_peer(s.block[1], 0, s.block[0], 1, 64, s.stream[0][0]);
       }},
      {"from another device", [](setting& s) { (void)s.cuda.set_zero(s.block[1], 64, s.stream[1][0]); }},
      {"from another device", [](setting& s) { (void)s.cuda.copy(s.pinned, s.block[1], 64, s.stream[1][0]); }},
      // What is destroyed too early, or twice.
      {"has work to do",
       [](setting& s) {
         const auto done = std::make_shared<std::atomic<bool>>(false);
         (void)s.machine.launch_until(s.stream[0][0], "a kernel", {}, [done](bool&) { return done->load(); });
         (void)s.cuda.destroy_stream(s.stream[0][0]);
         *done = true;
       }},
      {"on a stream that is destroyed",
       [](setting& s) {
         (void)s.cuda.synchronize(s.stream[0][0]), (void)s.cuda.destroy_stream(s.stream[0][0]),
             (void)s.cuda.set_zero(s.block[0], 64, s.stream[0][0]);
       }},
      {"destroyed twice", [](setting& s) { (void)s.cuda.destroy_event(s.event[0]), (void)s.cuda.destroy_event(s.event[0]); }},
      {"that is destroyed",
       [](setting& s) { (void)s.cuda.destroy_event(s.event[0]), (void)s.cuda.record(s.event[0], s.stream[0][0]); }},
      {"with memory in use", [](setting& s) { (void)s.cuda.destroy_pool(s.pool[0]); }},
      {"frees it writes what a copy",
       [](setting& s) { (void)s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][0]), (void)s.cuda.free_pinned(s.pinned); }},
      {"another device",
       [](setting& s) {
         (void)s.machine.launch(s.stream[1][0], "a kernel", {{s.block[1], 64, true}}, nothing);
       }},
      {"of another device",
       [](setting& s) {
         s.order(s.stream[0][0], s.event[1], s.stream[1][0]),
             (void)s.machine.launch(s.stream[0][0], "a kernel", {{s.block[1], 64, false}}, nothing);
       }},
  };
  for (std::size_t k = 0; k < all.size(); ++k)
    for (const bool lazy : {false, true}) {
      CAPTURE(k);
      setting s({.seed = k + 1, .lazy = lazy});
      all[k].calls(s);
      const auto found = s.machine.reports();
      if (all[k].report[0] == 0) {
        for (const auto& r : found) FAIL_CHECK(r);
      } else {
        REQUIRE(!found.empty());
        CHECK(found.front().find(all[k].report) != std::string::npos);
      }
    }
}

TEST_CASE("[threads] an event belongs to its device, and failures and missing GPUs are told") {
  setting s;
  CHECK(s.cuda.record(s.event[1], s.stream[0][0]) == 400);
  s.machine.fail("cudaEventRecord", 719);
  CHECK(s.cuda.record(s.event[0], s.stream[0][0]) == 719);
  CHECK(s.cuda.record(s.event[0], s.stream[0][0]) == 0);
  s.machine.fail("*", 719);
  CHECK(s.cuda.query(s.event[0]) == 719);
  cuda_check::machine none({.no_gpu = 35});
  int count = 0;
  CHECK(none.device_count(count) == 35);
}

TEST_CASE("[threads] work is late, and a device that works in order gets stuck where another does not") {
  for (const bool in_order : {false, true}) {
    setting s({.most_turns_late = 0, .lazy = true, .in_order = in_order});
    REQUIRE(s.cuda.synchronize(s.stream[0][0]) == 0);
    CHECK(s.cuda.copy(s.pinned, s.block[0], 64, s.stream[0][0]) == 0);
    CHECK(static_cast<unsigned char*>(s.pinned)[0] == detail::device_memory::rubbish);  // nobody has asked
    REQUIRE(s.cuda.synchronize(s.stream[0][0]) == 0);
    CHECK(static_cast<unsigned char*>(s.pinned)[0] == 0);
    // The second stream's work, called later, does not come before the first stream's: only if it works in order.
    std::vector<int> done;
    REQUIRE(s.cuda.record(s.event[1], s.stream[1][0]) == 0);
    REQUIRE(s.cuda.wait(s.stream[0][0], s.event[1]) == 0);
    for (int k = 0; k < 2; ++k)
      REQUIRE(s.machine.launch(s.stream[0][k], "a kernel", {}, [&done, k](const auto&) { done.push_back(k); }) == 0);
    for (auto* t : s.stream[0]) REQUIRE(s.cuda.synchronize(t) == 0);
    REQUIRE(done.size() == 2);
    if (in_order) CHECK(done == std::vector<int>{0, 1});
  }
}

TEST_CASE("[threads] what is not destroyed is counted") {
  setting s;
  CHECK(s.machine.leaks() ==
        std::vector<std::string>{"4 streams", "2 events", "2 pools", "1 blocks of pinned memory", "2 blocks of device memory"});
  for (int d = 0; d < 2; ++d) {
    REQUIRE(s.cuda.free(s.block[d], s.stream[d][0]) == 0);
    for (auto* t : s.stream[d]) REQUIRE((s.cuda.synchronize(t) == 0 && s.cuda.destroy_stream(t) == 0));
    REQUIRE((s.cuda.destroy_event(s.event[d]) == 0 && s.cuda.destroy_pool(s.pool[d]) == 0));
  }
  REQUIRE(s.cuda.free_pinned(s.pinned) == 0);
  CHECK(s.machine.leaks().empty());
  CHECK(s.machine.reports().empty());
}

TEST_CASE("[threads] what a seed brings about does not depend on which thread calls first") {
  const auto order_of = [](bool second_first) {
    setting s({.seed = 5, .lazy = true});
    for (int d = 0; d < 2; ++d) REQUIRE(s.cuda.synchronize(s.stream[d][0]) == 0);
    std::vector<int> done;
    const auto enqueue = [&](int d) {
      std::thread([&s, &done, d] {
        if (s.cuda.set_device(d) != 0) return;
        for (int k = 0; k < 10; ++k)
          (void)s.machine.launch(s.stream[d][0], "a kernel", {}, [&done, k, d](const auto&) { done.push_back(10 * d + k); });
      }).join();
    };
    enqueue(second_first ? 1 : 0);
    enqueue(second_first ? 0 : 1);
    for (int d = 0; d < 2; ++d) REQUIRE(s.cuda.synchronize(s.stream[d][0]) == 0);
    return done;
  };
  const auto first = order_of(false);
  CHECK(first.size() == 20);
  CHECK(first == order_of(true));
}

TEST_CASE("[threads] the fake answers as a GPU does: the table that tests/gpu/rules.cu tries on one") {
  for (const bool lazy : {false, true}) {
    cuda_check::machine machine({.lazy = lazy});
    const auto rules = try_cuda_rules(cuda_check::api{&machine});
    CHECK(rules.size() > 30);
    for (const auto& r : rules) {
      CAPTURE(r.call);
      CAPTURE(r.state);
      CHECK(r.found == r.wanted);
    }
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("[threads] memory and events of another process: what opens them, who waits for them, and when they may be freed") {
  cuda_check::machine machine({.devices = 2});
  const cuda_check::api owner{&machine, 0}, other{&machine, 1};
  cuda_check::api::stream s[2] = {};
  cuda_check::api::pool pool{};
  cuda_check::api::event plain{}, mine{}, theirs{};
  void *memory = nullptr, *opened = nullptr, *pooled = nullptr, *own = nullptr;
  for (int d = 0; d < 2; ++d) REQUIRE((owner.set_device(d) == 0 && owner.create_stream(s[d]) == 0));
  REQUIRE((other.create_pool(1, pool) == 0 && other.allocate(own, 64, pool, s[1]) == 0));
  REQUIRE((owner.set_device(0) == 0 && owner.allocate_shared(memory, 64) == 0 && owner.create_event(plain) == 0));
  cuda_check::api::memory_handle handle{};
  cuda_check::api::event_handle event{};
  CHECK(owner.export_memory(own, handle) == 1);  // of a pool
  CHECK(owner.export_memory(static_cast<char*>(memory) + 8, handle) == 1);
  CHECK(owner.export_memory(memory, handle) == 0);
  CHECK(owner.open_memory(opened, handle) == 201);  // in the process that has made it
  CHECK(owner.export_event(plain, event) == 400);
  CHECK(owner.create_shared_event(mine) == 0);
  CHECK(owner.export_event(mine, event) == 0);
  CHECK(owner.open_event(theirs, event) == 201);
  CHECK(machine.reports().empty());

  REQUIRE(owner.set_zero(memory, 64, s[0]) == 0);
  REQUIRE(owner.record(mine, s[0]) == 0);
  REQUIRE(other.set_device(1) == 0);
  REQUIRE((other.open_memory(opened, handle) == 0 && other.open_event(theirs, event) == 0));
  REQUIRE(other.copy(own, opened, 64, s[1]) == 0);
  REQUIRE(machine.reports().size() == 1);  // nobody has waited
  CHECK(machine.reports()[0].find("in no order") != std::string::npos);
  REQUIRE(other.wait(s[1], theirs) == 0);
  REQUIRE(other.copy(own, opened, 64, s[1]) == 0);
  REQUIRE(other.synchronize(s[1]) == 0);
  CHECK(machine.reports().size() == 1);

  CHECK(owner.free_shared(memory) == 0);
  CHECK(machine.reports().back() == "memory is freed that another process has open");
  CHECK(owner.open_memory(opened, handle) == 1);
  CHECK(other.close_memory(opened) == 1);
  CHECK(machine.reports().back() == "memory is closed that is freed");
  CHECK(owner.destroy_event(mine) == 0);
  CHECK(other.wait(s[1], theirs) == 400);
  CHECK(machine.reports().back() == "an event is waited for that is destroyed");
  CHECK(other.destroy_event(theirs) == 0);
  CHECK(owner.free_shared(pooled) == 1);

  cuda_check::machine apart({.devices = 2, .reach = false});
  const cuda_check::api here{&apart, 0}, there{&apart, 1};
  REQUIRE((here.allocate_shared(memory, 64) == 0 && here.export_memory(memory, handle) == 0 && there.set_device(1) == 0));
  CHECK(there.open_memory(opened, handle) == 217);
}

TEST_CASE("[threads] calls wait for room in a launch queue") {
  setting s({.lazy = true, .launch_queue = 8});
  for (int k = 0; k < 100; ++k) REQUIRE(s.cuda.set_zero(s.block[0], 64, s.stream[0][0]) == 0);
  CHECK(s.machine.longest_queue() == 8);
}

TEST_CASE("the host that touches the memory of a device ends there") {
  // Before any thread is started, as the child has only this one.
  detail::device_memory memory;
  const auto* const p = static_cast<volatile unsigned char*>(memory.allocate(64, nullptr));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    _exit(*p == 0 ? 0 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
