// SPDX-License-Identifier: Apache-2.0
// CUDA IPC between GPUs of several processes of a host.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/cuda/ipc_communicator.hpp>
#include <hetsched/runtime/communicator/router.hpp>

#include <train/host_number.hpp>
#include <train/place.hpp>

namespace train {

/// What lies between stages goes from GPU to GPU where both are of one host; all else over the network.
struct ipc_route {
  std::shared_ptr<const std::vector<double>> host;  ///< by rank; -1: it is on no GPU
  [[nodiscard]] hetsched::routed_edge operator()(const hetsched::edge& e) const {
    const auto of = [&](int rank) { return (*host)[static_cast<std::size_t>(rank)]; };
    const bool is_between_stages = e.what == hetsched::payload::activation || e.what == hetsched::payload::gradient;
    return {is_between_stages && of(e.from) >= 0 && of(e.from) == of(e.to) ? 0u : 1u, e};
  }
};

/// Calls body(Communicator&) with CUDA IPC between those of a network's ranks that are on GPUs of one host; all ranks call it,
/// behind agree_on_way. `place`: a GPU, or -1.
template <class Tensor, class Api, class Network, class Body>
void over_ipc(hetsched::cuda_devices<Api>& devices, int place, Network& network, double deadline_s, Body&& body) {
  std::vector<double> host;
  for (const auto& told : gather(network, {place < 0 ? -1.0 : host_number()}, deadline_s, "comparing devices"))
    host.push_back(told.front());
  using between_gpus = hetsched::cuda_ipc_communicator<Tensor, Api, Network>;
  between_gpus direct(devices, place, network, {.deadline_s = deadline_s});
  hetsched::router<Network, ipc_route, between_gpus, Network> both(
      network, ipc_route{std::make_shared<const std::vector<double>>(std::move(host))}, direct, network);
  body(both);
  direct.close();
}

}  // namespace train
