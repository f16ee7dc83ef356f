// SPDX-License-Identifier: Apache-2.0
// Tensors of fake GPUs by way of pinned memory and a network of the hosts, as one and in chunks.
#include <hetsched/runtime/executor/detail/chunked_transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/stager.hpp>
#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "fake_layers.hpp"
#include "host_transport.hpp"
#include "mixed_ranks.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct measured_run {
  outcome_of_step<double> outcome;
  double step_s = 0;           ///< the last step
  std::size_t most_bytes = 0;  ///< of a message
};

/// `steps` steps with everything between ranks by way of the hosts; every rank on a device of its own.
measured_run run_staged(cuda_check::machine& machine, const task<double>& t, const schedule& order,
                        const executor_options& options, const hetsched::link& network, int steps) {
  using communicator = host_transport;
  using stager = cuda_stager<fake_tensor, cuda_check::api>;
  using backend = cuda_backend<cuda_check::api>;
  measured_run result;
  result.outcome.losses.assign(t.inputs.size(), 0);
  result.outcome.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(order.ranks));
  std::vector<double> step_s(losses.size(), 0);
  std::vector<std::size_t> most(losses.size(), 0);
  fake_devices devices(cuda_check::api{&machine}, {.records = 256});
  std::vector<communicator> ends;
  for (auto& end : thread_communicator<matrix<double>>::connect(order.ranks)) {
    auto* const bytes = &most[static_cast<std::size_t>(end.rank())];
    ends.emplace_back(shaped_communicator(std::move(end), [&](int, int) { return network; }), machine, bytes);
  }
  run_on_threads(std::move(ends), [&](communicator& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    const auto name = "rank " + std::to_string(rank);
    backend own(devices, end.rank(), name);
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = stages_of_rank(order, end.rank());
    std::vector<fake_stage> stages;
    for (const auto& c : copies) stages.push_back(stage_on(q, t, c.stage));
    std::vector<fake_tensor> inputs, targets;
    for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
    for (const auto& m : t.targets) targets.push_back(upload(q, m));
    pipeline_executor<fake_tensor, fake_stage, communicator, stager, backend> executor(
        order, std::span(stages), t.boundaries(), end, options, stager(devices, end.rank(), name), own);
    q.finish();
    for (int i = 0; i < steps; ++i) {
      const double start_s = steady_now_s();
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss);
      step_s[rank] = steady_now_s() - start_s;
    }
    losses[rank].assign(executor.losses().begin(), executor.losses().end());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      auto& sums = result.outcome.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)];
      for (const fake_tensor& g : stages[i].gradients()) sums.push_back(download(q, g));
    }
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.outcome.losses[m] += part[m];
  result.step_s = *std::max_element(step_s.begin(), step_s.end());
  result.most_bytes = *std::max_element(most.begin(), most.end());
  return result;
}

schedule staged_order(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto order = build_schedule(name,
                                    {.forward_s = std::vector<double>(n, 1),
                                     .backward_s = std::vector<double>(n, 2),
                                     .transfer_s = std::vector<double>(n - 1, 1),
                                     .weight_backward_s = std::vector<double>(n, 1)},
                                    microbatches);
  return by_way_of_hosts(order, [](int, int) { return true; });
}

}  // namespace

TEST_CASE("[threads] tensors in chunks by way of the hosts have the bits of whole ones, and no races") {
  int number = 0;
  for (const auto name : schedule_names())
    for (const std::size_t chunk_bytes : {0, 8, 24, 40, 1 << 20}) {
      if (++number % sanitizer_share != 0) continue;
      const std::string text(name);
      CAPTURE(text);
      CAPTURE(chunk_bytes);
      const auto order = staged_order(name, 2, 4);
      if (order.directions == 2) continue;  // gradients of two directions are summed from device to device
      const task<double> t(static_cast<std::uint64_t>(number), std::vector<int>(static_cast<std::size_t>(order.stages), 1), 4);
      cuda_check::machine machine(
          {.seed = static_cast<std::uint64_t>(number), .lazy = number % 3 == 0, .in_order = number % 2 == 0, .launch_queue = 32});
      const auto done = run_staged(machine, t, order, {.deadline_s = 20, .staging_chunk_bytes = chunk_bytes},
                                   {.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()}, 2);
      CHECK(done.outcome == reference(t, order));
      if (chunk_bytes > 0 && chunk_bytes < 16) CHECK(done.most_bytes <= 2 * chunk_bytes);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(machine.leaks().empty());
    }
}

