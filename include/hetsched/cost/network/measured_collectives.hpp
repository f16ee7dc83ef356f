// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/network/collective_test.cpp.

#include <climits>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/cost/network/collective.hpp>
#include <hetsched/cost/network/transfer_curve.hpp>

namespace hetsched {

/// Measurements of one collective on nodes x per_node ranks of one kind of machine.
struct collective_measurements {
  hetsched::collective collective{};
  int nodes = 1;
  int per_node = 2;
  std::vector<transfer_sample> samples{};
  double link_bandwidth = 0;  ///< bytes/s by datasheet of the slowest link that joins the ranks; 0: that of the machine's others
};

/// Predicts collectives on a machine from measurements on some group sizes. What was measured comes from its fitted curve.
/// Another group of the same kind, within a node or across nodes, takes what nearby measured groups take for each byte that
/// crosses a link (wire_share): between two group sizes that straddle it their geometric mean, weighted by the logarithm of
/// the ranks, beyond them the nearest. Where ranks are joined by links of other kinds, such as pairs by NVLink and more of them
/// by PCIe, tell the links' bandwidths: a group then takes what another one takes for as many bytes more as its link is faster.
/// Across nodes groups with as many ranks per node come first; on more nodes than were
/// measured the trend of the two largest such groups goes on, as a power of the ranks between 0 (bandwidth) and 1 (latency of a
/// ring). What network ports the ranks of a node share and where a library changes its algorithm no rule foresees: between
/// different ranks per node predictions were off by a factor of two (docs/accuracy.md). All-gather and reduce-scatter, where not
/// measured, take each other's time or half of an all-reduce, which is one after the other.
class measured_collectives {
 public:
  /// Fits a curve to each. Throws input_error for measurements of fewer than two ranks or that fit_transfer_curve refuses,
  /// and where a group comes twice.
  explicit measured_collectives(std::span<const collective_measurements> measured, const transfer_fit_options& options = {}) {
    for (const auto& m : measured) {
      if (ranks(m.nodes, m.per_node) < 2) throw input_error("a measured collective needs at least two ranks");
      for (const auto& g : groups_)
        if (g.kind == m.collective && g.nodes == m.nodes && g.per_node == m.per_node)
          throw input_error("the measurements of a collective on one group must come together");
      groups_.push_back({m.collective, m.nodes, m.per_node, m.link_bandwidth, fit_transfer_curve(m.samples, options)});
    }
  }

  /// Seconds of a collective on `bytes` (as in collective.hpp) > 0, 0 for one rank; none where nothing like it was measured.
  /// `link_bandwidth` as in collective_measurements. Throws input_error for nodes or ranks below 1 and too many of them.
  /// O(groups).
  [[nodiscard]] std::optional<double> seconds(collective kind, int nodes, int per_node, double bytes,
                                              double link_bandwidth = 0) const {
    if (ranks(nodes, per_node) == 1) return 0;
    if (const auto s = nearby(kind, nodes, per_node, bytes, link_bandwidth)) return s;
    if (kind != collective::all_gather && kind != collective::reduce_scatter) return std::nullopt;
    const auto twin = kind == collective::all_gather ? collective::reduce_scatter : collective::all_gather;
    if (const auto s = nearby(twin, nodes, per_node, bytes, link_bandwidth)) return s;
    if (const auto s = nearby(collective::all_reduce, nodes, per_node, bytes, link_bandwidth)) return *s / 2;
    return std::nullopt;
  }

 private:
  [[nodiscard]] static int ranks(int nodes, int per_node) {
    if (nodes < 1 || per_node < 1) throw input_error("a collective needs ranks and nodes");
    if (nodes > INT_MAX / per_node) throw input_error("a collective has too many ranks");
    return nodes * per_node;
  }

  struct group {
    collective kind;
    int nodes, per_node;
    double link_bandwidth;
    transfer_curve curve;
  };

  [[nodiscard]] std::optional<double> nearby(collective kind, int nodes, int per_node, double bytes, double link_bandwidth) const;

  // What more nodes than the `largest` measured group has cost beyond their wire share.
  [[nodiscard]] double growth(const group& largest, int nodes, double bytes) const;

  std::vector<group> groups_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/network/measured_collectives.ipp>
#endif
