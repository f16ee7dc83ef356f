// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cuda/api.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/measure/profile_links.hpp>

namespace hetsched {

/// What CUDA knows of a device.
struct cuda_properties {
  std::string name;
  std::size_t memory_bytes = 0, l2_bytes = 0;
  int multiprocessors = 0;
  double clock_hz = 0;
  int major = 0, minor = 0;  ///< compute capability
  std::string pci = {};      ///< where it is, as Linux writes it: 0000:17:00.0
};
/// The number of a PCI Express device as Linux writes it.
[[nodiscard]] inline std::string pci_name(int domain, int bus, int device) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(device));
  return text;
}
/// How a device reaches another one's memory.
struct cuda_peer {
  bool direct = false;  ///< else copies go by way of the host
  int rank = 0;         ///< CUDA's performance rank: 0 is the best of the machine
};

/// A cuda_api that tells what there is.
///   properties(int device, cuda_properties&)             [cudaGetDeviceProperties, cudaDeviceGetAttribute]
///   peer(cuda_peer&, int from, int to)                   [cudaDeviceCanAccessPeer, cudaDeviceGetP2PAttribute]
/// Not checked: any of that.
template <class A>
concept cuda_query_api = cuda_api<A> && requires(const A& a, int device, cuda_properties& found, cuda_peer& peer) {
  { a.properties(device, found) } -> std::same_as<int>;
  { a.peer(peer, device, device) } -> std::same_as<int>;
};

/// A GPU as clusters have it, as far as CUDA knows: without its rates, which are to be measured.
/// Throws: cuda_error.
template <cuda_query_api Api>
[[nodiscard]] device describe_device(const cuda_devices<Api>& devices, int number) {
  cuda_properties found;
  detail::require_cuda(devices.api(), devices.api().properties(number, found), "cudaGetDeviceProperties", "the cluster", number);
  return {.name = found.name,
          .memory_bytes = static_cast<bytes_t>(found.memory_bytes),
          .multiprocessors = found.multiprocessors,
          .l2_bytes = static_cast<bytes_t>(found.l2_bytes),
          .clock_hz = found.clock_hz};
}

struct copy_options {
  std::vector<std::size_t> bytes = {std::size_t{1} << 10, std::size_t{1} << 16, std::size_t{1} << 22, std::size_t{1} << 26};
  int warmup = 3, repeats = 9;
};

/// Times copies from one GPU to another, or within one, by events of the target's.
/// Requires: options.times of the devices. Throws: cuda_error; input_error for a device that is not there.
template <cuda_api Api>
[[nodiscard]] std::vector<link_sample> profile_copies(cuda_devices<Api>& devices, int from, int to,
                                                      const copy_options& how = {}) {
  cuda_backend<Api> own(devices, to, "copies that are timed");
  const auto bound = own.bind();
  const auto lent = devices.lend_queue(from, "memory of copies");
  const auto q = own.compute_queue(), there = from == to ? q : *lent;
  std::vector<link_sample> found;
  for (const auto bytes : how.bytes) {
    cuda_buffer<Api> source(there, bytes), target(q, bytes);
    work_on(there, {}, {&source},
            [&] { there.own()->require(there.api().set_zero(source.data(), bytes, there.stream()), "cudaMemsetAsync"); });
    const int runs = how.warmup + how.repeats;
    auto clock = own.make_clock(std::vector<std::string>(as_size(runs), "copy"));
    for (int run = 0; run < runs; ++run) {
      source.begin_read(q);
      clock.time(as_size(run), [&] { enqueue_copy(q, target, source); });
      source.end_read(q, q.record());
    }
    q.finish();
    clock.read();
    std::vector<double> seconds;
    for (int run = how.warmup; run < runs; ++run) {
      const auto k = as_size(run);
      seconds.push_back(clock.end_s(k) - clock.start_s(k));
    }
    found.push_back({.bytes = static_cast<bytes_t>(bytes), .took = median_and_spread(std::move(seconds))});
  }
  return found;
}

}  // namespace hetsched