TEST_CASE("[threads] copies in chunks overlap with each other and with the network") {
  // A tensor takes about 16 ms from the device, on the network, and to the device.
  const auto order = staged_order("1f1b", 2, 1);
  task<double> t(7, {1, 1}, 1);
  t.widths[1] = 32;
  const auto elements = t.boundaries()[0][0] * t.boundaries()[0][1];
  const double bytes = static_cast<double>(elements * sizeof(double)), takes_s = 16e-3;
  const auto best_of = [&](std::size_t chunk_bytes) {
    double best_s = 1e9;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      cuda_check::machine machine({.seed = seed, .copy_s_per_byte = takes_s / bytes});
      const auto done = run_staged(machine, t, order, {.deadline_s = 20, .staging_chunk_bytes = chunk_bytes},
                                   {.latency_s = 0, .bandwidth = bytes / takes_s}, 2);
      CHECK(done.outcome == reference(t, order));
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      best_s = std::min(best_s, done.step_s);
    }
    return best_s;
  };
  const double whole_s = best_of(0), chunked_s = best_of(elements / 8 * sizeof(double));
  CAPTURE(whole_s);
  CAPTURE(chunked_s);
  // Sanitizers take a time of their own.
  if (sanitizer_share == 1) CHECK(whole_s >= 1.6 * chunked_s);
}

TEST_CASE("[threads] random schedules with NCCL on some edges and the hosts' network on others have the bits of one device") {
  int ran = 0, mixed = 0, refused = 0;
  for (int instance = 0; instance < 300 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::rendezvous};
    const bool fits = check(order, how).empty();
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    const std::string text = to_csv(order);
    CAPTURE(text);
    // The network takes what the schedule lists as copies.
    std::vector<std::array<int, 3>> staged;
    bool sends = order.directions == 2;
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions) {
        sends = sends || detail::is_send(a.kind);
        if (detail::is_network(a.kind)) staged.push_back({a.direction, a.stage, a.kind == action_kind::network_gradient});
      }
    if (staged.empty()) continue;
    const auto direct = [&](const edge& e) {
      return e.what == payload::reduction ||
             std::find(staged.begin(), staged.end(), std::array{e.direction, e.stage, int{e.what == payload::gradient}}) ==
                 staged.end();
    };
    const task<double> t(static_cast<std::uint64_t>(instance), std::vector<int>(static_cast<std::size_t>(order.stages), 1),
                         order.microbatches);
    const bool is_short = random.integer(0, 1) == 0;
    cuda_check::machine machine({.seed = static_cast<std::uint64_t>(random.integer(1, 1 << 30)),
                                 .devices = order.ranks,
                                 .most_turns_late = random.integer(0, 8),
                                 .lazy = random.integer(0, 1) == 0,
                                 .in_order = random.integer(0, 1) == 0,
                                 .launch_queue = is_short ? std::size_t{32} : std::size_t{1024}});
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    {
      fake_devices devices(cuda_check::api{&machine},
                           {.records = static_cast<std::size_t>(random.integer(1, is_short ? 2 : 16))});
      const auto places = numbered_places(order.ranks);
      try {
        const auto done = run_on_fake<true>(devices, connect_mixed(devices, world, places, direct), places, t, order,
                                            {.deadline_s = 20, .staging_chunk_bytes = std::size_t{8} << random.integer(0, 3)}, 2);
        CHECK(done == reference(t, order));
        ++ran;
        mixed += sends && !staged.empty();
      } catch (const input_error& e) {
        const std::string what = e.what();
        CAPTURE(what);
        CHECK((what.find("no order in which all ranks") != std::string::npos && !fits));
        ++refused;
      }
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.blocks_alive() == 0);
    CHECK(world.alive() == 0);
  }
  CHECK(ran > 0);
  if (sanitizer_share == 1) CHECK(mixed >= 15);
  CHECK(refused <= ran / 2);
}

