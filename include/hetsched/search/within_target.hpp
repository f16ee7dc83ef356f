// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// What all stages of a plan have in common.
struct target_choice {
  std::vector<stage_trait> traits{};
  std::vector<int> values{};       ///< of the traits
  bool alone = false;              ///< one stage has all layers, with a ZeRO stage of plan_target::zero_alone
  std::vector<int> nodes{};        ///< that a plan may use of each subcluster, for NCCL and one precision; empty: all
  std::vector<int> most_expert{};  ///< degree by subcluster, for their precision; empty: any
  int stage_devices = 0;           ///< that every stage has, so that ranks of a host stay together; 0: any
  double least_s = 0;  ///< no iteration takes less, as devices do no two things at once; 0 where costs are no sums of layers
  friend bool operator==(const target_choice&, const target_choice&) = default;
};

/// A cost model as a target sees it: only placements that it runs and that are of a choice. Layers that no stage parts count as
/// one: all of a stage that stands alone, or embedding and head with their blocks.
class target_costs {
 public:
  /// Requires: the target outlives this.
  target_costs(any_cost_model costs, const plan_target& t, target_choice choice);

  [[nodiscard]] bool additive() const { return costs_.additive(); }
  [[nodiscard]] bool has_transfer_class() const { return costs_.has_transfer_class(); }
  [[nodiscard]] bool asks_proximity() const { return costs_.asks_proximity(); }
  [[nodiscard]] int layer_count() const { return layers_; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const;
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return costs_.stage(within(layers), where); }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const;
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs_.transfer(within({boundary, boundary + 1}).last - 1, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return costs_.update(within(layers), where); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return costs_.gradient_sync(within(layers), holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return costs_.overheads(where); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const;
  [[nodiscard]] int slices() const { return costs_.slices(); }
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    return costs_.sliced_stage(within(layers), parts);
  }
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const { return costs_.transfer_class(where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const {
    return costs_.boundary_class(within({boundary, boundary + 1}).last - 1);
  }

  /// Whether layers are not those of the model.
  [[nodiscard]] bool joins_layers() const { return ends_ || choice_.alone; }
  [[nodiscard]] const plan_target& target() const { return *target_; }
  /// The model's own layers that are these.
  [[nodiscard]] layer_range within(layer_range layers) const;

 private:
  [[nodiscard]] int seen_as(int own_layer) const;

  any_cost_model costs_;
  const plan_target* target_;
  target_choice choice_;
  bool ends_ = false;  // joined with their blocks
  int layers_ = 0;
};

/// A plan by costs as a target sees them, with the layers that the model has, and with the ranks of each host in a row if the
/// target wants that and stages of these shapes can have it: evaluate judges it again where something is changed.
/// Returns: a refusal as evaluate. Throws: as evaluate.
[[nodiscard]] outcome<plan> with_own_layers(const cluster& hardware, const costs_by_size& costs_for, const target_costs& view,
                                            plan p, const evaluate_options& options);

/// Every choice for which the target runs a placement on some submesh, by least_s. What has to be equal at the ends is, where
/// layers share parameters, part of the choice, and so are the most devices that the target takes together. `asked`: the
/// precision that costs are of, if they name one. O(submeshes * placements * layers) questions for each such set of devices.
[[nodiscard]] std::vector<target_choice> choices(const cluster& hardware, const any_cost_model& costs, const plan_target& t,
                                                 int microbatches, std::optional<precision> asked = {});

/// The cluster with no more nodes of a subcluster than a choice has. Subclusters that it has none of stay: no placement lies
/// there.
[[nodiscard]] cluster hardware_of(const target_choice& choice, cluster hardware);

/// The same choice with equally many devices in every stage, for each such number: then hosts need not be come back to.
[[nodiscard]] std::vector<target_choice> with_equal_stages(const target_choice& choice, const cluster& hardware);

/// A planner for costs as a target sees them, on a cluster with the devices that it takes.
using target_planner = std::function<outcome<plan>(const cluster&, const costs_by_size&, const planning_problem&)>;

/// How within_target judges plans, and refusals.
struct within_target_options {
  plan_setting setting = {};      ///< of the costs, which the plan remembers
  evaluate_options judging = {};  ///< how evaluate judges plans
  /// Whether the planner's refusal shows that a choice has no plan below `beat`; one of a heuristic does not.
  bool proves = true;
};

/// The best plan that a target runs: the planner is asked for each choice that can still win, those of the least bound first, and
/// evaluate judges its plans by `costs_for`.
/// Returns: the plan, whose evidence is that of all choices together; if there is none, the refusal that says most.
/// Throws: as the planner and evaluate.
/// Determinism: as the planner's.
[[nodiscard]] outcome<plan> within_target(const cluster& hardware, const costs_by_size& costs_for, const plan_target& t,
                                          planning_problem problem, const target_planner& make,
                                          const within_target_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/within_target.ipp>
#endif
