// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer_model.hpp>

namespace hetsched {

/// What a group of ranks does together. Its `bytes` are those of the tensor that every rank has before it (all_reduce,
/// reduce_scatter, all_to_all), or in the end (all_gather, broadcast), or that one rank sends another (point_to_point).
enum class collective { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, point_to_point };

/// ring: neighbours in a circle, most bandwidth. tree: halving and doubling, or two trees that share the work; least latency.
/// hierarchical: inside every node, then across the nodes, so that little leaves a node.
enum class collective_algorithm { ring, tree, hierarchical };

/// Bytes that cross the busiest direction of a rank's link for each byte of the tensor, in the best algorithm: what "bus
/// bandwidth" divides by.
/// Throws: input_error unless ranks >= 1.
[[nodiscard]] constexpr double wire_share(collective kind, int ranks) {
  if (ranks < 1) throw input_error("a collective needs ranks, nodes and rails");
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (kind == collective::all_reduce) return 2 * others;
  if (kind == collective::broadcast || kind == collective::point_to_point) return ranks > 1 ? 1 : 0;
  return others;
}

/// The ranks of a collective: as many on each of its nodes, what joins two on a node, and what joins two nodes.
template <transfer_model Inside = link, transfer_model Across = link>
struct rank_group {
  int nodes = 1;
  int per_node = 1;
  Inside inside{};
  Across across{};  ///< of one rail; not used within one node
  int rails = 1;    ///< network ports of a node that work at once, each at the speed of `across`

  [[nodiscard]] int ranks() const { return nodes * per_node; }
};

namespace detail {

/// Steps of halving or doubling among n ranks.
[[nodiscard]] constexpr int tree_depth(int n) {
  int depth = 0;
  while ((1LL << depth) < n) ++depth;
  return depth;
}

/// Every message shares its link with `load` - 1 others.
template <transfer_model Hop>
struct loaded {
  const Hop& hop;
  double load;

  [[nodiscard]] double transfer_s(double bytes) const { return hop.transfer_s(bytes * load); }
};

/// The slowest link of rings through all nodes, one for each rail, in each of which one rank of a node talks to the next node.
template <transfer_model Inside, transfer_model Across>
struct slowest_hop {
  const rank_group<Inside, Across>& group;