TEST_CASE("[threads] two clusters that NCCL cannot join, and ranks on hosts, are one pipeline") {
  // Devices 0 and 1 are one cluster, 2 and 3 the other.
  const std::vector<std::vector<int>> mixes{{0, 1, 2, 3}, {0, 1, -1, 2}, {-1, 0, 1, -1}, {0, -1, -1, 2}};
  int number = 0;
  for (const auto name : schedule_names())
    for (const auto& places :
         {mixes[static_cast<std::size_t>(number / 2) % 4], mixes[static_cast<std::size_t>(number / 2 + 1) % 4]}) {
      if (++number % sanitizer_share != 0) continue;
      const std::string text(name);
      CAPTURE(text);
      CAPTURE(number);
      const auto joined = [&](int a, int b) {
        const int x = places[static_cast<std::size_t>(a)], y = places[static_cast<std::size_t>(b)];
        return x >= 0 && y >= 0 && x / 2 == y / 2;
      };
      const auto on_hosts = [&](int a, int b) {
        return places[static_cast<std::size_t>(a)] < 0 && places[static_cast<std::size_t>(b)] < 0;
      };
      const auto n = places.size();
      const auto order = [&] {
        const auto built = build_schedule(name,
                                          {.forward_s = std::vector<double>(n, 1),
                                           .backward_s = std::vector<double>(n, 2),
                                           .transfer_s = std::vector<double>(n - 1, 1),
                                           .weight_backward_s = std::vector<double>(n, 1)},
                                          6);
        return split_streams(
            stage_transfers(add_transfers(built), [&](int a, int b) { return !joined(a, b) && !on_hosts(a, b); }));
      }();
      if (order.directions == 2) continue;  // gradients of two directions are summed from device to device
      const task<double> t(static_cast<std::uint64_t>(number), std::vector<int>(static_cast<std::size_t>(order.stages), 1), 6);
      cuda_check::machine machine({.seed = static_cast<std::uint64_t>(number),
                                   .devices = 4,
                                   .lazy = number % 3 == 0,
                                   .in_order = number % 2 == 0,
                                   .launch_queue = 32});
      fake_nccl_world world(machine);
      {
        fake_devices devices(cuda_check::api{&machine}, {.records = 2});
        const auto done =
            run_on_fake<true>(devices, connect_mixed(devices, world, places, [&](const edge& e) { return joined(e.from, e.to); }),
                              places, t, order, {.deadline_s = 20}, 2);
        CHECK(done == reference(t, order));
      }
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(machine.blocks_alive() == 0);
      CHECK(world.alive() == 0);
    }
}

TEST_CASE("[threads] routes that do not fit the schedule are refused, and a device that is lost ends ranks on hosts, too") {
  const auto order = staged_order("1f1b", 3, 4);
  const task<double> t(1, {1, 1, 1}, 4);
  const auto error_of = [&](const std::vector<int>& places, const schedule& what, const is_direct& direct, bool lost) {
    cuda_check::machine machine({.seed = 3, .devices = 3});
    fake_nccl_world world(machine);
    fake_devices devices(cuda_check::api{&machine});
    auto ends = connect_mixed(devices, world, places, direct);
    try {
      if (lost) {
        CHECK(run_on_fake<true>(devices, ends, places, t, what, {.deadline_s = 20}, 1) == reference(t, what));
        world.kill(1, true, 2);
      }
      (void)run_on_fake<true>(devices, std::move(ends), places, t, what, {.deadline_s = 20}, 2);
    } catch (const error& e) {
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      return std::string(e.what());
    }
    return std::string();
  };
  const auto nccl = [](const edge&) { return true; };
  CHECK(error_of({0, 1, 2}, order, nccl, false).find("goes by way of the host, but its route is between devices") !=
        std::string::npos);
  CHECK(error_of({0, 1, -1}, one_f_one_b({3, 2, 1}, 4), nccl, false).find("rank 2 is on the host, and NCCL connects devices") !=
        std::string::npos);
  const auto staged_last =
      split_streams(stage_transfers(add_transfers(one_f_one_b({3, 2, 1}, 4)), [](int a, int b) { return a + b == 3; }));
  const auto first = [](const edge& e) { return e.from + e.to == 1; };
  const auto text = error_of({0, 1, -1}, staged_last, first, true);
  CAPTURE(text);
  CHECK(text.find("remote process exited (6)") != std::string::npos);
}
