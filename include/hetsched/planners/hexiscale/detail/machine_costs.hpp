// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/check_cost.hpp>

namespace hetsched::detail {

/// One way to run a stage on devices of one node.
struct stage_choice {
  placement where;
  double room = 0, scale = 1;           // bytes of a device for a stage's costs: see room_within
  double whole_s = 0;                   // of all layers
  std::vector<stage_cost> layers = {};  // of additive models
};

/// What a cost model says of stages on single nodes and of transfers between them, asked for once.
class machine_costs {
 public:
  machine_costs(const cluster& hardware, const any_cost_model& costs)
      : hardware_(hardware), costs_(costs), layers_(costs.layer_count()) {
    if (layers_ < 1) throw input_error("a cost model needs at least one layer");
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      auto& sizes = by_size_.emplace_back();
      for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
        if (mesh.nodes == 1) add(mesh, sizes);
    }
    for (int j = 0; j + 1 < layers_; ++j) {
      const auto own = costs.boundary_class(j);
      const auto known = std::find(boundary_classes_.begin(), boundary_classes_.end(), own);
      boundary_kind_.push_back(static_cast<std::uint64_t>(known - boundary_classes_.begin()));
      if (known == boundary_classes_.end()) boundary_classes_.push_back(own);
    }
  }

  struct size_choices {
    int devices = 0;
    std::vector<int> choices;
  };

  [[nodiscard]] int layers() const { return layers_; }
  [[nodiscard]] const cluster& hardware() const { return hardware_; }
  /// The stage sizes of a subcluster that have costs, ascending.
  [[nodiscard]] const std::vector<size_choices>& sizes(int subcluster) const {
    return by_size_[static_cast<std::size_t>(subcluster)];
  }
  [[nodiscard]] const stage_choice& operator[](int choice) const { return choices_[static_cast<std::size_t>(choice)]; }

  /// Puts layer `index` in front of a stage of layers [index + 1, last) that costs `so_far`.
  void grow(int choice, int index, int last, stage_cost& so_far) const {
    if (costs_.additive()) {
      so_far += (*this)[choice].layers[static_cast<std::size_t>(index)];
    } else {
      so_far = costs_.stage(layer_range{index, last}, (*this)[choice].where);
      check_cost(so_far, hardware_, {index, last}, (*this)[choice].where);
    }
  }

  /// The boundary before layer `cut`.
  [[nodiscard]] const transfer_cost& transfer(int cut, int from, int to, proximity near) {
    const auto kind = boundary_kind_[static_cast<std::size_t>(cut - 1)];
    const auto count = static_cast<std::uint64_t>(choices_.size());
    const auto key = ((kind * count + static_cast<std::uint64_t>(from)) * count + static_cast<std::uint64_t>(to)) * 2 +
                     (near == proximity::same_node ? 1 : 0);
    const auto [at, is_new] = transfers_.try_emplace(key);
    if (is_new) {
      const auto &a = (*this)[from].where, &b = (*this)[to].where;
      at->second = costs_.transfer(cut - 1, a, b, near);
      check_transfer(at->second, hardware_, cut - 1, a, b);
    }
    return at->second;
  }

 private:
  void add(const submesh& mesh, std::vector<size_choices>& sizes) {
    const auto& device = subcluster_of(hardware_, mesh).device;
    size_choices found{.devices = mesh.device_count(), .choices = {}};
    for (const placement& p : costs_.placements(mesh)) {
      if (!(p.mesh == mesh)) throw input_error("a cost model's placements must lie on the submesh they were asked for");
      const auto more = costs_.overheads(p);
      validate(more);
      const auto [room, scale] = room_within(device.memory_bytes, more);
      stage_choice choice{p, room, scale, 0};
      if (costs_.additive()) {
        for (int l = 0; l < layers_; ++l) {
          choice.layers.push_back(costs_.layer(l, p));
          choice.whole_s += choice.layers.back().total_s();
          check_cost(choice.layers.back(), hardware_, {l, l + 1}, p);
        }
        const auto no_better = [&](int known) { return no_worse((*this)[known], choice); };
        if (std::any_of(found.choices.begin(), found.choices.end(), no_better)) continue;
      } else {
        const stage_cost whole = costs_.stage(layer_range{0, layers_}, p);
        choice.whole_s = whole.total_s();
      }
      found.choices.push_back(static_cast<int>(choices_.size()));
      choices_.push_back(std::move(choice));
    }
    if (!found.choices.empty()) sizes.push_back(std::move(found));
  }

  // Whether a is as good as b of the same degrees in every layer.
  [[nodiscard]] static bool no_worse(const stage_choice& a, const stage_choice& b) {
    if (!(a.where.degrees == b.where.degrees) || a.room < b.room || a.scale > b.scale) return false;
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      const auto &x = a.layers[l], &y = b.layers[l];
      if (x.total_s() > y.total_s() || x.weight_bytes > y.weight_bytes || x.activation_bytes > y.activation_bytes ||
          x.temporary_bytes > y.temporary_bytes)
        return false;
    }
    return true;
  }

  const cluster& hardware_;
  any_cost_model costs_;
  int layers_;
  std::vector<stage_choice> choices_;
  std::vector<std::vector<size_choices>> by_size_;
  std::vector<std::int64_t> boundary_classes_;
  std::vector<std::uint64_t> boundary_kind_;
  std::unordered_map<std::uint64_t, transfer_cost> transfers_;
};

}  // namespace hetsched::detail
