// SPDX-License-Identifier: Apache-2.0
// Ranks on the strict devices of two vendors and on hosts, in one pipeline.
#include <hetsched/hip/call_name.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/text.hpp>

#include "../cuda/host_transport.hpp"
#include "../cuda/nccl_ranks.hpp"
#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Strict devices with the names of HIP, and a type of their own.
struct amd {
  static std::string call_name(const char* name) { return hip_call_name(name); }
};
using hip_fake = cuda_check::api_of<amd>;
static_assert(cuda_graph_api<hip_fake> && cuda_query_api<hip_fake> && !std::same_as<hip_fake, cuda_check::api>);

/// What a rank computes on.
enum class maker { cuda, hip, host };

/// The collective library of a vendor between its own ranks, in numbers of their own; the hosts' network between all others.
struct by_maker {
  std::vector<maker> of;
  std::vector<int> number;  ///< of a rank among those of its maker
  [[nodiscard]] bool joins(int a, int b) const {
    const auto x = static_cast<std::size_t>(a), y = static_cast<std::size_t>(b);
    return of[x] == of[y] && of[x] != maker::host;
  }
  routed_edge operator()(const edge& e) const {
    if (!joins(e.from, e.to)) return {1, e};
    auto own = e;
    own.from = number[static_cast<std::size_t>(e.from)];
    own.to = number[static_cast<std::size_t>(e.to)];
    return {0, own};
  }
};
template <class Api>
using device_end = router<nccl_control, by_maker, strict_nccl<Api>, host_transport>;
using host_end = thread_communicator<matrix<double>>;
static_assert(communicator<device_end<hip_fake>, strict_tensor<hip_fake>> && communicator<host_end, matrix<double>>);

/// One rank's end, whatever it computes on.
struct any_end {
  std::variant<device_end<cuda_check::api>, device_end<hip_fake>, host_end> own;
  void abort(const std::string& reason) {
    std::visit([&](auto& end) { end.abort(reason); }, own);
  }
};

/// GPUs of one vendor, a rank each.
template <class Api>
struct vendor {
  vendor(const cuda_check::habits& how, const cuda_options& options)
      : machine(how), world(machine), devices(Api{&machine}, options) {}
  cuda_check::machine machine;
  fake_nccl_world world;
  cuda_devices<Api> devices;
};

void run_on_host(host_end& end, const task<double>& t, const schedule& order, const executor_options& options, int steps,
                 std::vector<double>& losses, outcome_of_step<double>& result) {
  std::vector<dense_stage<double>> stages;
  const auto copies = stages_of_rank(order, end.rank());
  for (const auto& c : copies) stages.push_back(t.stage(c.stage));
  pipeline_executor<matrix<double>, dense_stage<double>, host_end> executor(order, stages, t.boundaries(), end, options);
  for (int i = 0; i < steps; ++i)
    executor.step(std::span<const matrix<double>>(t.inputs), std::span<const matrix<double>>(t.targets), task<double>::loss);
  losses.assign(executor.losses().begin(), executor.losses().end());
  for (std::size_t i = 0; i < copies.size(); ++i)
    result.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)] =
        copies_of<double>(stages[i].gradients());
}

