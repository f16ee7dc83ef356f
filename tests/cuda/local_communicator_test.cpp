// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/local_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/ipc_communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/text.hpp>

#include "../runtime/communicator/process_planes.hpp"
#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

// Nobody wakes a rank on the host when a copy of a device's has ended.
static_assert(!waking_plane<cuda_local_communicator<fake_tensor, cuda_check::api>>);

/// Habits of all kinds, the mean ones among them.
cuda_check::habits random_habits(random_source& random) {
  return {.seed = static_cast<std::uint64_t>(random.integer(1, 1 << 30)),
          .devices = random.integer(1, 4),
          .most_turns_late = random.integer(0, 8),
          .lazy = random.integer(0, 1) == 0,
          .in_order = random.integer(0, 1) == 0,
          .launch_queue = random.integer(0, 1) == 0 ? std::size_t{32} : std::size_t{1024}};
}

}  // namespace

TEST_CASE("[threads] random schedules on fake GPUs and hosts have the bits of one device, and no races") {
  int ran = 0, mixed = 0, rendezvous = 0;
  for (int instance = 0; instance < 500 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    const std::string text = to_csv(order);
    CAPTURE(text);
    std::vector<int> layers, places;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(instance), layers, order.microbatches);
    const auto habits = random_habits(random);
    for (int r = 0; r < order.ranks; ++r) places.push_back(random.integer(instance % 3 == 0 ? -1 : 0, habits.devices - 1));
    CAPTURE(places);
    cuda_check::machine machine(habits);
    executor_options options{.deadline_s = 20};
    how.semantics = {send_semantics::rendezvous};
    if (random.integer(0, 1) == 0 && check(order, how).empty()) options.semantics = send_semantics::rendezvous;
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = static_cast<std::size_t>(random.integer(1, 16))});
      const bool staged = options.semantics == send_semantics::buffered && random.integer(0, 1) == 0;
      const auto done =
          staged ? run_on_fake<true>(devices, places, t, order, options, 2) : run_on_fake(devices, places, t, order, options, 2);
      CHECK(done == reference(t, order));
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
    ++ran;
    mixed += std::count(places.begin(), places.end(), -1) > 0;
    rendezvous += options.semantics == send_semantics::rendezvous;
  }
  CHECK(ran > 200 / sanitizer_share);
  CHECK(mixed > 30 / sanitizer_share);
  CHECK(rendezvous > 30 / sanitizer_share);
}

TEST_CASE("[threads] no schedule of the library hangs on devices that work in order, with short launch queues and few records") {
  for (const auto name : share_of(schedule_names())) {
    CAPTURE(name);
    constexpr std::size_t ranks = 4;
    const pipeline p{.forward_s = std::vector<double>(ranks, 1),
                     .backward_s = std::vector<double>(ranks, 2),
                     .transfer_s = std::vector<double>(ranks - 1, 0.5)};
    const auto order = build_schedule(name, p, 8);
    const task<double> t(5, std::vector<int>(static_cast<std::size_t>(order.stages), 1), 8);
    for (const std::vector<int>& places : {std::vector{0, 1, 2, 3}, std::vector{0, 0, 1, 1}, std::vector{0, -1, 1, 0}}) {
      CAPTURE(places[1]);
      cuda_check::machine machine({.seed = 11, .devices = 4, .in_order = true, .launch_queue = 32});
      {
        fake_devices devices(cuda_check::api{&machine}, {.records = 2});
        CHECK(run_on_fake(devices, places, t, order, {.deadline_s = 20}, 1) == reference(t, order));
      }
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
    }
  }
}

TEST_CASE(
    "[threads] a step may take as long as it likes while its device makes progress, and a device that stands still is told") {
  const auto order = one_f_one_b({1}, 12);
  const task<double> t(1, {2}, 12);
  // A busy machine may stand still for as long as a short deadline; one of the longer ones shows the same.
  bool ended = false;
  for (double slower = sanitizer_slowdown; !ended && slower <= 16 * sanitizer_slowdown; slower *= 4) {
    cuda_check::machine machine({.seed = 2, .devices = 1, .work_s = 5e-3 * slower});
    fake_devices devices(cuda_check::api{&machine}, {.records = 256});
    const auto begin_s = steady_now_s();
    const executor_options options{.deadline_s = 0.25 * slower};
    try {
      CHECK(run_on_fake(devices, {0}, t, order, options, 1) == reference(t, order));
      CHECK(steady_now_s() - begin_s > 2 * options.deadline_s);
      ended = true;
    } catch (const communication_error& e) {
      MESSAGE(e.what());
    }
  }
  CHECK(ended);
  cuda_check::machine machine({.seed = 2, .devices = 1, .stops_after = 60});
  {
    fake_devices devices(cuda_check::api{&machine}, {.records = 256});
    try {
      (void)run_on_fake(devices, {0}, t, order, {.deadline_s = 0.1}, 1);
      FAIL_CHECK("it was not told");
    } catch (const communication_error& e) {
      CHECK(std::string(e.what()).find("its device has not done what was enqueued, for 0.1") != std::string::npos);
    }
    machine.resume();
  }
  CHECK(machine.leaks().empty());
}

