// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/tolerances.hpp>

namespace hetsched {

namespace detail {

/// `links`: a cluster, or what else has its between.
template <class Links>
[[nodiscard]] std::optional<link> link_between(const cluster& c, const Links& links, const submesh& from, const submesh& to) {
  const auto& s = subcluster_of(c, from);
  static_cast<void>(subcluster_of(c, to));
  if (from.subcluster != to.subcluster) return links.between(from.subcluster, to.subcluster);
  return s.nodes > 1 ? s.inter_node : s.intra_node;
}

}  // namespace detail

/// The link from one stage to another: that of their subclusters; inside a subcluster of several nodes its inter_node link, of
/// one port, else its intra_node link. None where no link joins the subclusters. O(links).
/// Throws: input_error for subclusters that the cluster does not have.
[[nodiscard]] inline std::optional<link> link_between(const cluster& c, const submesh& from, const submesh& to) {
  return detail::link_between(c, c, from, to);
}

/// Seconds to move `bytes` over link_between; infinity where there is none. O(links).
/// Throws: as link_between, and input_error unless bytes are finite and at least 0.
[[nodiscard]] inline double stage_transfer_s(const cluster& c, const submesh& from, const submesh& to, double bytes) {
  detail::expect_natural(bytes, "the bytes of a transfer");
  const auto over = link_between(c, from, to);
  return over ? over->transfer_s(bytes) : infinity;
}

/// Pieces into which even cuts over the tensor ranks of several stages cut a parameter together.
/// Throws: input_error for a tensor degree below 1, and for cuts into more than 2^24 pieces.
[[nodiscard]] std::int64_t union_of_cuts(std::span<const placement> holders);

/// Seconds to add up `bytes` of gradients that each of several stages holds, cut over its tensor ranks as it likes: a ring for
/// every piece of the union of their cuts. Every hop is as slow as the slowest link between any two of the stages, in the slower
/// direction, where the ports of their nodes (on one node: of their devices) work at once, each on one piece at a time; infinity
/// where two have no link. O(holders^2 * links + pieces * holders).
/// Throws: as stage_transfer_s and union_of_cuts, and input_error for a stage of less than 1 x 1 devices.
/// Source: HexiScale sec. 3.2 (asymmetric gradients).
[[nodiscard]] double gradient_reduction_s(const cluster& c, std::span<const placement> holders, double bytes);

/// The same with an index of the cluster's links. O(holders^2 * log links + pieces * holders).
[[nodiscard]] double gradient_reduction_s(const cluster& c, const link_index& links, std::span<const placement> holders,
                                          double bytes);

/// Seconds to add up `bytes` of gradients of parameters that two stages of a pipeline share, as gradient_exchange does: every
/// replica of both adds up a part and hands its sum to the others, so that for m and n replicas 2 m n / (m + n) times the bytes
/// cross between the stages either way. Infinity where no link joins them.
/// Throws: as gradient_reduction_s.
[[nodiscard]] double shared_reduction_s(const cluster& c, const placement& a, const placement& b, double bytes);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/network/transfer.ipp>
#endif