/// Two steps; the last one's results. A rank on a GPU has the device of its number among those of its vendor.
outcome_of_step<double> run_mixed(vendor<cuda_check::api>& cuda, vendor<hip_fake>& hip, const by_maker& route,
                                  const task<double>& t, const schedule& order, const executor_options& options) {
  const auto count = [&](maker m) { return static_cast<int>(std::count(route.of.begin(), route.of.end(), m)); };
  auto hosts = host_end::connect(order.ranks);
  auto of_cuda = nccl_control::connect(count(maker::cuda)), of_hip = nccl_control::connect(count(maker::hip));
  std::vector<any_end> ends;
  for (std::size_t r = 0; r < route.of.size(); ++r) {
    const auto device = [&]<class Api>(vendor<Api>& of, auto& controls) {
      const hetsched::link fast{.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()};
      host_transport network(shaped_communicator(hosts[r], [=](int, int) { return fast; }), of.machine);
      strict_nccl<Api> between(of.devices, route.number[r], at(controls, route.number[r]), fake_nccl{&of.world});
      return any_end{device_end<Api>(hosts[r], route, std::move(between), std::move(network))};
    };
    switch (route.of[r]) {
      case maker::cuda:
        ends.push_back(device(cuda, of_cuda));
        break;
      case maker::hip:
        ends.push_back(device(hip, of_hip));
        break;
      case maker::host:
        ends.push_back({hosts[r]});
        break;
    }
  }
  constexpr int steps = 2;
  outcome_of_step<double> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(route.of.size());
  run_on_threads(std::move(ends), [&](any_end& any) {
    std::visit(
        [&](auto& end) {
          const auto r = static_cast<std::size_t>(end.rank());
          if constexpr (std::same_as<decltype(end), host_end&>)
            run_on_host(end, t, order, options, steps, losses[r], result);
          else if constexpr (std::same_as<decltype(end), device_end<hip_fake>&>)
            run_rank<true>(hip.devices, end, route.number[r], t, order, options, steps, losses[r], result);
          else
            run_rank<true>(cuda.devices, end, route.number[r], t, order, options, steps, losses[r], result);
        },
        any.own);
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.losses[m] += part[m];
  return result;
}

by_maker routes(std::vector<maker> of) {
  by_maker route{.of = std::move(of), .number = {}};
  for (std::size_t r = 0; r < route.of.size(); ++r)
    route.number.push_back(
        static_cast<int>(std::count(route.of.begin(), route.of.begin() + static_cast<std::ptrdiff_t>(r), route.of[r])));
  return route;
}

/// Whether ranks of all three have stages.
bool uses_all(const schedule& order, const by_maker& route) {
  return std::all_of(route.of.begin(), route.of.begin() + 3, [&, r = 0](maker) mutable {
    return std::find(order.rank_of.begin(), order.rank_of.end(), r++) != order.rank_of.end();
  });
}
/// Whether devices of one vendor exchange tensors of neighbouring stages.
bool uses_peers(const schedule& order, const by_maker& route) {
  for (int c = 0; c < order.directions; ++c)
    for (int s = 1; s < order.stages; ++s)
      if (const int a = order.rank(c, s - 1), b = order.rank(c, s); a != b && route.joins(a, b)) return true;
  return false;
}
/// Whether gradients of two directions are to be added where nothing joins the devices that have them.
bool adds_across(const schedule& order, const by_maker& route) {
  if (order.directions < 2) return false;
  for (int s = 0; s < order.stages; ++s) {
    const int a = order.rank(0, s), b = order.rank(1, s);
    if (a != b && !route.joins(a, b)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("[threads] random pipelines of CUDA's, HIP's and hosts' ranks have the bits of hosts") {
  const int wanted = 200 / sanitizer_share;
  int ran = 0, by_peers = 0;
  for (std::uint64_t seed = 1; ran < wanted && seed < 4000; ++seed) {
    random_source random(seed);
    schedule order = random_schedule(random, {.transfers = false, .parameters = false, .swaps = false});
    // Ranks of all three; the fourth is of any.
    std::vector<maker> of{maker::cuda, maker::hip, maker::host};
    for (std::size_t k = of.size(); k > 1; --k)
      std::swap(of[k - 1], of[static_cast<std::size_t>(random.integer(0, static_cast<int>(k) - 1))]);
    if (order.ranks < 3) continue;
    if (order.ranks == 4) of.push_back(at(std::array{maker::cuda, maker::hip, maker::host}, random.integer(0, 2)));
    const auto route = routes(of);
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!uses_all(order, route) || adds_across(order, route) || !check(order, how).empty()) continue;
    const bool own_lanes = random.integer(0, 1) == 0;
    order = stage_transfers(add_transfers(order), [&](int a, int b) {
      const bool on_hosts = of[static_cast<std::size_t>(a)] == maker::host && of[static_cast<std::size_t>(b)] == maker::host;
      return !route.joins(a, b) && !on_hosts;
    });
    if (own_lanes) order = split_streams(order);
    const std::string text = to_csv(order);
    CAPTURE(seed);
    CAPTURE(text);
    const task<double> t(seed, std::vector<int>(static_cast<std::size_t>(order.stages), 1), order.microbatches);
    const auto habits = [&] {
      return cuda_check::habits{.seed = static_cast<std::uint64_t>(random.integer(1, 1 << 30)),
                                .devices = 2,
                                .most_turns_late = random.integer(0, 8),
                                .lazy = random.integer(0, 1) == 0,
                                .in_order = random.integer(0, 1) == 0,
                                .launch_queue = random.integer(0, 1) == 0 ? std::size_t{32} : std::size_t{1024},
                                .reach = random.integer(0, 1) == 0};
    };
    const auto devices = [&] { return cuda_options{.records = static_cast<std::size_t>(random.integer(1, 2))}; };
    vendor<cuda_check::api> cuda(habits(), devices());
    vendor<hip_fake> hip(habits(), devices());
    const executor_options options{.deadline_s = 60, .staging_chunk_bytes = std::size_t{8} << random.integer(0, 3)};
    const auto expected = run_on_threads(t, order, options, 2);
    CHECK(expected == reference(t, order));
    CHECK(run_mixed(cuda, hip, route, t, order, options) == expected);
    ++ran;
    by_peers += uses_peers(order, route);
    for (auto* m : {&cuda.machine, &hip.machine})
      for (const auto& r : m->reports()) FAIL_CHECK(r);
    CHECK(cuda.world.alive() + hip.world.alive() == 0);
  }
  CHECK(ran == wanted);
  CHECK(by_peers >= wanted / 10);
}

TEST_CASE("[threads] a rank on HIP's device that has no memory left ends those on CUDA's and on hosts, and names HIP's call") {
  const auto route = routes({maker::cuda, maker::hip, maker::host});
  const auto order = by_way_of_hosts(one_f_one_b({3, 2, 1}, 4), [](int, int) { return true; });
  const task<double> t(1, {1, 1, 1}, 4);
  vendor<cuda_check::api> cuda({.seed = 1, .devices = 1}, {});
  vendor<hip_fake> hip({.seed = 2, .devices = 1}, {.limit_bytes = 512});
  const auto text = [&]() -> std::string {
    try {
      (void)run_mixed(cuda, hip, route, t, order, {.deadline_s = 60});
      return "nothing";
    } catch (const cuda_error& e) {
      return e.what();
    }
  }();
  CAPTURE(text);
  CHECK(text.starts_with("hipMallocFromPoolAsync failed for a buffer of "));
  CHECK(text.find(" of the limit of 512 are in use") != std::string::npos);
}

TEST_CASE("errors of a vendor's runtime name its calls") {
  const auto text = [](auto api) {
    try {
      const cuda_devices<decltype(api)> devices(api);
    } catch (const cuda_error& e) {
      return e.call + ": " + e.what();
    }
    return std::string();
  };
  cuda_check::machine none({.no_gpu = 100});
  CHECK(text(cuda_check::api{&none}) ==
        "cudaGetDeviceCount: there is no GPU to use: cudaGetDeviceCount: an error of the strict device (100)");
  CHECK(text(hip_fake{&none}) ==
        "hipGetDeviceCount: there is no GPU to use: hipGetDeviceCount: an error of the strict device (100)");
  CHECK(hip_call_name("cudaHostAlloc") == "hipHostMalloc");
  CHECK(hip_call_name("cudaFreeHost") == "hipHostFree");
  CHECK(hip_call_name("a kernel") == "a kernel");
}
