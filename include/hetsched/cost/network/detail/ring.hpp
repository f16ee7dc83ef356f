// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cost/network/link_efficiency.hpp>

namespace hetsched::detail {

// Ranks in a ring, and what each link of the ring has for it.
struct ring {
  int ranks;
  link hop;

  // An all-gather or reduce-scatter takes one pass over the whole tensor of `bytes`, an all-reduce two.
  [[nodiscard]] double collective_s(int passes, double bytes) const {
    if (ranks == 1 || bytes == 0) return 0;
    if (hop.kind == link_kind::measured) return passes * (ranks - 1) * hop.transfer_s(bytes / ranks);
    return unchecked_nccl_s(passes == 2 ? collective::all_reduce : collective::all_gather, ranks, bytes, hop,
                            efficiency_of(hop.kind));
  }
};

// Rings of `ranks` ranks that lie `stride` <= devices per node apart, all at once. Those that leave their node share its network
// ports.
[[nodiscard]] inline ring ring_on(const cluster& c, const submesh& mesh, int stride, int ranks) {
  const auto& s = subcluster_of(c, mesh);
  if (mesh.nodes == 1 || mesh.devices_per_node % (stride * ranks) == 0) return {ranks, s.intra_node};
  auto hop = s.between_nodes(mesh.devices_per_node);
  hop.bandwidth /= stride;
  return {ranks, hop};
}

// What `ranks` ranks that lie `stride` apart take to send each other the parts of `bytes`, all such groups of a mesh at once: to
// one partner after the other, where all devices of a node share its network ports.
[[nodiscard]] double all_to_all_s(const cluster& c, const submesh& mesh, int stride, int ranks, double bytes);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/network/detail/ring.ipp>
#endif
