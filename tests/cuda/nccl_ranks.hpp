// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/cuda/nccl_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "fake_layers.hpp"
#include "fake_nccl.hpp"

namespace hetsched::test {

using nccl_control = thread_communicator<matrix<double>>;
template <class Api>
using strict_nccl = nccl_communicator<strict_tensor<Api>, Api, fake_nccl, nccl_control>;
using nccl_ranks = strict_nccl<cuda_check::api>;

inline std::vector<int> numbered_places(int ranks) {
  std::vector<int> places(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < places.size(); ++r) places[r] = static_cast<int>(r);
  return places;
}

/// A rank per device.
inline std::vector<nccl_ranks> connect_nccl(fake_devices& devices, fake_nccl_world& world, int ranks,
                                            const nccl_options& options = {}) {
  std::vector<nccl_ranks> ends;
  for (auto& end : nccl_control::connect(ranks)) {
    const int r = end.rank();
    ends.emplace_back(devices, r, std::move(end), fake_nccl{&world}, options);
  }
  return ends;
}

}  // namespace hetsched::test
