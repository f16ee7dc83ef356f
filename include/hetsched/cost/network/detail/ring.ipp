// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/core/compiled.hpp>
#include <hetsched/cost/network/detail/ring.hpp>

namespace hetsched::detail {

HETSCHED_INLINE double all_to_all_s(const cluster& c, const submesh& mesh, int stride, int ranks, double bytes) {
  if (ranks == 1 || bytes == 0) return 0;
  const auto& s = subcluster_of(c, mesh);
  const int on_node = mesh.nodes == 1 ? ranks : std::min(ranks, std::max(1, mesh.devices_per_node / stride));
  const double part = bytes / ranks;
  const double near_s =
      s.intra_node.kind == link_kind::measured
          ? (on_node - 1) * s.intra_node.transfer_s(part)
          : unchecked_nccl_s(collective::all_to_all, on_node, part * on_node, s.intra_node, efficiency_of(s.intra_node.kind));
  return on_node == ranks
             ? near_s
             : near_s + (ranks - on_node) * s.between_nodes(mesh.devices_per_node).transfer_s(part * mesh.devices_per_node);
}

}  // namespace hetsched::detail
