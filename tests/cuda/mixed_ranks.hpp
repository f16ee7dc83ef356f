// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "host_transport.hpp"
#include "nccl_ranks.hpp"

namespace hetsched::test {

/// NCCL between some ranks, a transport of the hosts between others.
using is_direct = std::function<bool(const edge&)>;
struct by_edge {
  is_direct direct;
  routed_edge operator()(const edge& e) const { return {direct(e) ? 0u : 1u, e}; }
};
using mixed_ranks = router<nccl_control, by_edge, nccl_ranks, host_transport>;
static_assert(communicator<mixed_ranks, fake_tensor> && byte_plane<mixed_ranks>);
static_assert(calling_plane<mixed_ranks> && detail::partly_ordered<mixed_ranks>);
static_assert(!ordered_plane<router<nccl_control, by_edge, host_transport>>);

/// `places`: of each rank, a device or -1.
inline std::vector<mixed_ranks> connect_mixed(fake_devices& devices, fake_nccl_world& world, const std::vector<int>& places,
                                              const is_direct& direct) {
  const auto ranks = static_cast<int>(places.size());
  std::vector<mixed_ranks> ends;
  auto hosts = thread_communicator<matrix<double>>::connect(ranks);
  for (auto& control : nccl_control::connect(ranks)) {
    const auto r = static_cast<std::size_t>(control.rank());
    const hetsched::link fast{.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()};
    host_transport host(shaped_communicator(hosts[r], [=](int, int) { return fast; }), *devices.api().gpus);
    nccl_ranks between_devices(devices, places[r], control, fake_nccl{&world});
    ends.emplace_back(std::move(control), by_edge{direct}, std::move(between_devices), std::move(host));
  }
  return ends;
}

}  // namespace hetsched::test
