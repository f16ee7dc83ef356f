// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/copied_part.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/cost/questions/concepts.hpp>

namespace hetsched {

/// A layer of a measured model; boundary_bytes are those of one microbatch's output.
struct profiled_layer {
  std::string name{};
  bytes_t boundary_bytes = 0;
  std::optional<copied_part> copy_of = {};  ///< none: all of its parameters are its own
  friend bool operator==(const profiled_layer&, const profiled_layer&) = default;
};

/// Costs of all layers on one submesh shape: seconds per microbatch, bytes per device.
/// Named is either a subcluster, or a device, which stands for every subcluster of that device.
struct profile_entry {
  std::string subcluster{};
  std::string device{};
  int nodes = 1;
  int devices = 1;                             ///< per node
  std::optional<hetsched::degrees> degrees{};  ///< none: all tensor parallel
  std::vector<double> forward_s{};
  std::vector<double> backward_s{};
  std::vector<bytes_t> weight_bytes{};
  std::vector<bytes_t> activation_bytes{};
  friend bool operator==(const profile_entry&, const profile_entry&) = default;
};

/// Measured, or made-up, costs of a model.
struct profile {
  std::vector<profiled_layer> layers{};
  std::vector<profile_entry> entries{};
  friend bool operator==(const profile&, const profile&) = default;
};

/// Costs looked up in a profile. A shape without an entry may not be used; several entries with different degrees are choices.
/// Gradient reduction and optimizer step are taken as free: a profile does not have them.
/// An additive_cost_model; a layer costs O(entries of its subcluster).
class profile_cost_model {
 public:
  /// Entries for shapes and devices that the cluster does not have are ignored. Throws input_error, naming the place as in the
  /// file ("/costs/3/forward_s"), for the name of a missing subcluster, wrong sizes, negative or infinite costs, degrees that do
  /// not multiply to the shape, copies of what is no other layer, and two entries for one shape of a subcluster with equal
  /// degrees.
  profile_cost_model(hetsched::cluster hardware, profile measured)
      : cluster_(std::move(hardware)), profile_(std::move(measured)) {
    validate(cluster_);
    if (profile_.layers.empty()) throw input_error("/layers: the profile has no layer");
    for (std::size_t i = 0; i < profile_.layers.size(); ++i)
      if (profile_.layers[i].boundary_bytes < 0)
        throw input_error("/layers/" + std::to_string(i) + "/boundary_bytes: is negative");
    validate_copies(profile_.layers);
    choices_.resize(cluster_.subclusters.size());
    for (std::size_t i = 0; i < profile_.entries.size(); ++i) add(i);
  }

  [[nodiscard]] int layer_count() const { return static_cast<int>(profile_.layers.size()); }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> found;
    for (const auto& c : at(choices_, mesh.subcluster))
      if (c.where.mesh == mesh) found.push_back(c.where);
    return found;
  }

  /// Throws input_error unless `where` is one of the placements.
  [[nodiscard]] stage_cost layer(int index, const placement& where) const { return cost(entry(where), index); }

  /// As layer(). O(layers + entries of the subcluster).
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    const auto& found = entry(where);
    stage_cost sum;
    for (int l = layers.first; l < layers.last; ++l) sum += cost(found, l);
    drop_copies(sum, layers, copies(where));
    return sum;
  }

  /// Of state that stages hold once; adding up gradients is free here, too. Of no bytes where there is no entry.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const {
    std::vector<parameter_copy> all;
    const auto* found = find(where);
    for (std::size_t l = 0; l < profile_.layers.size(); ++l)
      if (const auto& c = profile_.layers[l].copy_of)
        all.push_back(
            {.owner = c->layer, .layer = static_cast<int>(l), .weight_bytes = found ? c->of(found->weight_bytes[l]) : 0});
    return all;
  }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    const auto bytes = at(profile_.layers, boundary).boundary_bytes;
    const double seconds = stage_transfer_s(cluster_, from.mesh, to.mesh, static_cast<double>(bytes));
    return {seconds, seconds, bytes, 0, "direct"};
  }

  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement&) { return 0; }
  /// Boundaries of equally many bytes.
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return at(profile_.layers, boundary).boundary_bytes; }

 private:
  struct choice {
    placement where;
    std::size_t entry;
  };

  [[nodiscard]] static stage_cost cost(const profile_entry& e, int index) {
    const auto l = as_size(index);
    return {e.forward_s[l], e.backward_s[l], e.weight_bytes[l], e.activation_bytes[l]};
  }

  [[nodiscard]] const profile_entry* find(const placement& where) const {
    for (const auto& c : at(choices_, where.mesh.subcluster))
      if (c.where == where) return &profile_.entries[c.entry];
    return nullptr;
  }

  [[nodiscard]] const profile_entry& entry(const placement& where) const {
    if (const auto* found = find(where)) return *found;
    throw input_error("the profile has no entry for this placement");
  }

  void add(std::size_t index);

  hetsched::cluster cluster_;
  profile profile_;
  std::vector<std::vector<choice>> choices_;  // by subcluster
};

static_assert(additive_cost_model<profile_cost_model>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/profile.ipp>
#endif
