// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/copied_part.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/network/detail/ring.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/concepts.hpp>

namespace hetsched {

/// A layer of a model that was measured replica by replica.
struct replica_layer {
  std::string name{};
  bytes_t boundary_bytes_per_sample = 0;
  std::optional<copied_part> copy_of = {};  ///< none: all of its parameters are its own
  friend bool operator==(const replica_layer&, const replica_layer&) = default;
};

/// What one data-parallel replica takes for a microbatch of one size: `tensor * context` devices on `nodes` nodes, equally many
/// on each. Layer by layer seconds, and bytes per device. Named is either a subcluster, or a device, which stands for every
/// subcluster of that device.
struct replica_row {
  std::string subcluster{};
  std::string device{};
  int nodes = 1;
  int tensor = 1;
  int context = 1;
  int microbatch_size = 1;
  std::vector<double> forward_s{};
  std::vector<double> backward_s{};
  std::vector<bytes_t> weight_bytes{};      ///< weights, gradients and optimizer state
  std::vector<bytes_t> activation_bytes{};  ///< of one microbatch
  std::vector<bytes_t> gradient_bytes{};    ///< of weight_bytes; empty if not told
  std::vector<double> update_s{};           ///< the replica's own part of the optimizer step; empty if not told
  friend bool operator==(const replica_row&, const replica_row&) = default;
};

/// A model measured on single replicas: how many of them share a stage is the planner's choice.
struct replica_profile {
  std::vector<replica_layer> layers{};
  std::vector<replica_row> rows{};
  friend bool operator==(const replica_profile&, const replica_profile&) = default;
};

struct replica_cost_options {
  int microbatch_size = 1;   ///< samples of a microbatch, of all replicas of a stage together
  bool extrapolate = false;  ///< beyond the sizes that were measured
};

/// The samples that each replica of a placement computes, and the measured sizes between which its costs lie on a line: one
/// size, twice, where that was measured itself or is the only one.
struct replica_sizes {
  int samples = 1;
  int low = 1;
  int high = 1;

  [[nodiscard]] constexpr bool extrapolated() const { return samples < low || samples > high; }
  friend constexpr bool operator==(const replica_sizes&, const replica_sizes&) = default;
};

/// Costs from a replica_profile. A stage with data degree d computes microbatch_size / d samples on each replica. A replica on
/// one node needs tensor * context to divide the devices per node; one on r nodes needs its devices on a node to divide them,
/// and r to divide the nodes. Where rows for several r serve the same degrees, the fewest nodes count.
/// Between two measured sizes, costs lie on a line, bytes rounded up. Beyond them they are offered only on request: on the line
/// through the two nearest sizes, never below 0; from one size alone, times and activations grow in proportion.
/// An update is what was measured, and a ring that adds up gradient_bytes over the replicas, which is free where they are not
/// told. An additive_cost_model; a layer costs O(rows of its replicas).
class replica_cost_model {
 public:
  /// Rows for devices and shapes that the cluster does not have are ignored. Throws input_error, naming the place as in the file
  /// ("/costs/3/forward_s"), for the name of a missing subcluster, wrong sizes, negative or infinite costs, more gradients than
  /// weight_bytes, copies of what is no other layer, nodes that do not divide a replica, two rows for one replica and size on a
  /// subcluster, and rows of one replica of which only some tell gradient_bytes or update_s.
  replica_cost_model(hetsched::cluster hardware, replica_profile measured, const replica_cost_options& options = {})
      : cluster_(std::move(hardware)), profile_(std::move(measured)), options_(options) {
    validate(cluster_);
    if (options_.microbatch_size < 1) throw input_error("microbatch_size must be at least 1");
    if (profile_.layers.empty()) throw input_error("/layers: the profile has no layer");
    for (std::size_t i = 0; i < profile_.layers.size(); ++i)
      if (profile_.layers[i].boundary_bytes_per_sample < 0)
        throw input_error("/layers/" + std::to_string(i) + "/boundary_bytes_per_sample: is negative");
    validate_copies(profile_.layers);
    replicas_.resize(cluster_.subclusters.size());
    for (std::size_t i = 0; i < profile_.rows.size(); ++i) add(i);
  }

  [[nodiscard]] int layer_count() const { return static_cast<int>(profile_.layers.size()); }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const;

  /// Throws input_error unless `where` is one of the placements.
  [[nodiscard]] stage_cost layer(int index, const placement& where) const { return cost(on(where), index); }

  /// As layer(). O(layers + rows of the replica).
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    const auto line = on(where);
    stage_cost sum;
    for (int l = layers.first; l < layers.last; ++l) sum += cost(line, l);
    drop_copies(sum, layers, copies(where));
    return sum;
  }

