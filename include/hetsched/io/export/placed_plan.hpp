// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// A file that another trainer reads.
struct export_file {
  std::string name, text;
  friend bool operator==(const export_file&, const export_file&) = default;
};

/// What another trainer needs to run a plan, and what it does its own way, in sentences for people.
struct plan_export {
  std::vector<export_file> files = {};
  std::vector<std::string> remarks = {};

  /// The text of the file of that name; empty if there is none.
  [[nodiscard]] std::string_view text(std::string_view name) const;
};

/// A target cannot express a plan; the text says what of it.
struct inexpressible : error {
  using error::error;
};

/// A device of a plan as other trainers count it.
struct placed_rank {
  int pipeline_rank = 0;  ///< rank of the schedule: stage of the plan
  int data = 0, context = 0, tensor = 0;
  int subcluster = 0;
  int device = 0;  ///< of the subcluster, counted node by node
  friend bool operator==(const placed_rank&, const placed_rank&) = default;
};

/// A plan of one pipeline as other trainers see it: virtual stages, and a rank for each device, stage by stage, with tensor
/// ranks next to each other, then context, then data.
struct placed_plan {
  std::string target;  ///< whom it is for, as messages name it
  plan_file file;
  pipeline_layout layout;
  std::vector<placed_rank> ranks;
  std::optional<cluster> hardware;  ///< none: hosts and devices are not known
  int copies = 1;                   ///< pipelines of the plan, which are replicas of its stages here, the first one's first

  [[nodiscard]] const pipeline_plan& line() const { return file.plan.pipelines.front(); }
  [[nodiscard]] const plan_setting& setting() const { return file.plan.setting; }
  [[nodiscard]] const schedule& order() const { return layout.order; }
  [[nodiscard]] int layers() const { return line().stages.back().layers.last; }
  /// The subclusters in use, in the order of ranks, each once.
  [[nodiscard]] std::vector<int> subclusters() const;
  /// Throws: inexpressible, as "TARGET cannot express this plan: WHY".
  [[noreturn]] void refuse(const std::string& why) const;
};

/// A plan of a file for a target. On a cluster, subclusters count as there. `path`: of the plan, for messages.
/// Pipelines that differ in their devices only become one, whose stages are as slow as the slowest.
/// Throws: inexpressible for what has no such ranks: other pipelines; input_error for devices
/// that the cluster does not have, and where stages and schedule do not fit. What else a target does not run, gaps() tells;
/// export_plan asks it, and those who write files for a target ask nothing again.
[[nodiscard]] placed_plan place_plan(plan_file file, std::string target, std::optional<cluster> hardware = {},
                                     const std::string& path = "plan.json");

/// One setting for what all stages recompute: the most that any of them does, so that none runs out of memory for it. Where
/// stages differ, a sentence is added to `remarks`.
[[nodiscard]] recomputation common_recomputation(const placed_plan& placed, std::vector<std::string>& remarks);

/// One ZeRO stage for all stages that have several replicas (data or context ranks): the highest that any has, and at most
/// `most`; 0 if none has. Where that is not what a stage has, a sentence is added to `remarks`.
[[nodiscard]] int common_zero(const placed_plan& placed, int most, std::vector<std::string>& remarks);

/// The precision in which devices compute, the first one's where they differ; none where the plan does not name one. Without a
/// cluster it is the model's.
[[nodiscard]] std::optional<precision> precision_of(const placed_plan& placed);

/// Bytes of a gradient under the plan's stack, which is the library's where it names none; 0 for measured costs, which do not
/// say.
[[nodiscard]] int gradient_bytes(const placed_plan& placed, precision computed);

/// A schedule of what is computed, in the CSV of torch.distributed.pipelining, which adds what is sent.
[[nodiscard]] std::string computed_csv(const placed_plan& placed);

/// The name of a layer, as in blocks.3.attention.
[[nodiscard]] std::string module_name(const placed_plan& placed, int layer);

/// The whole blocks of a transformer that a stage holds, counted from 0, and whether it holds embedding and head.
struct stage_blocks {
  bool embedding = false;
  int first = 0, last = 0;
  bool head = false;
};

/// The same of every virtual stage. Requires: cuts between the blocks of a transformer.
[[nodiscard]] std::vector<stage_blocks> blocks_of_stages(const placed_plan& placed);

/// ranks.json: for each rank its place in the plan, and the subcluster and device that it is.
[[nodiscard]] std::string ranks_json(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/placed_plan.ipp>
#endif