  [[nodiscard]] double transfer_s(double bytes) const {
    if (group.nodes == 1) return group.inside.transfer_s(bytes);
    const double across = group.across.transfer_s(bytes / std::min(group.rails, group.per_node));
    return group.per_node == 1 ? across : std::max(across, group.inside.transfer_s(bytes));
  }
};

/// Sends `bytes` over `hops` links in a row, in as many equal chunks as are best: a power of two up to 65536.
template <transfer_model Hop>
[[nodiscard]] double pipelined_s(int hops, double bytes, const Hop& hop) {
  double best = infinity;
  for (int chunks = 1; chunks <= 65536; chunks *= 2) best = std::min(best, (hops - 1 + chunks) * hop.transfer_s(bytes / chunks));
  return best;
}

template <transfer_model Hop>
[[nodiscard]] double ring_s(collective kind, int n, double bytes, const Hop& hop) {
  if (n == 1) return 0;
  if (kind == collective::point_to_point) return hop.transfer_s(bytes);
  if (kind == collective::broadcast) return pipelined_s(n - 1, bytes, hop);
  return (kind == collective::all_reduce ? 2 : 1) * (n - 1) * hop.transfer_s(bytes / n);
}

template <transfer_model Hop>
[[nodiscard]] double tree_s(collective kind, int n, double bytes, const Hop& hop) {
  if (n == 1) return 0;
  if (kind == collective::point_to_point) return hop.transfer_s(bytes);
  // Two trees, each with half of the data; who has children in one has none in the other (Sanders, Speck, Traff 2009).
  if (kind == collective::broadcast) return pipelined_s(tree_depth(n), bytes, hop);
  if (kind == collective::all_reduce) return 2 * pipelined_s(tree_depth(n), bytes, hop);
  double seconds = 0;
  for (int reach = 1; reach < n; reach *= 2) {
    // Blocks of bytes / n that a step moves: as many as are gathered so far, or those whose distance has this bit (Bruck et al.
    // 1997).
    int blocks = std::min(reach, n - reach);
    if (kind == collective::all_to_all) {
      blocks = 0;
      for (int distance = 1; distance < n; ++distance) blocks += (distance & reach) != 0;
    }
    seconds += hop.transfer_s(bytes * blocks / n);
  }
  return seconds;
}

template <transfer_model Inside, transfer_model Across>
[[nodiscard]] double hierarchical_s(collective kind, const rank_group<Inside, Across>& g, double bytes) {
  const int m = g.nodes, p = g.per_node;
  // All ranks of a node talk to their fellows on other nodes at once.
  const loaded<Across> shared{g.across, std::max(1.0, static_cast<double>(p) / g.rails)};
  switch (kind) {
    case collective::all_reduce:
      return ring_s(collective::reduce_scatter, p, bytes, g.inside) + ring_s(kind, m, bytes / p, shared) +
             ring_s(collective::all_gather, p, bytes, g.inside);
    case collective::all_gather:
    case collective::reduce_scatter:
      return ring_s(kind, p, bytes, g.inside) + ring_s(kind, m, bytes / p, shared);
    case collective::all_to_all:
      return ring_s(kind, p, bytes, g.inside) + ring_s(kind, m, bytes, shared);
    case collective::broadcast:
      return ring_s(kind, m, bytes, g.across) + ring_s(kind, p, bytes, g.inside);
    case collective::point_to_point:
      break;
  }
  return g.across.transfer_s(bytes);
}

}  // namespace detail

/// Seconds of a collective by formula; 0 for one rank. Steps wait for each other and nothing else uses the links. Ring and tree
/// run at the pace of the slowest link on their way; an all-to-all exchanges with one partner after the other. O(log ranks),
/// for a ring broadcast and trees O(ranks) at most. Throws input_error for a group without ranks, nodes or rails, or of more than
/// 2^24 ranks, and unless bytes are finite and at least 0.
template <transfer_model Inside, transfer_model Across>
[[nodiscard]] double collective_s(collective kind, collective_algorithm algorithm, const rank_group<Inside, Across>& group,
                                  double bytes) {
  if (group.nodes < 1 || group.per_node < 1 || group.rails < 1) throw input_error("a collective needs ranks, nodes and rails");
  if (group.per_node > (1 << 24) / group.nodes) throw input_error("a collective has more than 16777216 ranks");
  if (!(bytes >= 0)) throw input_error("the bytes of a collective must not be negative");
  if (bytes > std::numeric_limits<double>::max()) throw input_error("the bytes of a collective must be finite");
  const int n = group.ranks();
  if (n == 1 || bytes == 0) return 0;
  const detail::slowest_hop<Inside, Across> hop{group};
  if (algorithm == collective_algorithm::hierarchical && group.nodes > 1) return detail::hierarchical_s(kind, group, bytes);
  if (algorithm == collective_algorithm::tree) return detail::tree_s(kind, n, bytes, hop);
  if (kind == collective::all_to_all && group.nodes > 1) {
    const detail::loaded<Across> shared{group.across, std::max(1.0, static_cast<double>(group.per_node) / group.rails)};
    const double part = bytes / n;
    return (group.per_node > 1 ? (group.per_node - 1) * group.inside.transfer_s(part) : 0) +
           (n - group.per_node) * shared.transfer_s(part);
  }
  return detail::ring_s(kind, n, bytes, hop);
}

/// Seconds of the algorithm that is fastest by formula, as libraries choose.
template <transfer_model Inside, transfer_model Across>
[[nodiscard]] double fastest_collective_s(collective kind, const rank_group<Inside, Across>& group, double bytes) {
  return std::min({collective_s(kind, collective_algorithm::ring, group, bytes),
                   collective_s(kind, collective_algorithm::tree, group, bytes),
                   collective_s(kind, collective_algorithm::hierarchical, group, bytes)});
}

/// How shards of different sizes are gathered (Zhang et al., HAP, sec. 2.5.1).
enum class uneven_gather {
  padded,             ///< all as large as the largest, one all-gather; reduce-scatter likewise
  grouped_broadcast,  ///< every rank broadcasts its shard
};

/// Seconds to gather uneven shards on all ranks, one shard of that many bytes for each rank. Padded, it costs what the largest
/// shard makes of it; broadcast, what the sum does. O(ranks). Throws input_error unless there are as many shards as ranks.
template <transfer_model Inside, transfer_model Across>
[[nodiscard]] double uneven_all_gather_s(uneven_gather how, collective_algorithm algorithm,
                                         const rank_group<Inside, Across>& group, std::span<const double> shard_bytes) {
  if (group.nodes < 1 || group.per_node < 1 || group.rails < 1) throw input_error("a collective needs ranks, nodes and rails");
  if (shard_bytes.size() != static_cast<std::size_t>(group.nodes) * static_cast<std::size_t>(group.per_node))
    throw input_error("an uneven all-gather needs a shard for each rank");
  for (const double bytes : shard_bytes)
    if (!(bytes >= 0)) throw input_error("the bytes of a collective must not be negative");
  if (how == uneven_gather::padded)
    return collective_s(collective::all_gather, algorithm, group,
                        *std::max_element(shard_bytes.begin(), shard_bytes.end()) * group.ranks());
  double seconds = 0;
  for (const double bytes : shard_bytes) seconds += collective_s(collective::broadcast, algorithm, group, bytes);
  return seconds;
}

/// The faster way to gather those shards; padded where they are equal.
template <transfer_model Inside, transfer_model Across>
[[nodiscard]] uneven_gather fastest_uneven_gather(collective_algorithm algorithm, const rank_group<Inside, Across>& group,
                                                  std::span<const double> shard_bytes) {
  const double padded = uneven_all_gather_s(uneven_gather::padded, algorithm, group, shard_bytes);
  const double grouped = uneven_all_gather_s(uneven_gather::grouped_broadcast, algorithm, group, shard_bytes);
  return grouped < padded ? uneven_gather::grouped_broadcast : uneven_gather::padded;
}

}  // namespace hetsched