  /// Of no bytes where there are no costs; free to add up where gradient_bytes are not told.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const {
    std::vector<parameter_copy> all;
    const auto line = find(where);
    for (int l = 0; l < layer_count(); ++l) {
      const auto& c = at(profile_.layers, l).copy_of;
      if (!c) continue;
      all.push_back({.owner = c->layer, .layer = l});
      if (!line) continue;
      const auto held = cost(*line, l);
      all.back().weight_bytes = c->of(held.weight_bytes);
      all.back().gradient_bytes = c->of(held.gradient_bytes);
      all.back().reduction_bytes = checked_mul(c->of(held.gradient_bytes), std::int64_t{where.degrees.tensor});
    }
    return all;
  }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    const auto bytes = checked_mul(at(profile_.layers, boundary).boundary_bytes_per_sample, options_.microbatch_size);
    return boundary_cost(cluster_, from, to, near, bytes);
  }

  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement& where) { return boundary_side_class(where); }
  /// Boundaries of equally many bytes.
  [[nodiscard]] std::int64_t boundary_class(int boundary) const {
    return at(profile_.layers, boundary).boundary_bytes_per_sample;
  }

  /// As layer().
  [[nodiscard]] double update(layer_range layers, const placement& where) const {
    const auto line = on(where);
    double seconds = 0;
    if (!line.low->update_s.empty())
      for (int l = layers.first; l < layers.last; ++l) {
        const auto& c = at(profile_.layers, l).copy_of;
        seconds += line.seconds(&replica_row::update_s, l, false) * (c && c->is_owned_by(layers) ? 1 - c->fraction : 1);
      }
    const int per_node = where.degrees.tensor * where.degrees.context / line.low->nodes;
    const auto peers = detail::ring_on(cluster_, where.mesh, per_node, where.degrees.data);
    return seconds + peers.collective_s(2, static_cast<double>(gradients(line, layers)));
  }

  /// A ring over the stages, with the gradients of a whole replica: of that which has most.
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    bytes_t bytes = 0;
    for (const auto& p : holders)
      bytes = std::max(bytes, checked_mul(gradients(on(p), layers), p.degrees.tensor, p.degrees.context));
    return {gradient_reduction_s(cluster_, holders, static_cast<double>(bytes)), bytes};
  }

  /// What the costs of a placement rest on. Throws as layer().
  [[nodiscard]] replica_sizes sizes(const placement& where) const {
    const auto line = on(where);
    return {line.samples, line.low->microbatch_size, line.high->microbatch_size};
  }

  /// All sizes that were measured on devices of the cluster, ascending.
  [[nodiscard]] std::vector<int> measured_sizes() const;

  /// Whether adding up a placement's gradients over its replicas counts as free. Throws as layer().
  [[nodiscard]] bool lacks_gradients(const placement& where) const { return on(where).low->gradient_bytes.empty(); }

 private:
  // Rows that differ in their microbatch size only, by which they are sorted.
  struct replica {
    int nodes, tensor, context;
    std::vector<std::size_t> rows;
  };

  // Two rows of one replica and where between or beyond them; or one row, twice.
  struct line_through {
    const replica_row* low;
    const replica_row* high;
    int samples;

    // `grows`: one row alone tells values in proportion to samples, else constants.
    [[nodiscard]] double seconds(std::vector<double> replica_row::*column, int index, bool grows) const {
      const auto l = as_size(index);
      const double above = (high->*column)[l];
      if (low == high && !grows) return above;
      const double below = low == high ? 0 : (low->*column)[l];
      const double share = static_cast<double>(samples - start()) / (high->microbatch_size - start());
      return std::max(0.0, below + (above - below) * share);
    }

    [[nodiscard]] bytes_t bytes(std::vector<bytes_t> replica_row::*column, int index, bool grows) const {
      const auto l = as_size(index);
      const bytes_t above = (high->*column)[l];
      if (low == high && !grows) return above;
      const bytes_t below = low == high ? 0 : (low->*column)[l];
      const std::int64_t rise = above - below, steps = samples - start(), width = high->microbatch_size - start();
      const std::int64_t rest = rise % width * steps;
      const std::int64_t rounded = rest / width + (rest % width > 0);
      return std::max<bytes_t>(0, checked_add(below, checked_add(checked_mul(rise / width, steps), rounded)));
    }

    [[nodiscard]] int start() const { return low == high ? 0 : low->microbatch_size; }
  };

  // By degrees, then nodes.
  [[nodiscard]] static bool before(const auto& a, const auto& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    if (a.context != b.context) return a.context < b.context;
    return a.nodes < b.nodes;
  }

  [[nodiscard]] static bool fits(const replica& r, const submesh& mesh) {
    return mesh.nodes % r.nodes == 0 && mesh.devices_per_node % (r.tensor * r.context / r.nodes) == 0;
  }

  // None unless it is offered.
  [[nodiscard]] std::optional<line_through> find(const placement& where) const;

  [[nodiscard]] line_through on(const placement& where) const {
    const auto line = find(where);
    if (!line) throw input_error("the profile has no costs for this placement");
    return *line;
  }

  [[nodiscard]] static bytes_t gradient(const line_through& line, int index) {
    return line.low->gradient_bytes.empty() ? 0 : line.bytes(&replica_row::gradient_bytes, index, false);
  }

  // Once of what layers share.
  [[nodiscard]] bytes_t gradients(const line_through& line, layer_range layers) const {
    bytes_t sum = 0;
    for (int l = layers.first; l < layers.last; ++l) {
      const auto bytes = gradient(line, l);
      const auto& c = at(profile_.layers, l).copy_of;
      sum = checked_add(sum, c && c->is_owned_by(layers) ? bytes - c->of(bytes) : bytes);
    }
    return sum;
  }

  [[nodiscard]] static stage_cost cost(const line_through& line, int index) {
    stage_cost c{line.seconds(&replica_row::forward_s, index, true), line.seconds(&replica_row::backward_s, index, true),
                 line.bytes(&replica_row::weight_bytes, index, false), line.bytes(&replica_row::activation_bytes, index, true)};
    c.gradient_bytes = std::min(c.weight_bytes, gradient(line, index));
    return c;
  }

  void add(std::size_t index);

  hetsched::cluster cluster_;
  replica_profile profile_;
  replica_cost_options options_;
  std::vector<std::vector<replica>> replicas_;  // by subcluster; sorted by degrees, then nodes
};

static_assert(additive_cost_model<replica_cost_model>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/replica_profile.ipp>
#endif
