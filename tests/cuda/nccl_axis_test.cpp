// SPDX-License-Identifier: Apache-2.0
// Parts of different sizes, and all_to_all; other collectives are in nccl_groups_test.cpp.
#include <hetsched/cuda/nccl_axis.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/runtime/group/stage_group.hpp>

#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"
#include "fake_nccl.hpp"
#include "mixed_ranks.hpp"
#include "nccl_ranks.hpp"
#include "uneven_task.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

collected on_nccl(const uneven_task& t, const cuda_check::habits& habits) {
  collected found(static_cast<std::size_t>(3 * t.ranks));
  std::vector<int> members(static_cast<std::size_t>(t.ranks));
  std::iota(members.begin(), members.end(), 0);
  cuda_check::machine machine(habits);
  fake_nccl_world world(machine, {.turns_late = static_cast<int>(habits.seed % 3)});
  {
    fake_devices devices(cuda_check::api{&machine}, {.records = 4});
    run_on_threads(connect_nccl(devices, world, t.ranks), [&](nccl_ranks& end) {
      const auto r = static_cast<std::size_t>(end.rank());
      const auto q = devices.make_queue(end.rank(), "layers");
      const auto current = q.make_current();
      const nccl_ranks::axis axis(end, members);
      end.set_plan({});
      const auto mine = upload(q, t.mine[r]), all = upload(q, t.all[r]), sends = upload(q, t.sends[r]);
      fake_tensor gathered(1, total_of(t.counts), q), scattered(1, t.counts[r], q), exchanged(1, total_of(t.from(r)), q);
      axis.all_gather(mine, gathered, t.counts, q);
      axis.reduce_scatter(all, scattered, t.counts, q);
      axis.all_to_all(sends, t.to[r], exchanged, t.from(r), q);
      std::size_t k = 3 * r;
      for (const auto* m : {&gathered, &scattered, &exchanged}) {
        const auto host = download(q, *m);
        found[k++].assign(host.data(), host.data() + host.rows() * host.columns());
      }
      q.finish();
      end.close();
    });
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.blocks_alive() == 0);
  CHECK(world.alive() == 0);
  return found;
}

}  // namespace

TEST_CASE("[threads] uneven parts and all_to_all over NCCL have the bits of those of threads, empty parts among them") {
  for (int instance = 0; instance < 60 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto seed = static_cast<std::uint64_t>(instance) + 1;
    const uneven_task t(seed);
    CHECK(on_nccl(t, {.seed = seed, .devices = t.ranks, .in_order = instance % 2 == 0, .launch_queue = 32}) == on_threads(t));
  }
}

TEST_CASE(
    "[threads] over a router groups have collectives where NCCL joins each two of them, and else are places of data ranks") {
  cuda_check::machine machine({.devices = 4});
  fake_nccl_world world(machine);
  fake_devices devices(cuda_check::api{&machine});
  const auto direct = [](const edge& e) { return e.from != 2 && e.to != 2; };
  run_on_threads(connect_mixed(devices, world, {0, 1, -1, 3}, direct), [&](mixed_ranks& end) {
    using group = stage_group<fake_tensor, mixed_ranks>;
    if (end.rank() != 2) {
      const group all_direct(end, {0, 1, 3}, {.tensor = 3});
      CHECK(all_direct.tensor().connects());
      CHECK(all_direct.tensor().rank() == (end.rank() == 3 ? 2 : end.rank()));
    }
    const group data(end, {0, 1, 2, 3}, {.data = 4});
    CHECK(!data.data().connects());
    CHECK(data.place().data == end.rank());
    CHECK_THROWS_WITH_AS(group(end, {0, 1, 2, 3}, {.tensor = 4}, {.stage = 5}),
                         "stage 5 has context, tensor or expert ranks, and the communicator no collectives for them",
                         input_error);
  });
}

TEST_CASE("[threads] counts that do not fit are refused") {
  cuda_check::machine machine({.devices = 2});
  fake_nccl_world world(machine);
  fake_devices devices(cuda_check::api{&machine});
  run_on_threads(connect_nccl(devices, world, 2), [&](nccl_ranks& end) {
    const auto q = devices.make_queue(end.rank(), "layers");
    const auto current = q.make_current();
    const nccl_ranks::axis axis(end, {0, 1});
    end.set_plan({});
    fake_tensor three(1, 3, q), five(1, 5, q);
    const auto error_of = [](const auto& body) -> std::string {
      try {
        body();
      } catch (const input_error& e) {
        return e.what();
      }
      return {};
    };
    CHECK(error_of([&] {
            axis.all_gather(three, five, part_counts{3, 3}, q);
          }) == "5 elements are not those of 2 parts with 6, for 2 ranks");
    CHECK(error_of([&] { axis.reduce_scatter(five, three, part_counts{5}, q); }) ==
          "5 elements are not those of 1 parts with 5, for 2 ranks");
    CHECK(error_of([&] {
            axis.all_gather(three, five, part_counts{4, 1}, q);
          }) == (end.rank() == 0 ? "3 elements are not part 0 with 4" : "3 elements are not part 1 with 1"));
    CHECK(error_of([&] {
            axis.all_to_all(five, part_counts{2, 3}, three, part_counts{1, 1}, q);
          }) == "3 elements are not those of 2 parts with 2, for 2 ranks");
    end.close();
  });
}

TEST_CASE("[threads] a rank that stays away from a collective is waited for until the deadline, and the collective is named") {
  cuda_check::machine machine({.devices = 3});
  fake_nccl_world world(machine);
  {
    fake_devices devices(cuda_check::api{&machine});
    run_on_threads(connect_nccl(devices, world, 3, {.deadline_s = 0.2}), [&](nccl_ranks& end) {
      const auto q = devices.make_queue(end.rank(), "layers");
      const auto current = q.make_current();
      const nccl_ranks::axis axis(end, {0, 1, 2}, {.name = "the tensor axis"});
      end.set_plan({});
      auto sums = upload(q, matrix<double>(1, 4));
      if (end.rank() != 2) {
        axis.all_reduce(sums, q);
        q.finish();
      }
      for (const auto until = deadline_in(60); end.failure().empty() && std::chrono::steady_clock::now() < until;)
        std::this_thread::yield();
      CHECK(end.failure().find(": the collective over the tensor axis, has not been done for 0.200000 s") != std::string::npos);
    });
  }
  CHECK(world.alive() == 0);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}
