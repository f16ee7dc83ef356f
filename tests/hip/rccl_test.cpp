// SPDX-License-Identifier: Apache-2.0
// Compiled by itself: the header that stands in for RCCL's has names of HIP's.
// RCCL's calls as a policy, with a fake world behind them.
#include <hetsched/hip/rccl.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/hip/call_name.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include "../cuda/nccl_ranks.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(nccl_register_api<rccl_runtime>);

namespace {

/// Strict devices with the names of HIP.
struct amd_for_rccl {
  static std::string call_name(const char* name) { return hip_call_name(name); }
};
using strict_hip = cuda_check::api_of<amd_for_rccl>;
using over_rccl = nccl_communicator<strict_tensor<strict_hip>, strict_hip, rccl_runtime, nccl_control>;
static_assert(communicator<over_rccl, strict_tensor<strict_hip>>);

}  // namespace

TEST_CASE("[threads] ranks of HIP over RCCL's calls have the bits of one device") {
  const auto order = one_f_one_b({3, 2, 1}, 4);
  const task<double> t(1, {1, 1, 1}, 4);
  cuda_check::machine machine({.seed = 3, .devices = 3});
  fake_nccl_world world(machine);
  rccl_world = &world;
  {
    cuda_devices<strict_hip> devices(strict_hip{&machine});
    std::vector<over_rccl> ends;
    for (auto& control : nccl_control::connect(3)) {
      const int r = control.rank();
      ends.emplace_back(devices, r, std::move(control), rccl_runtime(), nccl_options{.channels = 2});
    }
    outcome_of_step<double> result;
    result.losses.assign(t.inputs.size(), 0);
    result.gradients.resize(order.rank_of.size());
    std::array<std::vector<double>, 3> losses;
    run_on_threads(std::move(ends), [&](over_rccl& end) {
      run_rank<false>(devices, end, end.rank(), t, order, {.deadline_s = 60}, 2, losses[static_cast<std::size_t>(end.rank())],
                      result);
    });
    for (const auto& part : losses)
      for (std::size_t m = 0; m < part.size(); ++m) result.losses[m] += part[m];
    CHECK(result == reference(t, order));
    CHECK(world.calls("ncclSend") > 0);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
}

TEST_CASE("collectives by RCCL's calls add up, gather, scatter, and go to and from one rank") {
  cuda_check::machine machine({.devices = 2});
  fake_nccl_world world(machine);
  rccl_world = &world;
  const strict_hip hip{&machine};
  const rccl_runtime rccl;
  struct rank_of_two {
    strict_hip::stream stream{};
    strict_hip::pool pool{};
    void *memory = nullptr, *seen = nullptr;
    rccl_runtime::communicator with{};
    [[nodiscard]] double* numbers(std::size_t k = 0) const { return static_cast<double*>(memory) + k; }
  };
  std::array<rank_of_two, 2> ranks;
  nccl_id id{};
  constexpr std::size_t bytes = 8 * sizeof(double);
  REQUIRE(rccl.unique_id(id) == 0);
  // A thread stands for each process.
  const auto each = [&](const std::function<void(int, rank_of_two&)>& body) {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        REQUIRE(hip.set_device(r) == 0);
        body(r, ranks[static_cast<std::size_t>(r)]);
      });
  };
  const auto settles = [&](const rank_of_two& own) {
    for (int state = 7;; std::this_thread::yield())
      if (rccl.state(own.with, state) != 0 || state != 7) return state == 0;
  };
  each([&](int r, rank_of_two& own) {
    REQUIRE(hip.create_stream(own.stream) == 0);
    REQUIRE(hip.create_pool(r, own.pool) == 0);
    REQUIRE(hip.allocate(own.memory, bytes, own.pool, own.stream) == 0);
    REQUIRE(hip.allocate_pinned(own.seen, bytes) == 0);
    CHECK(rccl.connect(own.with, 2, id, r, {.network = {}, .least_channels = 0, .most_channels = 2}) == 7);
    CHECK(settles(own));
  });
  // What a collective makes of 1, 2 | 10, 20 by rank, in the numbers from 4 on.
  const auto after = [&](const std::function<int(int, const rank_of_two&)>& call) {
    std::array<std::vector<double>, 2> found;
    each([&](int r, rank_of_two& own) {
      auto* const host = static_cast<double*>(own.seen);
      for (std::size_t k = 0; k < 8; ++k) host[k] = k < 2 ? (r == 0 ? 1.0 : 10.0) * static_cast<double>(k + 1) : 0;
      REQUIRE(hip.copy(own.memory, own.seen, bytes, own.stream) == 0);
      CHECK(call(r, own) % 7 == 0);
      CHECK(settles(own));
      REQUIRE(hip.copy(own.seen, own.memory, bytes, own.stream) == 0);
      REQUIRE(hip.synchronize(own.stream) == 0);
      found[static_cast<std::size_t>(r)].assign(host + 4, host + 8);
    });
    return found;
  };
  using rows = std::array<std::vector<double>, 2>;
  constexpr auto f64 = nccl_type::f64;
  CHECK(after([&](int, const rank_of_two& o) { return rccl.all_reduce(o.numbers(), o.numbers(4), 2, f64, o.with, o.stream); }) ==
        rows{{{11, 22, 0, 0}, {11, 22, 0, 0}}});
  CHECK(after([&](int, const rank_of_two& o) { return rccl.all_gather(o.numbers(), o.numbers(4), 2, f64, o.with, o.stream); }) ==
        rows{{{1, 2, 10, 20}, {1, 2, 10, 20}}});
  CHECK(after([&](int, const rank_of_two& o) {
          return rccl.reduce_scatter(o.numbers(), o.numbers(4), 1, f64, o.with, o.stream);
        }) == rows{{{11, 0, 0, 0}, {22, 0, 0, 0}}});
  CHECK(after([&](int, const rank_of_two& o) {
          return rccl.broadcast(o.numbers(), o.numbers(4), 2, f64, 1, o.with, o.stream);
        }) == rows{{{10, 20, 0, 0}, {10, 20, 0, 0}}});
  CHECK(after([&](int r, const rank_of_two& o) {
          return rccl.reduce(o.numbers(), r == 0 ? o.numbers(4) : nullptr, 2, f64, 0, o.with, o.stream);
        }) == rows{{{11, 22, 0, 0}, {0, 0, 0, 0}}});
  each([&](int, rank_of_two& own) {
    CHECK(rccl.finish(own.with) % 7 == 0);
    CHECK(settles(own));
    CHECK(rccl.destroy(own.with) == 0);
    CHECK(hip.free(own.memory, own.stream) == 0);
    CHECK(hip.synchronize(own.stream) == 0);
    CHECK(hip.free_pinned(own.seen) == 0);
    CHECK(hip.destroy_stream(own.stream) == 0);
    CHECK(hip.destroy_pool(own.pool) == 0);
  });
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
  CHECK(rccl.error_text(4) == "an error of the stub");
  CHECK(rccl.last_error(nullptr).empty());
}
