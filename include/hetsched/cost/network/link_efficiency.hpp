// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <hetsched/cluster/link_kind.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/network/collective.hpp>

namespace hetsched {

/// What collectives of NCCL make of the latency and the bandwidth of a link that a datasheet tells.
struct link_efficiency {
  double pair_share = 1;      ///< of the bandwidth, with large tensors, between two ranks
  double share = 1;           ///< among more
  double switch_share = 0;    ///< of the bandwidth, in an all-reduce that switches add up; 0: they do not
  double step = 0.099;        ///< latencies that each step after the first takes
  double own_part = 0.286;    ///< what a rank's own part takes beside one that it sends
  double fill = 3.65;         ///< latencies that filling the pipeline of large tensors takes
  double switch_fill = 11.4;  ///< the same by way of switches
  double slowdown = 3.85;     ///< of small tensors, which take a protocol that needs no full pipeline
};

/// The constants of a kind of link; those of link_kind::measured are not for use.
///
/// Source: fitted by bench/validation/links.cpp to NCCL on A100, H100, H200 and B200 (NVLink), A100 without it and TITAN X (PCIe
/// with peer access), M40, P100, L40S and RTX PRO 6000 (PCIe by way of hosts). docs/accuracy/links-in-a-node.md judges links
/// that were left out.
[[nodiscard]] constexpr link_efficiency efficiency_of(link_kind kind) {
  switch (kind) {
    case link_kind::nvlink:
      return {.pair_share = 0.732, .share = 0.732};
    case link_kind::nvlink_sharp:
      return {.pair_share = 0.732, .share = 0.732, .switch_share = 0.538};
    case link_kind::pcie_p2p:
      return {.pair_share = 0.764, .share = 0.764};
    case link_kind::pcie:
      return {.pair_share = 0.72, .share = 0.281};
    case link_kind::measured:
      break;
  }
  return {};
}

namespace detail {

// Steps in a row, and what moves at full speed in `moved_s`. The slope falls from that of small tensors to 1 while the pipeline
// fills, which takes fill_s in all.
[[nodiscard]] constexpr double nccl_s(double latency_s, double moved_s, double fill_s, double slowdown) {
  const double filling_s = moved_s > 0 && fill_s > 0 ? 1 / (1 / fill_s + 1 / ((slowdown - 1) * moved_s)) : 0;
  return latency_s + moved_s + filling_s;
}

// As nccl_collective_s, unchecked.
[[nodiscard]] constexpr double unchecked_nccl_s(collective kind, int ranks, double bytes, const link& over,
                                                const link_efficiency& e) {
  if (ranks == 1 || bytes == 0) return 0;
  const int hops = (kind == collective::all_reduce ? 2 : 1) * (ranks - 1);
  // An all-to-all sends to all at once; a broadcast sends the whole tensor along the ring.
  const int steps = kind == collective::all_to_all ? 1 : hops;
  const double moved = kind == collective::broadcast ? bytes : bytes / ranks * (hops + e.own_part);
  const auto price = [&](int in_a_row, double crossing, double share, double fill) {
    return nccl_s(over.latency_s * (1 + e.step * (in_a_row - 1)), crossing / (share * over.bandwidth), fill * over.latency_s,
                  e.slowdown);
  };
  const double ring_s = price(steps, moved, ranks == 2 ? e.pair_share : e.share, e.fill);
  if (kind != collective::all_reduce || e.switch_share == 0) return ring_s;
  return std::min(ring_s, price(ranks - 1, bytes, e.switch_share, e.switch_fill));
}

}  // namespace detail

/// Seconds of a collective of NCCL on `bytes` (as in collective.hpp) among `ranks` devices of a node, whose link has the latency
/// of the smallest collective of two ranks and the bandwidth of its datasheet: around a ring, or, of an all-reduce, by way of the
/// switches where that is faster. 0 for one rank.
/// Requires: constants like those of efficiency_of.
/// Throws: input_error unless ranks are 1 to 2^24, bytes and latency finite and at least 0, and the bandwidth above 0, and for a
/// point_to_point.
/// Complexity: O(1).
[[nodiscard]] inline double nccl_collective_s(collective kind, int ranks, double bytes, const link& over,
                                              const link_efficiency& e) {
  detail::expect_count(ranks, "the ranks of a collective", 1, 1 << 24);
  detail::expect_natural(bytes, "the bytes of a collective");
  detail::expect_natural(over.latency_s, "the latency of a link");
  if (!(over.bandwidth > 0)) detail::expect_positive(over.bandwidth, "the bandwidth of a link");
  if (kind == collective::point_to_point) throw input_error("a message between two ranks is no collective of a node");
  return detail::unchecked_nccl_s(kind, ranks, bytes, over, e);
}

/// Seconds of a collective as libraries run it: on one node whose link is a datasheet's by nccl_collective_s, else by the fastest
/// algorithm's formula.
/// Throws: as either.
[[nodiscard]] inline double library_collective_s(collective kind, const rank_group<>& group, double bytes) {
  if (group.nodes != 1 || group.inside.kind == link_kind::measured) return fastest_collective_s(kind, group, bytes);
  return nccl_collective_s(kind, group.per_node, bytes, group.inside, efficiency_of(group.inside.kind));
}

}  // namespace hetsched
