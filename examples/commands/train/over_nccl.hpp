// SPDX-License-Identifier: Apache-2.0
// NCCL between GPUs of several processes.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/cuda/nccl_communicator.hpp>
#include <hetsched/runtime/communicator/router.hpp>

#include <train/place.hpp>

namespace train {

/// Which ranks' tensors go over NCCL.
struct nccl_route {
  std::shared_ptr<const std::vector<char>> on_gpu;
  [[nodiscard]] hetsched::routed_edge operator()(const hetsched::edge& e) const {
    const auto is = [&](int rank) { return (*on_gpu)[static_cast<std::size_t>(rank)] != 0; };
    return {is(e.from) && is(e.to) ? 0u : 1u, e};
  }
};

/// Calls body(Communicator&) with NCCL between those of a network's ranks that are on GPUs; all ranks call it, behind
/// agree_on_way. `place`: a GPU, or -1. `options`: the same on all.
template <class Tensor, class Api, class NcclApi, class Network, class Body>
void over_nccl(hetsched::cuda_devices<Api>& devices, int place, NcclApi api, Network& network,
               const hetsched::nccl_options& options, Body&& body) {
  std::vector<char> on_gpu;
  for (const auto& told : gather(network, {place < 0 ? 0.0 : 1.0}, options.deadline_s, "comparing devices"))
    on_gpu.push_back(told.front() != 0);
  using between_gpus = hetsched::nccl_communicator<Tensor, Api, NcclApi, Network>;
  hetsched::router<Network, nccl_route, between_gpus, Network> both(
      network, nccl_route{std::make_shared<const std::vector<char>>(std::move(on_gpu))},
      between_gpus(devices, place, network, std::move(api), options), network);
  body(both);
}

}  // namespace train
