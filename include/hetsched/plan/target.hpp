// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cluster/device.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/schedule_id.hpp>

namespace hetsched {

/// Where a target can cut a model into stages.
enum class target_cuts {
  layers,            ///< between any two layers of the plan
  blocks,            ///< between blocks of a transformer; embedding and head count as such
  blocks_with_ends,  ///< the same, but the embedding stays with the first block and the head with the last
};

/// What stages of a plan may have to agree in.
enum class stage_trait { data, context, tensor, expert, recompute, zero };

/// Their names in files and messages, in their order.
inline constexpr std::array<std::string_view, 6> stage_traits{"data", "context", "tensor", "expert", "recompute", "zero"};

/// A program that runs plans, as far as planning goes: which plans it can run, and how it is priced if nobody says otherwise.
/// The one made by default runs all that plans can say.
struct plan_target {
  std::string name{};
  std::string program{};           ///< and the version that the rules are of
  std::string stack = "hetsched";  ///< its training_stack
  bool several_pipelines = true;   ///< data-parallel copies of the model that differ
  bool equal_pipelines = true;     ///< data-parallel copies that differ in their devices only
  bool uneven_shares = true;       ///< unequal parts of an axis of a stage
  target_cuts cuts = target_cuts::layers;
  degrees most{INT_MAX, INT_MAX, INT_MAX, INT_MAX};
  int least_replicas = 1;                    ///< data times context degree of each stage, where a plan has several devices
  std::vector<stage_trait> equal{};          ///< all stages have the same
  std::vector<stage_trait> equal_at_ends{};  ///< the first and the last stage do, if they share parameters (a tied embedding)
  std::vector<recomputation> recompute{recomputation::none, recomputation::selective, recomputation::full};
  bool recompute_parted = true;  ///< also where a schedule parts backwards into those of inputs and of weights
  std::vector<int> zero{0, 1, 2, 3};
  std::vector<int> zero_alone{};         ///< also, of a plan of one stage
  std::vector<schedule_id> schedules{};  ///< empty: all; the first is planned for unless another is asked for
  bool whole_rounds = false;             ///< interleaved schedules take microbatches in multiples of the ranks
  std::vector<precision> precisions{precision::fp32, precision::tf32, precision::fp16, precision::bf16};
  bool one_precision = false;   ///< all devices of a plan compute in the same
  bool fp16_experts = true;     ///< expert degrees above 1 where devices compute in fp16
  bool joined_by_nccl = false;  ///< all devices of a plan, RCCL being AMD's
  bool further_tokens = true;   ///< models whose head predicts several tokens (transformer::further_tokens)
  bool any_order = false;       ///< orders of one direction that a plan lists action by action, whatever they are called
  bool hosts_in_a_row = false;  ///< the ranks of a host follow one another
  bool strict = false;          ///< refuses other ways to save memory and other schedules; else it runs its own
  friend bool operator==(const plan_target&, const plan_target&) = default;
};

/// The targets that the library knows, by name and version of the rules' source: hetsched, megatron, torch, torchtitan,
/// flagscale, deepspeed.
[[nodiscard]] const std::vector<plan_target>& plan_targets();

/// The target of that name, if there is one.
[[nodiscard]] std::optional<plan_target> find_plan_target(std::string_view name);

/// Throws: input_error for a target without a name, of a stack or schedule that is not known, of degrees or replicas below 1, of
/// no recomputation or ZeRO stage, or of one that there is not.
void validate(const plan_target& t);

[[nodiscard]] constexpr std::string_view name_of(stage_trait trait) { return stage_traits[static_cast<std::size_t>(trait)]; }

/// A stage's value of a trait.
[[nodiscard]] int value_of(stage_trait trait, const placement& where);

/// Whether a trait says anything of a stage: without replicas there is nothing for ZeRO to share out.
[[nodiscard]] bool matters(stage_trait trait, const placement& where);

/// Whether the target runs stages so, other stages aside. `alone`: as the only one.
[[nodiscard]] bool allows(const plan_target& t, const placement& where, bool alone = false);

/// Whether the target runs a schedule as it is. By name: one that is not known only where it runs all.
[[nodiscard]] bool allows(const plan_target& t, schedule_id schedule);
[[nodiscard]] bool allows(const plan_target& t, std::string_view schedule_name);

/// Whether a schedule has backwards of inputs and of weights apart, or may have, as the one that is searched for.
/// Throws: input_error for one that is not known.
[[nodiscard]] bool parts_backwards(schedule_id schedule);
[[nodiscard]] bool parts_backwards(std::string_view schedule_name);

/// Something of a plan that a target does not run as it stands.
struct target_gap {
  std::string place{};  ///< in the plan: "stage 1"
  std::string found{};
  std::string expected{};
  bool runs_anyway = false;  ///< in the target's own way, not as the plan was priced
  friend bool operator==(const target_gap&, const target_gap&) = default;
};

/// "stage 1: tensor degree 2, expected 4 as in stage 0".
[[nodiscard]] std::string to_text(const target_gap& gap);

/// All that a plan asks for and a target does not run: first what it cannot run at all, then what it runs in its own way.
/// Layers of a plan whose setting names no granularity count as blocks. Without a cluster, devices compute in the precision that
/// the plan's setting names, and nothing is said of hosts and NCCL; where it names none, nothing of precisions.
/// Throws: input_error for a pipeline without stages, and stages without layers or with degrees below 1; on a cluster also for
/// devices that it does not have. O(stages * traits + devices).
[[nodiscard]] std::vector<target_gap> gaps(const plan& p, const plan_target& t);
[[nodiscard]] std::vector<target_gap> gaps(const plan& p, const plan_target& t, const cluster& hardware);

/// Where a pipeline of a plan first differs from its first one in more than devices, times and memory: in batch, cuts, degrees,
/// ways to save memory or order; none if all are copies of one. Another order of the same stages runs anyway: the first one's.
/// Throws: input_error for a pipeline without stages, and stages without layers or with degrees below 1.
[[nodiscard]] std::optional<target_gap> unlike_pipelines(const plan& p);

/// Whether the target runs the plan, if need be in its own way. Throws: as gaps.
[[nodiscard]] bool can_run(const plan& p, const plan_target& t);
[[nodiscard]] bool can_run(const plan& p, const plan_target& t, const cluster& hardware);

/// Whether NCCL joins the devices of two subclusters, or for one and the same those of its nodes: unless the path between them
/// says otherwise, and they are of one maker, NVIDIA or AMD, or not known. Throws: input_error for a subcluster that there is
/// not.
[[nodiscard]] bool joined_by_nccl(const cluster& hardware, int a, int b);

/// Which plans a target runs, in words: "one pipeline; whole blocks; all stages alike in data and tensor; under 1f1b".
[[nodiscard]] std::string space_of(const plan_target& t);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/target.ipp>
#endif