TEST_CASE("[threads] a device that fails ends the step of every rank with one clear error") {
  const auto order = one_f_one_b({3, 2, 1}, 6);
  const task<double> t(1, {1, 1, 1}, 6);
  for (const std::string call : {"cudaMemcpyPeerAsync", "cudaLaunchKernel", "cudaEventRecord", "cudaMallocFromPoolAsync", "*"}) {
    CAPTURE(call);
    cuda_check::machine machine({.seed = 2, .devices = 3});
    fake_devices devices(cuda_check::api{&machine});
    CHECK(run_on_fake(devices, {0, 1, 2}, t, order, {.deadline_s = 20}, 1) == reference(t, order));
    machine.fail(call, 719);
    try {
      (void)run_on_fake(devices, {0, 1, 2}, t, order, {.deadline_s = 20}, 1);
      FAIL_CHECK("the failure was not told");
    } catch (const cuda_error& e) {
      CAPTURE(e.what());
      CHECK(e.code == 719);
      CHECK(std::string(e.what()).find(" failed for ") != std::string::npos);
    }
  }
}

namespace {

/// 1F1B on these places; what the fake reports.
std::vector<std::string> reports_of(cuda_check::habits habits, const std::vector<int>& places, mistake m = mistake::none,
                                    std::size_t* dropped = nullptr) {
  std::vector<int> warmups(places.size());
  // More in flight than needed, so that no order comes about by itself.
  for (std::size_t r = 0; r < places.size(); ++r) warmups[r] = 2 * static_cast<int>(places.size() - r);
  const auto order = one_f_one_b(warmups, 10);
  const task<double> t(3, std::vector<int>(places.size(), 1), 10);
  cuda_check::machine machine(habits);
  planted = m;
  {
    fake_devices devices(cuda_check::api{&machine});
    (void)run_on_fake(devices, places, t, order, {.deadline_s = 3}, 2);
  }
  planted = mistake::none;
  if (dropped) *dropped = machine.calls("dropped");
  return machine.reports();
}

}  // namespace

TEST_CASE("every missing wait is caught") {
  const std::vector<int> places{0, 1, 2};
  int found = 0;
  for (int stream = 0; stream < 13; stream += sanitizer_share) {  // of three devices, six of ranks, four of channels
    CAPTURE(stream);
    std::size_t dropped = 0;
    const auto reports =
        reports_of({.seed = 7, .devices = 3, .lazy = true, .deaf_stream = stream}, places, mistake::none, &dropped);
    if (dropped == 0) continue;
    ++found;
    CHECK(!reports.empty());
  }
  CHECK(found >= 7 / sanitizer_share);
  CHECK(reports_of({.seed = 7, .devices = 3, .lazy = true}, places).empty());
}

TEST_CASE("every mark that is left out is caught") {
  for (const auto m : {mistake::no_begin_read, mistake::no_end_read, mistake::no_end_write, mistake::unmarked}) {
    CAPTURE(static_cast<int>(m));
    CHECK(!reports_of({.seed = 8, .devices = 3, .lazy = true}, {0, 1, 2}, m).empty());
  }
}

TEST_CASE("a host that does not wait for copies is caught") {
  CHECK(!reports_of({.seed = 9, .devices = 2, .lazy = true, .hasty = true}, {0, -1, 1}).empty());
  CHECK(reports_of({.seed = 9, .devices = 2, .lazy = true}, {0, -1, 1}).empty());
}

TEST_CASE("[threads] a rank on a place that is not there is refused") {
  cuda_check::machine machine({.devices = 2});
  fake_devices devices(cuda_check::api{&machine});
  using communicator = cuda_local_communicator<fake_tensor, cuda_check::api>;
  CHECK_THROWS_WITH_AS((void)communicator::connect(devices, {0, 2}), "there is no device 2 among 2", input_error);
  CHECK_THROWS_AS((void)communicator::connect(devices, {-2}), input_error);
}

namespace {
using hosts = thread_communicator<matrix<double>>;
using ipc = cuda_ipc_communicator<fake_tensor, cuda_check::api, hosts>;
}  // namespace

TEST_CASE(
    "[threads] processes of one machine copy by handles of memory and events: random schedules have the bits of one device, "
    "and no races") {
  int ran = 0;
  for (int instance = 0; instance < 120 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    std::vector<int> layers;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(instance), layers, order.microbatches);
    auto habits = random_habits(random);
    habits.devices = order.ranks;
    cuda_check::machine machine(habits);
    {
      std::vector<std::unique_ptr<fake_devices>> processes;
      std::vector<ipc> ends;
      for (auto& end : hosts::connect(order.ranks)) {
        const int rank = end.rank();
        processes.push_back(std::make_unique<fake_devices>(
            cuda_check::api{&machine, rank}, cuda_options{.records = static_cast<std::size_t>(random.integer(2, 16))}));
        ends.emplace_back(*processes.back(), rank, std::move(end),
                          cuda_ipc_options{.slot_bytes = instance % 4 == 0 ? 4096U : 24U});
      }
      outcome_of_step<double> found;
      found.losses.assign(t.inputs.size(), 0);
      found.gradients.resize(order.rank_of.size());
      std::vector<std::vector<double>> losses(ends.size());
      run_on_threads(std::move(ends), [&](ipc& end) {
        const auto r = static_cast<std::size_t>(end.rank());
        run_rank<false>(*processes[r], end, end.rank(), t, order, {.deadline_s = 20}, 2, losses[r], found);
        end.close();
      });
      for (const auto& part : losses)
        for (std::size_t m = 0; m < part.size(); ++m) found.losses[m] += part[m];
      CHECK(found == reference(t, order));
    }
    CHECK(machine.calls("cudaMemcpyPeerAsync") == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
    ran += order.ranks > 1 && machine.calls("cudaIpcOpenMemHandle") > 0;
  }
  CHECK(ran > (sanitizer_share > 1 ? 1 : 40));
}

TEST_CASE("[threads] processes of one machine abort where tensors differ, and keep nothing behind an abort") {
  cuda_check::machine machine({.seed = 1, .devices = 2});
  {
    std::vector<std::unique_ptr<fake_devices>> processes;
    for (int r = 0; r < 2; ++r) processes.push_back(std::make_unique<fake_devices>(cuda_check::api{&machine, r}));
    std::vector<std::vector<ipc>> made(10);
    for (auto& pair : made)
      for (auto& end : hosts::connect(2)) {
        const int rank = end.rank();
        pair.emplace_back(*processes[static_cast<std::size_t>(rank)], rank, std::move(end), cuda_ipc_options{.slot_bytes = 4096});
      }
    run_on_threads(hosts::connect(2), [&](hosts& own) {
      const auto r = static_cast<std::size_t>(own.rank());
      const auto q = processes[r]->make_queue(own.rank(), "rank " + std::to_string(r));
      const auto current = q.make_current();
      std::size_t next = 0;
      const auto make = [&] { return std::make_unique<ipc>(made.at(next++)[r]); };
      const auto make_tensor = [&](std::size_t rows, std::size_t columns) {
        return tensor_traits<fake_tensor>::make({rows, columns}, q);
      };
      check_abort(make, make_tensor);
      check_mismatch(make, make_tensor);
      check_empty_tensors(make, make_tensor);
      made.at(next - 1)[r].close();
    });
    // Before the pools end: memory of those that were aborted stays.
    for (const auto& report : machine.reports()) FAIL_CHECK(report);
  }
}

TEST_CASE("[threads] a rank that closes again, as another did not come in time, closes nothing twice") {
  cuda_check::machine machine({.seed = 1, .devices = 2});
  {
    std::vector<std::unique_ptr<fake_devices>> processes;
    std::vector<ipc> ends;
    for (auto& end : hosts::connect(2)) {
      const int rank = end.rank();
      processes.push_back(std::make_unique<fake_devices>(cuda_check::api{&machine, rank}));
      ends.emplace_back(*processes.back(), rank, std::move(end), cuda_ipc_options{.deadline_s = rank == 0 ? 0.01 : 60});
    }
    auto others = hosts::connect(2);
    run_on_threads(std::move(ends), [&](ipc& end) {
      const bool sends = end.rank() == 0;
      const auto q = processes[static_cast<std::size_t>(end.rank())]->make_queue(end.rank(), "a rank");
      const auto current = q.make_current();
      auto t = tensor_traits<fake_tensor>::make({2, 2}, q);
      ipc::operation op;
      const int channel = end.open({0, 1, payload::activation, 0, 0});
      sends ? end.post_send(channel, {}, t, op) : end.post_receive(channel, {}, t, op);
      CHECK(ends_soon(end, op));
      if (sends) end.close();
      meet(others[static_cast<std::size_t>(end.rank())]);
      do end.close();
      while (sends && machine.calls("cudaFree") == 0);
    });
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}
